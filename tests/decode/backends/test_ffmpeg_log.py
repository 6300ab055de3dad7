"""Listening to FFmpeg: the right copy, only while asked, and an error where there is none to listen to."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import pytest
from barcode_clips import flip_bits, write_clip

from framefleet.decode.backends.ffmpeg_log import _libavutil_paths, hear_errors
from framefleet.errors import DecodeError


def walk(path):
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    while capture.grab():
        pass
    capture.release()


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("log") / "clip.mp4", 40)


def test_a_whole_clip_is_silent_and_a_damaged_one_is_not(clip, tmp_path):
    with hear_errors("cv2") as heard:
        walk(clip)
    assert not heard
    assert str(heard) == "none"
    damaged = flip_bits(clip, tmp_path / "damaged.mp4", seed=1)
    with hear_errors("cv2") as heard:
        walk(damaged)
    assert heard
    assert "messages such as" in str(heard)
    with hear_errors("cv2") as afterwards:
        walk(clip)
    assert not afterwards


@pytest.mark.parametrize("library", ["cv2", "torchcodec"])
def test_only_the_librarys_own_copy_is_heard(library, monkeypatch):
    maps = "".join(
        f"7f00-7f01 r-xp 00000000 08:01 7  {path}\n"
        for path in ("/s/av.libs/libavutil-1.so", "/s/opencv_python.libs/libavutil-2.so", "/usr/lib/libavutil.so.57")
    )
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: maps)
    own = {"cv2": "/s/opencv_python.libs/libavutil-2.so", "torchcodec": "/usr/lib/libavutil.so.57"}
    assert _libavutil_paths(library) == [own[library]]


def test_without_a_copy_to_listen_to_nothing_is_promised(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "7f00-7f01 r-xp 0 0:0 1 /x/av.libs/libavutil-1.so\n")
    with pytest.raises(DecodeError, match="cannot listen"):
        _libavutil_paths("cv2")


def test_two_threads_listen_at_once_and_each_hears_its_own(clip, tmp_path):
    damaged = flip_bits(clip, tmp_path / "damaged.mp4", seed=1)
    together = threading.Barrier(2)

    def listen(path):
        with hear_errors("cv2") as heard:
            together.wait(30)
            walk(path)
            together.wait(30)
        return bool(heard)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(listen, [clip, damaged])) == [False, True]
