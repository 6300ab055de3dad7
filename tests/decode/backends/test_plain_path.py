"""Sources as paths: nothing in a name is taken for an option or a protocol, and bytes are a file."""

import os
from pathlib import Path

import pytest

from framefleet.decode.backends.plain_path import plain_path
from framefleet.errors import DecodeError, SourceNotFound
from framefleet.media.source import VideoSource


def test_odd_names_are_plain_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("-dash.mp4", "http:x.mp4", "a%03d.mp4", "ひまわり #1?&é.mp4"):
        Path(name).write_bytes(b"x")
        with plain_path(VideoSource("file", name)) as path:
            assert path == str(tmp_path / name)
            assert Path(path).read_bytes() == b"x"


def test_bytes_can_be_opened_again_and_leave_nothing_behind():
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with plain_path(VideoSource.of(b"content" * 1000)) as path:
        assert Path(path).read_bytes() == b"content" * 1000
        assert Path(path).read_bytes() == b"content" * 1000
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(SourceNotFound), plain_path(VideoSource.of(tmp_path / "none.mp4")):
        pass
    with pytest.raises(SourceNotFound), plain_path(VideoSource.of(tmp_path)):
        pass
    with pytest.raises(DecodeError, match="files and bytes"), plain_path(VideoSource("url", "https://x/y.mp4")):
        pass
