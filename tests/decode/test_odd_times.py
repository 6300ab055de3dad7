"""Clips whose times are odd: the frames come in the order they are shown in, at times that can be believed."""

from __future__ import annotations

import subprocess
from fractions import Fraction

import numpy as np
import pytest
from barcode_clips import WIDTH, write_clip
from corpus_truth import read_barcode
from odd_clips import mux, packets_of

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


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("container", ["mp4", "avi"])
@pytest.mark.parametrize("gop", [5, 7])
def test_mpeg4_of_a_varying_rate_has_no_joins(tmp_path, gop, container, b_frames):
    times = [(row if row < 15 else 3 * row - 30 if row < 25 else row + 20) / 30 for row in range(FRAMES)]
    path = tmp_path / f"vfr.{container}"
    write_clip(path, FRAMES, codec="mpeg4", gop=gop, b_frames=b_frames, times=times, time_base=Fraction(1, 30))
    frames = decode(path)
    assert shown(frames) == list(range(FRAMES))
    assert frames.pts_s == pytest.approx(times, abs=1e-6)
    assert frames.stats.num_missing == 0


def test_a_pause_comes_where_it_belongs_though_no_packet_tells_when_it_is_shown(tmp_path):
    times = [(row + 60 * (row > 14)) / 30 for row in range(FRAMES)]
    path = write_clip(tmp_path / "pause.avi", FRAMES, codec="mpeg4", times=times, time_base=Fraction(1, 30))
    frames = decode(path)
    assert "packets carry no pts: decoded to find the frames" in frames.stats.notes
    assert shown(frames) == list(range(FRAMES))
    assert frames.pts_s == pytest.approx(times, abs=1e-6)


def test_two_frames_of_a_program_stream(tmp_path):
    path = write_clip(tmp_path / "two.mpg", 2, codec="mpeg2video", fps=25, time_base=Fraction(1, 25))
    assert np.diff(decode(path).pts_s) == pytest.approx([0.04], abs=1e-3)


def test_what_an_mxf_promised_is_missed(tmp_path):
    path = write_clip(tmp_path / "whole.mxf", FRAMES, codec="mpeg2video", fps=25, time_base=Fraction(1, 25))
    cut = tmp_path / "cut.mxf"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    assert decode(path).stats.num_missing == 0
    frames = decode(cut)
    assert shown(frames) == np.rint((frames.pts_s - frames.pts_s[0]) * 25).astype(int).tolist()
    assert len(frames) + frames.stats.num_missing == FRAMES


@pytest.mark.parametrize(
    ("codec", "container"), [("libtheora", "ogv"), ("libsvtav1", "obu"), ("wrapped_avframe", "y4m")]
)
def test_a_cut_where_nothing_but_the_end_tells(tmp_path, codec, container):
    path = tmp_path / f"whole.{container}"
    source = ["-f", "lavfi", "-i", "testsrc2=s=176x144:r=25:d=1.2", "-pix_fmt", "yuv420p", "-g", "5"]
    subprocess.run(["ffmpeg", "-v", "error", *source, "-c:v", codec, str(path)], check=True)
    whole = decode(path)
    assert (len(whole), whole.stats.num_missing) == (FRAMES, 0)
    cut = tmp_path / f"cut.{container}"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    frames = decode(cut)
    assert np.array_equal(frames.data, whole.data[: len(frames)])
    assert frames.stats.num_missing >= 1
    has_clock = "the source has no clock: 25 frames per second are assumed" not in whole.stats.notes
    assert has_clock == (container != "obu")


def test_parts_joined_with_a_pause_between_have_lost_nothing(tmp_path):
    plain = write_clip(tmp_path / "plain.mp4", FRAMES, codec="mpeg2video", gop=10, time_base=Fraction(1, 30))
    step = 512  # ticks of a frame in the MP4
    part = [(content, pts // step, dts // step, is_key) for content, pts, dts, is_key in packets_of(plain)]
    later = [(content, pts + 120, dts + 120, is_key) for content, pts, dts, is_key in part]
    frames = decode(mux(tmp_path / "joined.mkv", plain, part + later))
    assert shown(frames) == [*range(FRAMES), *range(FRAMES)]
    assert frames.pts_s[FRAMES] - frames.pts_s[0] == pytest.approx(4, abs=1e-3)
    assert frames.stats.num_missing == 0


@pytest.mark.parametrize("fps", [Fraction(25), Fraction(30_000, 1001)])
def test_midnight_is_no_join(tmp_path, fps):
    options = {"gop_timecode": "23:59:58:10", "flags": "-cgop"}
    if fps.denominator > 1:
        options["drop_frame_timecode"] = "1"
    path = write_clip(
        tmp_path / "midnight.ts", 70, codec="mpeg2video", fps=fps, gop=9, time_base=1 / fps, options=options
    )
    frames = decode(path)
    assert shown(frames) == list(range(70))
    assert frames.stats.notes == []
