"""Clips decoded before hold the model's frames at its size; half of them make shorter prompts."""

import base64
from pathlib import Path

import msgspec
import pytest
from bench_experiments import trial

import framefleet
from framefleet.bench.ablations import FALLBACK, always_takes_as_many, policy_for, prepare_clips, why_invalid
from framefleet.errors import ConfigError, FramefleetError
from framefleet.scenes import sample_clips

CORPUS = Path(__file__).parents[1] / "corpus" / "files"
CLIP = str(sample_clips()[0].path)


def decoded(clip):
    return framefleet.decode(base64.b64decode(clip.head.partition(b",")[2]), num_frames=1000)


def test_a_rate_rule_has_every_second_frame_left_out():
    whole = framefleet.decode(CLIP, FALLBACK)
    prepared = prepare_clips([CLIP], FALLBACK)
    before, half = decoded(prepared.decoded_before[0]), decoded(prepared.half_frames[0])
    assert len(before) == len(whole)
    assert len(half) == (len(whole) + 1) // 2
    assert before.data.shape == whole.data.shape
    assert abs(before.data.astype(int) - whole.data.astype(int)).mean() < 4
    assert before.fps == pytest.approx(half.fps, rel=0.05)


def test_a_rule_that_always_takes_as_many_has_smaller_frames():
    policy = policy_for("dashcam_tiny", {})
    assert always_takes_as_many(policy)
    prepared = prepare_clips([CLIP], policy)
    before, half = decoded(prepared.decoded_before[0]), decoded(prepared.half_frames[0])
    assert len(before) == len(half) == 16
    assert half.data[0].size < 0.7 * before.data[0].size
    again = framefleet.decode(base64.b64decode(prepared.decoded_before[0].head.partition(b",")[2]), policy)
    assert again.data.shape == before.data.shape  # the model's processor keeps it


def test_what_the_server_changes_in_the_rule():
    assert policy_for("dashcam_tiny", {"max_frames": 8, "min_frames": 8}).max_frames == 8
    assert policy_for("/no/such/model", {}) == FALLBACK
    with pytest.raises(ConfigError, match="no such rule"):
        policy_for("dashcam_tiny", {"max_frames": "many"})


def test_clips_that_cannot_be_decoded_are_left_out_with_the_reason():
    broken = str(CORPUS / "html_404.mp4")
    prepared = prepare_clips([broken, CLIP], FALLBACK)
    assert list(prepared.left_out) == [broken]
    assert len(prepared.decoded_before) == 1
    with pytest.raises(FramefleetError):
        prepare_clips([broken], FALLBACK)


def of_length(tokens):
    one = trial()
    measured = tuple(msgspec.structs.replace(m, prompt_tokens=tokens) for m in one.measurements)
    return [msgspec.structs.replace(one, measurements=measured)]


def test_an_ablation_that_changed_something_else_is_invalid():
    assert why_invalid(of_length(1000), of_length(1010), is_shorter=False) == ""
    assert "not as long" in why_invalid(of_length(1000), of_length(700), is_shorter=False)
    assert why_invalid(of_length(1000), of_length(550), is_shorter=True) == ""
    assert "not shorter" in why_invalid(of_length(1000), of_length(990), is_shorter=True)
