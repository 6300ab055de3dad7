"""Sizes are fixed points of the rule, and no other than its own wherever that is one already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.options import DecodeOptions
from framefleet.sampling.size import size_for_budget
from framefleet.vllm_plugin.settled_size import settled

BUDGET = {"total_pixels": 760_960, "min_total_pixels": 4096, "size_factor": 32}
POLICY = DecodeOptions(rule="qwen3_vl", **BUDGET)


def size(options: DecodeOptions, width: int, height: int, num_frames: int) -> tuple[int, int]:
    budget = {name: getattr(options, name) for name in BUDGET}
    return size_for_budget(width, height, num_frames, **budget)


def test_the_rule_itself_does_not_keep_what_it_chose_for_three_frames():
    once = size(POLICY, 1920, 1080, 3)
    assert size(POLICY, *once, 3) != once


@given(st.integers(240, 3840), st.integers(240, 2160), st.integers(2, 64))
def test_settled_sizes_are_kept_by_the_processor(width, height, num_frames):
    once = size(settled(POLICY, width, height, num_frames), width, height, num_frames)
    assert size(POLICY, *once, num_frames) == once


@given(st.integers(240, 3840), st.integers(240, 2160), st.integers(1, 16))
def test_whole_pairs_of_frames_have_the_rules_own_size(width, height, pairs):
    assert settled(POLICY, width, height, 2 * pairs) is POLICY


@pytest.mark.parametrize("num_frames", [3, 7])
def test_without_a_budget_of_all_frames_nothing_changes(num_frames):
    options = DecodeOptions(max_pixels=100_000, size_factor=28)
    assert settled(options, 1920, 1080, num_frames) is options
