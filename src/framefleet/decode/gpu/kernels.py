"""The Triton kernel of `gpu.convert`. Kept apart because Triton's language is not typed Python."""

import triton
import triton.language as tl


@triton.jit
def _resample(
    plane,
    row_stride,
    step,
    rows,
    cols,
    v_start,
    v_weights,
    h_start,
    h_weights,
    y,
    x,
    in_x,
    KV: tl.constexpr,
    KH: tl.constexpr,
):
    """Weighted sum of KV x KH samples around output row y and output columns x, in 8-bit units."""
    first_row = tl.load(v_start + y)
    first_col = tl.load(h_start + x, mask=in_x, other=0)
    total = tl.zeros([x.shape[0]], dtype=tl.float32)
    for i in range(KV):
        row = tl.minimum(first_row + i, rows - 1)
        line = tl.zeros([x.shape[0]], dtype=tl.float32)
        for j in range(KH):
            col = tl.minimum(first_col + j, cols - 1)
            weight = tl.load(h_weights + x * KH + j, mask=in_x, other=0.0)
            line += weight * tl.load(plane + row * row_stride + col * step, mask=in_x, other=0).to(tl.float32)
        total += tl.load(v_weights + y * KV + i) * line
    return total


@triton.jit
def planes_to_rgb(
    y_plane,
    u_plane,
    v_plane,
    out,
    coefficients,
    y_stride,
    c_stride,
    c_step,
    y_rows,
    y_cols,
    c_rows,
    c_cols,
    yv_start,
    yv_weights,
    yh_start,
    yh_weights,
    cv_start,
    cv_weights,
    ch_start,
    ch_weights,
    width,
    base,
    step_y,
    step_x,
    unit,
    KYV: tl.constexpr,
    KYH: tl.constexpr,
    KCV: tl.constexpr,
    KCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    y = tl.program_id(0)
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_x = x < width
    luma = unit * _resample(
        y_plane, y_stride, 1, y_rows, y_cols, yv_start, yv_weights, yh_start, yh_weights, y, x, in_x, KYV, KYH
    )
    cb = unit * _resample(
        u_plane, c_stride, c_step, c_rows, c_cols, cv_start, cv_weights, ch_start, ch_weights, y, x, in_x, KCV, KCH
    )
    cr = unit * _resample(
        v_plane, c_stride, c_step, c_rows, c_cols, cv_start, cv_weights, ch_start, ch_weights, y, x, in_x, KCV, KCH
    )
    where = base + y * step_y + x * step_x
    for channel in tl.static_range(3):
        row = coefficients + channel * 4
        value = tl.load(row) * luma + tl.load(row + 1) * cb + tl.load(row + 2) * cr + tl.load(row + 3)
        value = tl.minimum(tl.maximum(value + 0.5, 0.0), 255.0)
        tl.store(out + where + channel, value.to(tl.uint8), mask=in_x)


@triton.jit
def frames_to_patches(
    frames,
    out,
    norm,
    num_frames,
    height,
    width,
    blocks_high,
    blocks_wide,
    PATCH: tl.constexpr,
    TEMPORAL: tl.constexpr,
    MERGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a patch: its [3, TEMPORAL, PATCH, PATCH] bytes, normalised, in the order of the vision tower."""
    patch = tl.program_id(0).to(tl.int64)
    across, down = patch % MERGE, patch // MERGE % MERGE
    block = patch // (MERGE * MERGE)
    left = (block % blocks_wide * MERGE + across) * PATCH
    top = (block // blocks_wide % blocks_high * MERGE + down) * PATCH
    first = block // (blocks_wide * blocks_high) * TEMPORAL
    n = tl.arange(0, BLOCK)
    inside = n < 3 * TEMPORAL * PATCH * PATCH
    channel = n // (TEMPORAL * PATCH * PATCH)
    frame = tl.minimum(first + n // (PATCH * PATCH) % TEMPORAL, num_frames - 1)
    where = ((frame * height + top + n // PATCH % PATCH) * width + left + n % PATCH) * 3 + channel
    value = tl.load(frames + where, mask=inside, other=0).to(tl.float32)
    mean = tl.load(norm + channel, mask=inside, other=0.0)
    std = tl.load(norm + 3 + channel, mask=inside, other=1.0)
    value = tl.math.div_rn(value - mean, std)
    tl.store(out + patch * (3 * TEMPORAL * PATCH * PATCH) + n, value.to(out.dtype.element_ty), mask=inside)
