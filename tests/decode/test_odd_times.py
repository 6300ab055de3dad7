"""Clips whose times are odd: the frames come in the order they are shown in, at times that can be believed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from barcode_clips import WIDTH, write_clip
from corpus_truth import read_barcode

import framefleet
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

FRAMES = 30


def decode(path):
    return framefleet.decode(path, num_frames=1000)


def shown(frames):
    return [read_barcode(frame, WIDTH) for frame in frames.data]


def alone(path, row):
    clip = scan(VideoSource.of(path))
    plan = plan_decode(clip.index, FrameTargets(np.array([row])), clip.info.width, clip.info.height)
    return shown(PyAvBackend().decode(clip, plan, DecodeOptions(backend="pyav")))


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("back_s", [0.13, 0.3, 0.45])
def test_a_live_clock_that_jumps_back_a_little(tmp_path, b_frames, back_s):
    one = write_clip(tmp_path / "one.ts", FRAMES, b_frames=b_frames)
    times = [1 - back_s + row / 30 for row in range(FRAMES)]
    two = write_clip(tmp_path / "two.ts", FRAMES, b_frames=b_frames, times=times)
    path = tmp_path / "joined.ts"
    path.write_bytes(one.read_bytes() + two.read_bytes())
    frames = decode(path)
    assert shown(frames) == [*range(FRAMES), *range(FRAMES)]
    assert np.diff(frames.pts_s) == pytest.approx(np.full(2 * FRAMES - 1, 1 / 30), abs=1e-3)


def test_interlaced_mpeg4_with_b_vops_from_anywhere(tmp_path):
    options = {"flags": "+ilme+ildct"}
    path = write_clip(tmp_path / "clip.mp4", FRAMES, codec="mpeg4", time_base=Fraction(1, 30), options=options)
    assert shown(decode(path)) == list(range(FRAMES))
    assert [alone(path, row) for row in range(FRAMES)] == [[row] for row in range(FRAMES)]


@pytest.mark.parametrize(("codec", "container"), [("mpeg1video", "m1v"), ("mpeg2video", "m2v")])
def test_elementary_streams_run_evenly(tmp_path, codec, container):
    path = write_clip(tmp_path / f"clip.{container}", FRAMES, codec=codec, time_base=Fraction(1, 30))
    frames = decode(path)
    assert shown(frames) == list(range(FRAMES))
    assert np.diff(frames.pts_s) == pytest.approx(np.full(FRAMES - 1, 1 / 30), abs=1e-6)
