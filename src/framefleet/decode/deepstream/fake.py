"""A DecodePool in software, with the wheel's call and its faults, for machines without a GPU.

Like the wheel it decodes the whole stream, counts pictures in output order, knows nothing of edit lists or rotation,
gives frames and no error for a stream that is cut off, and none and no error for a place past the end. What the wheel
dies or hangs at, this does too: an empty stream, an MP4 whose index lies behind much data, a raw stream left early.
"""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

import av
import numpy as np

from framefleet.decode.picture import PictureWriter
from framefleet.errors import FramefleetError
from framefleet.media.probe import probe
from framefleet.media.source import VideoSource

MOST_BYTES_BEFORE_INDEX = 10_000_000
_START_CODES = (b"\0\0\1", b"\0\0\0\1")


@dataclass
class FakeFrames:
    """As the wheel's DecodeFrames, but for `frames`: an ndarray [T, H, W, 3] in place of a tensor on the GPU."""

    frames: Any
    n_kept: int
    n_total: int
    fps: float = 0.0
    error: str = ""


class FakePool:
    """As the wheel's DecodePool."""

    def __init__(self, num_workers: int = 8, drop_interval: int = 0) -> None:
        del drop_interval
        self._places = threading.Semaphore(num_workers)
        self._is_stuck = False

    def decode(
        self,
        data: bytes,
        *,
        target_indices: list[int],
        codec: str = "",
        max_frames: int = 8,
        timeout_sec: float = 30.0,
    ) -> FakeFrames:
        """Frames at the places `target_indices` of the output, `max_frames` at most."""
        del codec, timeout_sec  # the wheel's own deadline does not hold either
        with self._places:
            if not data:
                os.kill(os.getpid(), signal.SIGSEGV)
            if self._is_stuck:
                hang()
            if _bytes_before_index(data) > MOST_BYTES_BEFORE_INDEX:
                return FakeFrames(None, 0, 0, error="no 'moov' atom within the first 10 MB")
            result = _decode(data, set(target_indices), max_frames)
            self._is_stuck = data.startswith(_START_CODES) and result.n_kept == max_frames
            return result


class _FaultyPool(FakePool):
    """Faults strike decodes of one wanted frame; all others are sound, so that what a fault costs them can be seen."""

    def decode(self, data: bytes, *, target_indices: list[int], **rest: Any) -> FakeFrames:
        """As `FakePool`, but for the fault."""
        if len(target_indices) == 1:
            self.strike()
        return super().decode(data, target_indices=target_indices, **rest)

    def strike(self) -> None:
        """What goes wrong."""


class HangingPool(_FaultyPool):
    """Never comes back."""

    def strike(self) -> None:
        """Hang."""
        hang()


class DyingPool(_FaultyPool):
    """Takes its process with it, after a moment in which others are at work there."""

    def strike(self) -> None:
        """Die."""
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGSEGV)


class MiscountingPool(FakePool):
    """Loses a picture without a word, as the wheel was seen to gain one."""

    def decode(self, data: bytes, **asked: Any) -> FakeFrames:
        """One picture fewer than there are."""
        result = super().decode(data, **asked)
        return dataclasses.replace(result, n_total=result.n_total - 1)


def hang() -> None:
    """Wait for ever."""
    while True:
        time.sleep(60)


def _bytes_before_index(data: bytes) -> int:
    """Offset of the `moov` box of an MP4; 0 for everything else."""
    at = 0
    while data[4:8] == b"ftyp" and at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"moov":
            return at
        at += size if size >= 8 else len(data)
    return 0


def _decode(data: bytes, places: set[int], max_frames: int) -> FakeFrames:
    kept: list[Any] = []
    total = 0
    try:
        info = dataclasses.replace(probe(VideoSource.of(data)), rotation_deg=0, hflip=False)
        writer = PictureWriter(info, info.coded_width, info.coded_height)
        with av.open(io.BytesIO(data)) as container:
            for picture in container.decode(video=0):
                if total in places and len(kept) < max_frames:
                    kept.append(np.empty((info.coded_height, info.coded_width, 3), np.uint8))
                    writer.write(picture, kept[-1])
                total += 1
                if len(kept) == max_frames:
                    break
    except (av.FFmpegError, FramefleetError) as error:
        if not kept:
            return FakeFrames(None, 0, total, error=str(error))
    return FakeFrames(np.stack(kept) if kept else None, len(kept), total)
