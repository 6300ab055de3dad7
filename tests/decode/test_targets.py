"""From options to rows and size: what is asked for is done or refused, never half done."""

from dataclasses import replace

import numpy as np
import pytest

from framefleet.decode.backends.fake import FakeClip, scan_fake
from framefleet.decode.options import DecodeOptions
from framefleet.decode.targets import choose_targets, output_size, sampler_for
from framefleet.errors import ConfigError, SourceUnsupported
from framefleet.units import NS_PER_S, Span

CLIP = scan_fake(FakeClip(num_frames=300, fps=30.0, width=1920, height=1080).source)


def rows(**asked):
    return choose_targets(CLIP.index, DecodeOptions(**asked)).rows.tolist()


def test_sixteen_frames_unless_told_otherwise():
    assert rows() == rows(num_frames=16) == [round(x) for x in np.linspace(0, 299, 16)]


def test_each_way_of_asking():
    assert rows(num_frames=4) == [0, 100, 199, 299]
    assert rows(fps=1) == list(range(0, 300, 30))
    assert rows(fps=1, max_frames=4) == [0, 90, 180, 270]
    assert rows(fps=0.1, min_frames=3) == [0, 150, 299]
    assert rows(rule="qwen3_vl") == [round(x) for x in np.linspace(0, 299, 20)]
    assert rows(rule="qwen3_vl", fps=1.0, max_frames=5) == [0, 75, 150, 224, 299]
    assert rows(num_frames=3, max_duration_s=1.0) == [0, 14, 29]


def test_a_span_is_half_open_and_keeps_the_clips_rows():
    span = Span(NS_PER_S, 2 * NS_PER_S)
    assert rows(span=span, fps=30) == list(range(30, 60))
    assert rows(span=span, num_frames=2) == [30, 59]
    assert rows(span=Span(0, 1), num_frames=4) == [0]


def test_an_empty_span_says_what_there_is():
    with pytest.raises(SourceUnsupported, match=r"0\.000-10\.000s"):
        rows(span=Span(20 * NS_PER_S, 21 * NS_PER_S))


@pytest.mark.parametrize(
    "asked",
    [
        {"fps": 2.0, "num_frames": 4},
        {"rule": "qwen3_vl", "num_frames": 4},
        {"num_frames": 4, "max_frames": 2},
        {"min_frames": 2},
        {"fps": 2.0, "min_frames": 9, "max_frames": 2},
        {"rule": "no_such_rule"},
        {"num_frames": 0},
        {"fps": -1.0},
    ],
)
def test_contradictions_are_refused(asked):
    with pytest.raises(ConfigError):
        sampler_for(DecodeOptions(**asked))


def size(num_frames=16, **asked):
    return output_size(CLIP.info, num_frames, DecodeOptions(**asked))


def test_sizes():
    assert size() == (1920, 1080)
    assert size(size=(320, 180)) == (320, 180)
    assert size(max_pixels=1280 * 720) == (1280, 720)
    assert size(size_factor=32) == (1920, 1088)
    assert size(total_pixels=16 * 1024 * 576, size_factor=32) == (1024, 576)


def test_an_upright_picture_keeps_its_shape():
    turned = replace(CLIP.info, width=1080, height=1920, rotation_deg=90)
    assert output_size(turned, 16, DecodeOptions(max_pixels=1280 * 720)) == (720, 1280)


@pytest.mark.parametrize(
    "asked",
    [
        {"size": (0, 10)},
        {"size": (100, 100), "size_factor": 32},
        {"size": (64, 64), "max_pixels": 99},
        {"size_factor": 0},
        {"max_pixels": 0},
    ],
)
def test_impossible_sizes_are_refused(asked):
    with pytest.raises(ConfigError):
        size(**asked)
