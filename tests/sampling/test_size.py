"""Sizes: equal to transformers' own smart_resize, and within the budget where one is given."""

import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from framefleet.errors import ConfigError, SourceUnsupported
from framefleet.sampling.size import kept_size, size_for_budget, smart_resize, smart_resize_image

sides = st.integers(1, 8192)
factors = st.sampled_from([28, 32])
budgets = st.tuples(st.integers(28 * 28, 1 << 18), st.integers(1 << 18, 1 << 26))


def theirs():
    from transformers.models.qwen3_vl import video_processing_qwen3_vl

    return video_processing_qwen3_vl.smart_resize


def their_image_rule():
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

    return image_processing_pil_qwen2_vl.smart_resize


@given(st.integers(2, 800), sides, sides, factors, budgets)
def test_video_rule_equals_transformers(frames, height, width, factor, budget):
    low, high = budget
    try:
        expected = theirs()(frames, height, width, 2, factor, low, high)
    except ValueError:
        with pytest.raises(SourceUnsupported, match="aspect"):
            smart_resize(frames, height, width, factor=factor, min_pixels=low, max_pixels=high)
        return
    assert smart_resize(frames, height, width, factor=factor, min_pixels=low, max_pixels=high) == expected


@given(sides, sides, factors, budgets)
def test_image_rule_equals_transformers(height, width, factor, budget):
    low, high = budget
    try:
        expected = their_image_rule()(height, width, factor, low, high)
    except ValueError:
        with pytest.raises(SourceUnsupported, match="aspect"):
            smart_resize_image(height, width, factor=factor, min_pixels=low, max_pixels=high)
        return
    assert smart_resize_image(height, width, factor=factor, min_pixels=low, max_pixels=high) == expected


def test_video_rule_wants_a_whole_temporal_patch():
    with pytest.raises(ConfigError, match="temporal patch"):
        smart_resize(1, 720, 1280)


def test_one_frame_is_sized_as_if_repeated_to_the_temporal_patch():
    budget = {"total_pixels": 768 * 32 * 32, "min_total_pixels": 128 * 32 * 32, "size_factor": 32}
    assert size_for_budget(1920, 1080, 1, **budget) == size_for_budget(1920, 1080, 2, **budget)


def test_known_sizes():
    qwen3 = {"total_pixels": 768 * 32 * 32, "min_total_pixels": 128 * 32 * 32, "size_factor": 32}
    assert size_for_budget(1920, 1080, 16, **qwen3) == (288, 160)
    assert size_for_budget(1920, 1080, 2, total_pixels=2 * 1024 * 576, size_factor=32) == (1024, 576)
    assert size_for_budget(1920, 1080, 16, max_pixels=1280 * 720) == (1280, 720)
    assert size_for_budget(176, 144, 16) == (176, 144)
    assert size_for_budget(100, 50, 16, size_factor=32) == (96, 64)


@given(sides, sides, st.integers(1, 64), st.integers(1, 1 << 24))
def test_a_pixel_budget_of_one_frame_holds_and_keeps_the_shape(width, height, frames, max_pixels):
    out = size_for_budget(width, height, frames, max_pixels=max_pixels)
    assert min(out) >= 1
    if min(out) > 1:
        assert out[0] * out[1] <= max_pixels
    scale = math.sqrt(out[0] * out[1] / (width * height))
    if min(out) > 20:
        assert out[0] / width == pytest.approx(scale, rel=0.06)
        assert out[1] / height == pytest.approx(scale, rel=0.06)
    assert out[0] <= width
    assert out[1] <= height


@given(sides, sides, st.integers(2, 64), st.integers(1 << 14, 1 << 24), st.integers(1 << 14, 1 << 20))
def test_budgets_combine_to_the_tighter_one(width, height, frames, total, per_frame):
    assume(max(width, height) / min(width, height) < 20)
    out_width, out_height = size_for_budget(
        width, height, frames, total_pixels=total, max_pixels=per_frame, size_factor=32
    )
    assert out_width % 32 == out_height % 32 == 0
    if min(out_width, out_height) > 32:
        frames_counted = min(frames, 2 * round(frames / 2))
        assert out_width * out_height * frames_counted <= min(total, per_frame * frames)


@pytest.mark.parametrize("size_factor", [1, 32])
def test_slivers_are_refused_only_where_the_model_rule_would(size_factor):
    if size_factor == 1:
        assert size_for_budget(2064, 10, 8, max_pixels=10_000) == (1436, 6)
        return
    with pytest.raises(SourceUnsupported, match="exact size"):
        size_for_budget(2064, 10, 8, max_pixels=10_000, size_factor=size_factor)


@pytest.mark.parametrize(
    "budget",
    [
        {"max_pixels": 0},
        {"min_pixels": 9, "max_pixels": 8},
        {"total_pixels": -1},
        {"min_total_pixels": 5, "total_pixels": 4},
    ],
)
def test_contradictory_budgets_are_refused(budget):
    with pytest.raises(ConfigError):
        size_for_budget(100, 100, 4, **budget)


BUDGET = {"total_pixels": 760_960, "min_total_pixels": 4096, "size_factor": 32}


def test_the_rule_itself_does_not_keep_what_it_chose_for_three_frames():
    once = size_for_budget(1920, 1080, 3, **BUDGET)
    assert size_for_budget(*once, 3, **BUDGET) != once


@given(st.integers(240, 3840), st.integers(240, 2160), st.integers(2, 64))
@example(2930, 240, 62)
def test_kept_sizes_are_kept_by_the_processor(width, height, num_frames):
    once = kept_size(width, height, num_frames, **BUDGET)
    assert size_for_budget(*once, num_frames, **BUDGET) == once


@given(st.integers(240, 3840), st.integers(240, 2160), st.integers(1, 16))
def test_whole_pairs_of_frames_have_the_rules_own_size(width, height, pairs):
    assert kept_size(width, height, 2 * pairs, **BUDGET) == size_for_budget(width, height, 2 * pairs, **BUDGET)


@pytest.mark.parametrize("num_frames", [3, 7])
def test_without_a_budget_of_all_frames_the_rule_stands(num_frames):
    budget = {"max_pixels": 100_000, "size_factor": 28}
    assert kept_size(1920, 1080, num_frames, **budget) == size_for_budget(1920, 1080, num_frames, **budget)
