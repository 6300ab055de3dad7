"""Sources cut short are told from whole ones wherever the container gives a sign of it."""

from __future__ import annotations

import subprocess

import pytest
from barcode_clips import write_clip

from framefleet.media.scan import scan
from framefleet.media.source import VideoSource

FRAMES = 48


def num_lost(content):
    return scan(VideoSource.of(content)).index.num_lost


@pytest.mark.parametrize("container", ["mp4", "mkv", "avi", "flv", "ts", "m2ts"])
def test_a_cut_shows(tmp_path, container):
    path = write_clip(tmp_path / f"plain.{container}", FRAMES)
    if container == "mp4":
        subprocess.run(
            ["ffmpeg", "-v", "error", "-i", path, "-c", "copy", "-movflags", "+faststart", tmp_path / "fast.mp4"],
            check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        path = tmp_path / "fast.mp4"
    content = path.read_bytes()
    assert num_lost(content) == 0
    for kept in (0.5, 0.6, 0.8):
        at = int(len(content) * kept)
        in_a_packet = at - at % {"ts": 188, "m2ts": 192}.get(container, 1) + 100
        assert num_lost(content[:in_a_packet]) > 0


@pytest.mark.parametrize("rubbish", [b"\0" * 100, b"\xff" * 300, b"<html>"])
def test_rubbish_behind_a_transport_stream_is_no_cut(tmp_path, rubbish):
    content = write_clip(tmp_path / "plain.ts", FRAMES).read_bytes()
    assert num_lost(content + rubbish) == 0
