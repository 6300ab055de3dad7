"""Sparse decodes of AV1 leave out what nobody leans on, frame by frame, and are equal to whole ones to the bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from barcode_clips import WIDTH, write_clip
from hypothesis import given, settings
from hypothesis import strategies as st

import framefleet
from framefleet.decode.backends.fake import read_barcode
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.media import scan as scanning
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

STORED = sorted(path for path in (Path(__file__).parent / "av1").iterdir() if path.suffix in (".mkv", ".obu"))
SVT = {
    "pyramid": "",
    "six levels": "hierarchical-levels=5",
    "film grain": "film-grain=12",
    "superres": "superres-mode=2",
    "resized": "resize-mode=2",
    "intra-only": "irefresh-type=1",
    "low delay": "pred-struct=1:rtc=1",
    "screen": "scm=1",
}


@pytest.fixture(scope="module")
def svt(tmp_path_factory):
    """Name -> path."""
    folder = tmp_path_factory.mktemp("svt")

    @cache
    def make(name):
        options = {"preset": "10", "crf": "40", "svtav1-params": ":".join(filter(None, ["lp=1", SVT[name]]))}
        return write_clip(folder / f"{name}.mp4", 60, codec="libsvtav1", gop=30, options=options)

    return make


@cache
def clip_of(path):
    clip = scan(VideoSource.of(path))
    assert clip.index.coded_frames is not None
    assert not any("AV1" in note for note in clip.index.notes)
    return clip


@cache
def whole(path):
    """[N, H, W, 3] every frame, by one run that leaves nothing out."""
    clip = clip_of(path)
    plan = plan_of(clip, range(60))
    assert [(g.first_packet, g.last_packet, len(g.skip_packets), len(g.cuts)) for g in plan.groups] == [(0, 59, 0, 0)]
    frames = PyAvBackend().decode(clip, plan, DecodeOptions()).data
    assert [read_barcode(frame, 192 if path in STORED else WIDTH) for frame in frames] == list(range(60))
    return frames


def plan_of(clip, rows):
    return plan_decode(clip.index, FrameTargets(np.array(rows, np.int64)), clip.info.width, clip.info.height)


def check(path, rows, num_threads=1):
    clip = clip_of(path)
    frames = PyAvBackend().decode(clip, plan_of(clip, rows), DecodeOptions(num_ffmpeg_threads=num_threads))
    assert frames.indices.tolist() == rows
    assert np.array_equal(frames.data, whole(path)[rows])
    assert not frames.stats.num_missing
    assert not frames.stats.num_corrupt


ROWS = st.lists(st.integers(0, 59), min_size=1, max_size=6).map(sorted)


@pytest.mark.parametrize("name", SVT)
@settings(max_examples=20)
@given(rows=ROWS, num_threads=st.sampled_from([1, 3]))
def test_svt_clips_to_the_bit(svt, name, rows, num_threads):
    check(svt(name), rows, num_threads)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
@settings(max_examples=20)
@given(rows=ROWS)
def test_libaom_clips_to_the_bit(path, rows):
    check(path, rows)


@pytest.mark.parametrize("name", ["pyramid", "film grain", "superres", "intra-only"])
def test_every_single_frame_costs_its_pyramid_only(svt, name):
    path = svt(name)
    for row in range(60):
        check(path, [row])
    fed = [plan_of(clip_of(path), [row]).frames_walked for row in range(60)]
    assert max(fed) <= 8
    assert min(fed) == 1


def test_frames_are_cut_out_of_packets_that_stay(svt):
    plan = plan_of(clip_of(svt("pyramid")), [12])
    assert len(plan.groups[0].cuts) >= 2


def test_unread_av1_is_decoded_whole_and_says_so(svt, monkeypatch):
    def torn(*args, **options):
        table = table_of(*args, **options)
        return type(table)(**{name: getattr(table, name) for name in table.__slots__} | {"coded_frames": None})

    table_of = scanning.table_of
    monkeypatch.setattr(scanning, "table_of", torn)
    frames = framefleet.decode(svt("pyramid"), num_frames=3, backend="pyav")
    assert any("AV1 of an unusual kind" in note for note in frames.stats.notes)
    assert frames.stats.frames_walked == 31  # packet 0, and 30 to 59
