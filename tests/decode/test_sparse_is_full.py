"""A frame is the same whatever else is asked for: any rows of any file, against all rows of it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from corpus_truth import FILES, all_truths
from hypothesis import given, settings
from hypothesis import strategies as st

from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.errors import DecodeError
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

TOO_LARGE = {"h264_5120x2880.mp4", "many_frames_14000.mp4", "pixel_bomb_8k.mp4"}
NO_CLIPS = {"jpeg_named.mp4"}
READABLE = sorted({truth.name for truth in all_truths() if truth.facts["ok"]} - TOO_LARGE - NO_CLIPS)


def decoded(clip, rows):
    """row -> picture of those that are given."""
    plan = plan_decode(clip.index, FrameTargets(np.unique(rows)), clip.info.width, clip.info.height)
    try:
        frames = PyAvBackend().decode(clip, plan, DecodeOptions(backend="pyav"))
    except DecodeError:
        return {}
    return dict(zip(frames.indices.tolist(), frames.data, strict=True))


@cache
def whole(name):
    """The scanned clip and all that it gives."""
    clip = scan(VideoSource.of(FILES / name))
    return clip, decoded(clip, range(clip.index.num_frames))


@pytest.mark.slow
@pytest.mark.parametrize("name", READABLE)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(fractions=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=6))
def test_any_rows_are_as_among_all(name, fractions):
    clip, full = whole(name)
    rows = sorted({int(fraction * clip.index.num_frames) for fraction in fractions})
    found = decoded(clip, rows)
    assert set(found) == set(full) & set(rows), rows
    assert all(np.array_equal(picture, full[row]) for row, picture in found.items()), rows
