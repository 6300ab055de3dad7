"""The GPU pass's weights and colour coefficients, against Pillow and the published matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framefleet.decode.gpu.taps import colour_coefficients, orient, resample_taps


def apply(taps, line):
    columns = np.minimum(taps.start[:, None] + np.arange(taps.weights.shape[1]), len(line) - 1)
    return (line[columns] * taps.weights).sum(axis=1)


@given(st.integers(1, 300), st.integers(1, 120))
def test_weights_sum_to_one_and_stay_in_the_picture(num_samples, out):
    taps = resample_taps(num_samples, out)
    np.testing.assert_allclose(taps.weights.sum(axis=1), 1, atol=1e-5)
    used = np.where(taps.weights != 0, taps.start[:, None] + np.arange(taps.weights.shape[1]), 0)
    assert used.min() >= 0
    assert used.max() < num_samples


@pytest.mark.parametrize(("num_samples", "out"), [(320, 96), (97, 61), (64, 64), (30, 75)])
def test_same_filter_as_pillow(num_samples, out):
    line = np.random.default_rng(0).uniform(0, 255, num_samples).astype(np.float32)
    picture = Image.fromarray(np.repeat(line[None], 8, axis=0))
    expected = np.asarray(picture.resize((out, 8), Image.Resampling.BICUBIC))[4]
    np.testing.assert_allclose(apply(resample_taps(num_samples, out), line), expected, atol=0.05)


@pytest.mark.parametrize(
    ("matrix", "is_full", "yuv", "rgb"),
    [
        ("bt709", False, (16, 128, 128), (0, 0, 0)),
        ("bt709", False, (235, 128, 128), (255, 255, 255)),
        ("bt709", False, (63, 102, 240), (255, 0, 0)),
        ("bt601", False, (81, 90, 240), (255, 0, 0)),
        ("bt601", True, (76, 85, 255), (255, 0, 0)),
        ("bt2020", False, (235, 128, 128), (255, 255, 255)),
    ],
)
def test_known_colours(matrix, is_full, yuv, rgb):
    got = colour_coefficients(matrix, is_full_range=is_full) @ np.array([*yuv, 1], np.float32)
    np.testing.assert_allclose(np.clip(got, 0, 255), rgb, atol=2)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([0, 90, 180, 270]), st.booleans())
def test_orientation_is_mirror_then_turn(height, width, degrees, hflip):
    picture = np.arange(height * width * 3).reshape(height, width, 3)
    expected = np.rot90(picture[:, ::-1] if hflip else picture, -degrees // 90)
    place = orient(height, width, degrees, hflip=hflip)
    out = np.full(picture.size, -1)
    y, x, c = np.ogrid[:height, :width, :3]
    out[place.base + y * place.step_y + x * place.step_x + c] = picture
    assert (place.upright_height, place.upright_width) == expected.shape[:2]
    np.testing.assert_array_equal(out.reshape(expected.shape), expected)
