"""PacketWalk: the packets of a plan's groups, each by its number in the index, wherever the demuxer really landed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import av
import numpy as np

from framefleet.decode.plan import SeekGroup
from framefleet.errors import SeekFailed
from framefleet.media.av1 import without_frames
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.limits import ScanLimits
from framefleet.media.opening import open_container
from framefleet.media.packets import read_packets

_READ_ON_PACKETS = 48
"""A gap up to this many packets is read over; a longer one is sought across."""
_TRIES = 3
_UNKNOWN_PACKETS = 64
_CONFIRMING_PACKETS = 2
"""Behind a packet that is known again, so many more must have their size: stamps slip by one where a seek tore one."""
_SOUGHT_BY_BYTE = frozenset(["mpegts", "h264", "hevc", "vvc", "obu", "av1", "mpegvideo", "m4v"])
"""Formats whose byte positions are exact, and whose times are ambiguous (clocks that reset) or missing."""


class PacketWalk:
    """An open source read by packet numbers. Seeks are checked by identity (byte position and pts), never believed."""

    def __init__(self, clip: ScannedClip, limits: ScanLimits) -> None:
        self._clip = clip
        self._limits = limits
        self._stack = ExitStack()
        self._packets: Iterator[Any] = iter(())
        self._next = 0
        self.stream: Any = None

    def __enter__(self) -> PacketWalk:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        self._packets = iter(())
        self._stack.close()
        self._container = self._stack.enter_context(open_container(self._clip.source, self._limits))
        self.stream = self._container.streams[self._clip.info.stream_index]
        self._restart(0)

    def _restart(self, number: int, ahead: list[Any] | None = None) -> None:
        self._ahead = ahead or []
        self._packets = read_packets(self._container, self.stream, self._clip.source.name, self._limits)
        self._next = number

    def run(self, group: SeekGroup) -> Iterator[tuple[int, Any]]:
        """(number, packet) from the group's first packet to its last, inclusive; fewer where the source ends early.

        May reopen the source: look at `stream` after the first packet. Raises SeekFailed, DecodeTimeout.
        """
        if not self._next <= group.first_packet <= self._next + _READ_ON_PACKETS:
            self._seek(group.first_packet)
        while self._next <= group.last_packet:
            packet = self._ahead.pop(0) if self._ahead else next(self._packets, None)
            if packet is None:
                return
            number, self._next = self._next, self._next + 1
            if number >= group.first_packet:
                yield number, packet

    def feed(self, group: SeekGroup) -> Iterator[tuple[int, Any]]:
        """As `run`, without what the group leaves out: packets, and single frames of others."""
        skipped, cut = set(group.skip_packets.tolist()), _places(group)
        for number, packet in self.run(group):
            if number not in skipped:
                yield number, _without(packet, cut[number]) if number in cut else packet

    def _seek(self, first: int) -> None:
        aim = first
        for _ in range(_TRIES):
            if self._seek_once(aim) and self._next <= first and self._is_whole_from(first):
                return
            earlier = np.flatnonzero(self._clip.index.packet_is_keyframe[:aim])
            if not len(earlier):
                break
            aim = int(earlier[-1])
        self._open()

    def _seek_once(self, aim: int) -> bool:
        """Seek to about packet `aim`; True if it is known which packet comes next."""
        index, container = self._clip.index, self._container
        position = -1 if index.packet_pos is None else int(index.packet_pos[aim])
        stamped = np.flatnonzero(index.packet_pts[: aim + 1] != FrameIndex.NO_PTS)
        ticks = int(index.packet_pts[stamped[-1]]) if len(stamped) else FrameIndex.NO_PTS
        try:
            if container.format.name in _SOUGHT_BY_BYTE and position >= 0:
                container.seek(position, stream=self.stream, unsupported_byte_offset=True)
            elif ticks != FrameIndex.NO_PTS:
                container.seek(ticks, stream=self.stream)
            else:
                return False
        except av.FFmpegError:
            return False
        return self._find_out_where()

    def _find_out_where(self) -> bool:
        self._restart(0)
        read: list[Any] = []
        for packet in self._packets:
            read.append(packet)
            number = self._number_of(packet)
            if number is not None and number + 1 >= len(read):
                self._ahead, self._next = [*read, *islice(self._packets, _CONFIRMING_PACKETS)], number + 1 - len(read)
                return self._is_whole_from(number)
            if len(read) >= _UNKNOWN_PACKETS:
                return False
        return False

    def _is_whole_from(self, first: int) -> bool:
        """Whether the packets read ahead are those of the index from `first` on, none of them the end of a torn one."""
        numbered = enumerate(self._ahead, self._next)
        return all(number < first or self._has_size(number, packet) for number, packet in numbered)

    def _has_size(self, number: int, packet: Any) -> bool:
        sizes = self._clip.index.packet_size
        return sizes is None or (number < len(sizes) and bool(sizes[number] == packet.size))

    def _number_of(self, packet: Any) -> int | None:
        """None where it cannot be told: a size alone identifies nothing."""
        index = self._clip.index
        if packet.pts is None and packet.pos is None:
            return None
        same = index.packet_pts == (FrameIndex.NO_PTS if packet.pts is None else packet.pts)
        if index.packet_pos is not None:
            same &= index.packet_pos == (-1 if packet.pos is None else packet.pos)
        if index.packet_size is not None:
            same &= index.packet_size == packet.size
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) == 1 else None


def _places(group: SeekGroup) -> dict[int, set[int]]:
    """Packet -> the places of the coded frames cut out of it."""
    cut: dict[int, set[int]] = {}
    for packet, place in group.cuts.tolist():
        cut.setdefault(packet, set()).add(place)
    return cut


def _without(packet: Any, places: set[int]) -> Any:
    rest = av.Packet(without_frames(bytes(packet), places))
    rest.stream, rest.time_base = packet.stream, packet.time_base
    rest.pts, rest.dts, rest.duration, rest.is_keyframe = packet.pts, packet.dts, packet.duration, packet.is_keyframe
    return rest


def require_packets(num_read: int, clip: ScannedClip) -> None:
    """Raise SeekFailed when a run gave no packet at all: the source is not what was scanned."""
    if not num_read:
        raise SeekFailed(
            "the clip ends before its own index says", given=repr(clip.source.name), remedy="scan it again: it changed"
        )
