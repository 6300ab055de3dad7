"""What users hand over as a clip: file objects of all manners, names of all bytes, and things that are no clips."""

from __future__ import annotations

import io
import os
from urllib.parse import quote_from_bytes

import numpy as np
import pytest
from barcode_clips import write_clip

import framefleet
from framefleet.errors import ConfigError, SourceNotFound, SourceTooLarge, SourceUnavailable, SourceUnsupported
from framefleet.media.source import VideoSource

FRAMES = 6


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("source") / "clip.mp4", FRAMES)


class Trickle(io.RawIOBase):
    """Gives a few bytes at a time, and fails after `limit` of them."""

    def __init__(self, content, limit=None):
        self._content, self._limit, self._at = content, limit, 0

    def read(self, size=-1):
        if self._limit is not None and self._at >= self._limit:
            raise OSError("the disk is gone")
        piece = self._content[self._at : self._at + min(size if size >= 0 else 777, 777)]
        self._at += len(piece)
        return piece


class Endless(io.RawIOBase):
    def read(self, size=-1):
        return bytes(1 << 20)


def test_bytes_in_any_shape(clip):
    content = clip.read_bytes()
    want = framefleet.decode(clip).data
    for thing in (content, bytearray(content), memoryview(content), io.BytesIO(content), Trickle(content)):
        assert np.array_equal(framefleet.decode(thing).data, want)


def test_a_file_object_that_fails(clip):
    closed = clip.open("rb")
    closed.close()
    for file in (Trickle(clip.read_bytes(), limit=2000), closed):
        with pytest.raises(SourceUnavailable, match=r"file object failed.*try: "):
            framefleet.decode(file)


def test_an_endless_file_object_meets_the_limit():
    with pytest.raises(SourceTooLarge, match="max_source_bytes"):
        framefleet.decode(Endless(), max_source_bytes=1 << 24)


@pytest.mark.parametrize(
    "thing", [None, 5, ["clip.mp4"], io.StringIO("/etc/passwd"), "data:video/mp4;base64,AAAA"], ids=repr
)
def test_what_is_no_clip(thing):
    with pytest.raises(ConfigError, match=r"not a.*allowed: a path, a URL, bytes, a binary file object; try: "):
        framefleet.decode(thing)


@pytest.mark.parametrize("name", ["nowhere.mp4", "a\0b.mp4", "y" * 300, "z/" * 3000])
def test_names_that_lead_nowhere(name):
    with pytest.raises(SourceNotFound, match="try: check the path"):
        framefleet.decode(name)


@pytest.mark.parametrize("backend", ["pyav", "opencv", "torchcodec"])
@pytest.mark.parametrize(
    "name", [b"\xff\xfe.mp4", b"new\nline.mp4", b"-y.mp4", b"100%25?a#b.mp4", b"concat:a|b.mp4", b"img%03d.mp4"]
)
def test_a_path_is_a_path_whatever_its_bytes(tmp_path, monkeypatch, clip, name, backend):
    monkeypatch.chdir(tmp_path)
    path = os.fsdecode(name)
    (tmp_path / path).write_bytes(clip.read_bytes())
    assert len(framefleet.decode(path, backend=backend)) == FRAMES


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(SourceUnsupported, match="no regular file"):
        framefleet.decode(tmp_path / "pipe.mp4", timeout_s=5)


def test_a_file_uri_is_the_file_it_escapes(clip, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 #1%?.mp4")
    os.link(clip, odd)
    frames = framefleet.decode("file://" + quote_from_bytes(os.fsencode(odd)), num_frames=2)
    assert frames.total_num_frames == FRAMES
    assert VideoSource.of("file:///a%20b.mp4") == VideoSource("file", "/a b.mp4")
    for literal in ("/plain/100%20 #1?.mp4", "file:a.mp4"):
        assert VideoSource.of(literal) == VideoSource("file", literal)
    for elsewhere in ("file://host/a.mp4", "https://host/a%20b.mp4"):
        assert VideoSource.of(elsewhere) == VideoSource("url", elsewhere)
