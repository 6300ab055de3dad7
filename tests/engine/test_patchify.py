import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framefleet.engine.embedded.patchify import Normalisation, patchify
from framefleet.errors import CaptionRejected

NORM = Normalisation((0.48, 0.45, 0.40), (0.26, 0.27, 0.28))


def one_patch(frames, grid, number, sizes):
    """Patch `number` cut out by hand: merge blocks in raster order, inside each its patches in raster order."""
    patch, temporal, merge = sizes
    _, h, w = grid
    per_time = h * w
    at_t, rest = divmod(number, per_time)
    block, inside = divmod(rest, merge * merge)
    block_y, block_x = divmod(block, w // merge)
    y, x = block_y * merge + inside // merge, block_x * merge + inside % merge
    times = [min(at_t * temporal + k, len(frames) - 1) for k in range(temporal)]
    cut = frames[times, y * patch : (y + 1) * patch, x * patch : (x + 1) * patch].astype(np.float32)
    normal = (cut / 255 - np.array(NORM.mean, np.float32)) / np.array(NORM.std, np.float32)
    return normal.transpose(3, 0, 1, 2).reshape(-1)  # channel, time, y, x


@settings(max_examples=30)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.sampled_from([2, 4]), st.integers(1, 3), st.integers(1, 2)),
    st.data(),
)
def test_every_patch_holds_what_was_there(shape, sizes, data):
    (num_frames, rows, columns), (patch, temporal, merge) = shape, sizes
    rng = np.random.default_rng(num_frames)
    frames = rng.integers(0, 256, (num_frames, rows * patch * merge, columns * patch * merge, 3), np.uint8)
    patches, grid = patchify(frames, NORM, patch_size=patch, temporal_patch_size=temporal, merge_size=merge)
    assert grid == (-(-num_frames // temporal), rows * merge, columns * merge)
    assert patches.shape == (np.prod(grid), 3 * temporal * patch * patch)
    assert patches.dtype == torch.float32
    number = data.draw(st.integers(0, len(patches) - 1))
    expected = one_patch(frames, grid, number, (patch, temporal, merge))
    np.testing.assert_allclose(patches[number].numpy(), expected, atol=1e-5)


def test_the_last_frame_fills_the_temporal_patch():
    frames = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    filled = np.concatenate([frames, frames[-1:]])
    assert torch.equal(patchify(frames, NORM)[0], patchify(filled, NORM)[0])


@pytest.mark.parametrize("shape", [(2, 33, 32, 3), (2, 32, 48, 3)])
def test_odd_sizes_are_refused(shape):
    with pytest.raises(CaptionRejected, match="multiples of 32"):
        patchify(np.zeros(shape, np.uint8), NORM)


def test_frames_are_not_changed_and_may_be_strided():
    frames = np.random.default_rng(0).integers(0, 256, (4, 64, 32, 3), np.uint8)
    before = frames.copy()
    patches, _ = patchify(frames[::2, ::-1][:, :32], NORM)
    assert torch.equal(patches, patchify(np.ascontiguousarray(frames[::2, ::-1][:, :32]), NORM)[0])
    assert np.array_equal(frames, before)
