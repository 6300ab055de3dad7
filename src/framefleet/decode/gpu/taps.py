"""Resampling weights and colour coefficients, as plain numpy: what the GPU pass reads, and what tests check.

The filter is the antialiased bicubic (a = -0.5) that Pillow, and torch with `antialias=True`, use: the kernel is
widened by the reduction, weights are normalised per output pixel, taps outside the picture are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

BICUBIC_A = -0.5
LUMA_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}
"""Matrix -> (K_R, K_B), from ITU-R BT.601, BT.709 and BT.2020 (non-constant luminance)."""


@dataclass(frozen=True, slots=True)
class Taps:
    """For each of `out` output positions: the first source sample and `K` weights that sum to one."""

    start: Int32
    """[out]"""
    weights: Float32
    """[out, K], zero beyond the picture."""


def bicubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The cubic convolution kernel with a = -0.5, support 2."""
    x = np.abs(x)
    near = ((BICUBIC_A + 2) * x - (BICUBIC_A + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * BICUBIC_A
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def resample_taps(num_samples: int, out: int, extent: float | None = None, shift: float = 0.0) -> Taps:
    """Weights that bring `num_samples` to `out` positions.

    `extent` is the width of the source in its own samples (default `num_samples`; half the luma width for chroma of
    odd-sized pictures), `shift` moves the sampling points by that many samples (0.25 for left-sited chroma).
    """
    scale = (extent if extent is not None else float(num_samples)) / out
    widen = max(scale, 1.0)
    support = 2.0 * widen
    centre = (np.arange(out) + 0.5) * scale + shift
    first = np.maximum(0, (centre - support + 0.5).astype(np.int64))
    past = np.minimum(num_samples, (centre + support + 0.5).astype(np.int64))
    first = np.minimum(first, num_samples - 1)
    past = np.maximum(past, first + 1)
    taps = first[:, None] + np.arange(int((past - first).max()))[None, :]
    weights = bicubic((taps + 0.5 - centre[:, None]) / widen)
    weights[taps >= past[:, None]] = 0.0
    total = weights.sum(axis=1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    weights[np.flatnonzero(total[:, 0] == 0), 0] = 1.0
    return Taps(first.astype(np.int32), weights.astype(np.float32))


def colour_coefficients(matrix: str, *, is_full_range: bool) -> Float32:
    """[3, 4] affine map from (Y, Cb, Cr, 1), in 8-bit units, to RGB in 0..255."""
    k_r, k_b = LUMA_WEIGHTS[matrix]
    k_g = 1.0 - k_r - k_b
    y_gain, c_gain, y_zero = (1.0, 1.0, 0.0) if is_full_range else (255 / 219, 255 / 224, 16.0)
    cb_to_rgb = np.array([0.0, -2 * k_b * (1 - k_b) / k_g, 2 * (1 - k_b)]) * c_gain
    cr_to_rgb = np.array([2 * (1 - k_r), -2 * k_r * (1 - k_r) / k_g, 0.0]) * c_gain
    offset = -y_gain * y_zero - 128.0 * (cb_to_rgb + cr_to_rgb)
    return np.stack([np.full(3, y_gain), cb_to_rgb, cr_to_rgb, offset], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Orientation:
    """Where a decoded pixel (y, x) of the small picture lands in the upright one: `base + y * step_y + x * step_x`."""

    base: int
    step_y: int
    step_x: int
    upright_height: int
    upright_width: int


def orient(height: int, width: int, rotation_deg: int, *, hflip: bool) -> Orientation:
    """Offsets in elements of a C-contiguous [H, W, 3] upright picture, for a decoded picture of height x width.

    The picture is mirrored left-right first (`hflip`), then turned clockwise by `rotation_deg`.
    """
    upright_h, upright_w = (height, width) if rotation_deg % 180 == 0 else (width, height)
    row = upright_w * 3
    base, step_y, step_x = {
        0: (0, row, 3),
        90: ((height - 1) * 3, -3, row),
        180: ((height - 1) * row + (width - 1) * 3, -row, -3),
        270: ((width - 1) * row, 3, -row),
    }[rotation_deg]
    if hflip:
        base, step_x = base + (width - 1) * step_x, -step_x
    return Orientation(base, step_y, step_x, upright_h, upright_w)
