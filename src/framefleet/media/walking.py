"""Walking a clip's packets by their numbers in the index: seek to a keyframe, and know for certain where one landed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import av
import numpy as np

from framefleet.errors import SeekFailed
from framefleet.media.clip import ScannedClip
from framefleet.media.index import Int64
from framefleet.media.limits import ScanLimits
from framefleet.media.opening import open_container
from framefleet.media.packets import demuxed

SEEK_WORTH_PACKETS = 8
"""Reading over fewer packets than this is cheaper than a seek."""


@contextmanager
def open_walk(clip: ScannedClip, limits: ScanLimits) -> Iterator[Walk]:
    """A walk over the packets of a scanned clip, from its start. Raises SourceError or DecodeTimeout."""
    with ExitStack() as opened:
        yield Walk(clip, limits, opened)


class Walk:
    """Numbered packets. Numbers are those of FrameIndex; every packet's pts is compared with the index."""

    def __init__(self, clip: ScannedClip, limits: ScanLimits, opened: ExitStack) -> None:
        self._clip = clip
        self._limits = limits
        self._opened = opened
        self._next = 0
        self._open()

    @property
    def stream(self) -> Any:
        """The `av.VideoStream`."""
        return self._stream

    @property
    def extradata(self) -> bytes:
        """The container's codec configuration, possibly empty."""
        return self._stream.codec_context.extradata or b""

    def packets(self, first: int, last: int, skip: Int64 | None = None) -> Iterator[tuple[int, Any]]:
        """(number, packet) from `first` to `last`, inclusive, without those in `skip`.

        Raises SeekFailed when the file no longer holds the packets that were scanned.
        """
        if first < self._next or first - self._next > SEEK_WORTH_PACKETS:
            self._seek(first)
        unwanted = frozenset(skip.tolist()) if skip is not None else frozenset()
        while self._next <= last:
            number, packet = self._read()
            if number >= first and number not in unwanted:
                yield number, packet

    def _open(self) -> None:
        self._opened.close()
        self._container = self._opened.enter_context(open_container(self._clip.source, self._limits))
        self._stream = self._container.streams[self._clip.info.stream_index]
        self._demuxed = demuxed(self._container, self._stream)
        self._next = 0

    def _read(self) -> tuple[int, Any]:
        number, packet = self._next, self._raw()
        if packet is None or self._pts(packet) != self._clip.index.packet_pts[number]:
            raise SeekFailed("the clip changed while it was read", given=f"{self._clip.source.name!r}, packet {number}")
        self._next += 1
        return number, packet

    def _raw(self) -> Any:
        """The next packet of the stream that holds anything, or None at the end."""
        try:
            return next((packet for packet in self._demuxed if packet.size), None)
        except av.FFmpegError:
            return None

    def _pts(self, packet: Any) -> int:
        return self._clip.index.NO_PTS if packet.pts is None else int(packet.pts)

    def _seek(self, first: int) -> None:
        """Bring `_next` to `first` or a little before: by a seek where that can be proven, else from the start."""
        if not self._seek_and_land(first) and (self._next > first or self._next < 0):
            self._open()

    def _seek_and_land(self, first: int) -> bool:
        pts = int(self._clip.index.packet_pts[first])
        if first == 0 or pts not in self._number_of_pts:
            return False
        try:
            self._container.seek(pts, stream=self._stream)
        except av.FFmpegError:
            self._next = -1
            return False
        self._demuxed = demuxed(self._container, self._stream)
        packet = self._raw()
        number = self._number_of_pts.get(self._pts(packet), -1) if packet is not None else -1
        if not 0 <= number <= first:
            self._next = -1
            return False
        self._next = number
        self._demuxed = _chain(packet, self._demuxed)
        return True

    @cached_property
    def _number_of_pts(self) -> dict[int, int]:
        """Stamps that name one packet only -> its number."""
        stamps, numbers, counts = np.unique(self._clip.index.packet_pts, return_index=True, return_counts=True)
        is_certain = (counts == 1) & (stamps != self._clip.index.NO_PTS)
        return dict(zip(stamps[is_certain].tolist(), numbers[is_certain].tolist(), strict=True))


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
