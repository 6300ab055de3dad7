"""Options: names, types, the model's policy and what changes it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.engine.embedded.frame_policy import frame_policy_for
from framefleet.errors import ConfigError
from framefleet.vllm_plugin.options import (
    REQUEST_OPTIONS,
    STARTUP_ONLY,
    LoaderOptions,
    decode_options,
    frames_for,
    model_frames,
    parse_loader_options,
    without_startup_only,
)

TINY = frames_for("dashcam_tiny")


def test_without_options_it_is_the_policy_of_the_embedded_engine_at_sizes_that_the_processor_keeps():
    policy = frame_policy_for("dashcam_tiny")
    assert decode_options(LoaderOptions(), TINY) == msgspec.structs.replace(policy, keeps_size=True, hw_decoders=2)


@pytest.mark.parametrize(
    "asked",
    [
        {"fsp": 2},
        {"fps": 0},
        {"fps": -1},
        {"max_frames": "many"},
        {"min_frames": 0},
        {"timeout_s": 0},
        {"size": [1, 2]},
    ],
)
def test_wrong_options_are_refused(asked):
    with pytest.raises(ConfigError, match=r"wrong option of the video loader.*max_frames"):
        parse_loader_options(asked)


def test_half_a_picture_size_is_refused():
    with pytest.raises(ConfigError, match="max_width and max_height together"):
        parse_loader_options({"max_width": 1920})


@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"hw_decoders": 0}, {"pool_size": 17}, {"pool_size": "2"}])
def test_what_cannot_be_done_on_the_gpu_is_refused_and_not_ignored(asked):
    with pytest.raises(ConfigError, match=next(iter(asked))):
        parse_loader_options(asked)


def test_sizes_of_gpu_decoding_are_passed_on():
    wanted = decode_options(parse_loader_options({"hw_decoders": 4, "pool_size": 8}), TINY)
    assert (wanted.hw_decoders, wanted.pool_size) == (4, 8)


@given(st.none() | st.integers(1, 1000), st.none() | st.integers(1, 1000))
def test_bounds_never_contradict_each_other(least, most):
    wanted = decode_options(LoaderOptions(min_frames=least, max_frames=most), TINY)
    assert wanted.max_frames == (most or TINY.policy.max_frames)
    assert wanted.min_frames == min(least or TINY.policy.min_frames, wanted.max_frames)


def test_size_is_that_of_the_processor_changed():
    frames = frames_for("dashcam_tiny", (("longest_edge", 500_000),))
    assert frames.policy.total_pixels == 500_000
    assert frames.policy.min_total_pixels == TINY.policy.min_total_pixels


def test_a_size_of_another_kind_of_processor_is_refused():
    with pytest.raises(ConfigError, match="longest_edge and shortest_edge"):
        frames_for("dashcam_tiny", (("height", 64),))


def test_the_picture_limit_is_a_limit_on_pixels():
    assert decode_options(LoaderOptions(max_width=1920, max_height=1080), TINY).max_source_pixels == 1920 * 1080


def test_the_model_comes_from_the_options_then_from_the_environment():
    assert model_frames(LoaderOptions(model="dashcam_tiny"), "/nowhere") == TINY
    assert model_frames(LoaderOptions(), "dashcam_tiny") == TINY
    with pytest.raises(ConfigError, match="FRAMEFLEET_MODEL"):
        model_frames(LoaderOptions(), "")


def test_every_option_is_either_the_requests_or_the_starts():
    names = set(LoaderOptions.__struct_fields__)
    assert names >= REQUEST_OPTIONS
    assert REQUEST_OPTIONS.isdisjoint(STARTUP_ONLY)
    kept, dropped = without_startup_only(dict.fromkeys(names | {"num_frames", "video_backend"}))
    assert set(kept) == REQUEST_OPTIONS | {"num_frames", "video_backend"}
    assert set(dropped) == names - REQUEST_OPTIONS
