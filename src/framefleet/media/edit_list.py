"""MP4 and QuickTime edit lists of several parts (ISO/IEC 14496-12, 8.6.6): which packets each part shows, and when.

FFmpeg plays a list of one part rightly, behind an empty one or not. Of several parts it gives the packets, but times
some of them frames off; it plays an empty part in the middle, and a picture held still as if it ran.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import BinaryIO

import numpy as np

from framefleet.errors import SourceTooLarge
from framefleet.media.info import StreamInfo
from framefleet.media.limits import ScanLimits
from framefleet.media.opening import open_container, open_file
from framefleet.media.packets import NO_PTS, PacketTable, read_packets
from framefleet.media.source import VideoSource

_MAX_INDEX_BYTES = 1 << 28
_MAX_PARTS = 10_000
_EMPTY = -1
_Times = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Edit:
    """One part: `media_start` ticks of the stream, `_EMPTY` where nothing is shown; movie times in seconds."""

    start_s: Fraction
    duration_s: Fraction
    media_start: int
    rate: float


def on_movie_clock(
    source: VideoSource, info: StreamInfo, table: PacketTable, track_id: int, limits: ScanLimits
) -> tuple[PacketTable, list[str]]:
    """The table as the edit list means it, and what is odd about that list. Raises as `open_container`."""
    with open_file(source, limits) as file:
        edits = read_edits(file, track_id)
    notes = [f"an edit plays at rate {e.rate:g}: shown at 1" for e in edits if e.rate not in (0, 1)]
    first = next((n for n, edit in enumerate(edits) if edit.media_start != _EMPTY), len(edits))
    if len(edits) <= first + 1:
        return table, notes
    with open_container(source, limits, ignore_editlist="1") as container:
        stream = container.streams[info.stream_index]
        packets = read_packets(container, stream, source.name, limits)
        media = {p.pos: (p.pts, p.dts) for p in packets if p.pts is not None and p.dts is not None}
    return place(table, edits[first:], media, info.time_base), [*notes, f"an edit list of {len(edits)} parts"]


def place(table: PacketTable, edits: tuple[Edit, ...], media: _Times, time_base: Fraction) -> PacketTable:
    """The table with each shown packet timed by its part; those of empty parts, and all but the first picture of one
    that holds it still (rate 0), are discarded. `media` gives (pts, dts) without the edit list, by byte position.
    """
    pts, dts, part = table.pts.copy(), table.dts.copy(), np.full(len(table), -1, np.int64)
    at, last = 0, NO_PTS
    for packet in np.flatnonzero(~table.is_discarded & (pts != NO_PTS)).tolist():
        ticks, order = media.get(int(table.pos[packet]), (NO_PTS, NO_PTS))
        found = _part_of(edits, at, ticks, time_base, is_repeat=order <= last)
        if found is None:
            continue
        part[packet], at, last, edit = found, found, order, edits[found]
        shift = round(edit.start_s / time_base) + ticks - edit.media_start - int(pts[packet])
        pts[packet] += shift
        dts[packet] += shift if dts[packet] != NO_PTS else 0
    is_shown = part >= 0
    for number, edit in enumerate(edits):
        members = np.flatnonzero(part == number)
        if edit.media_start == _EMPTY:
            is_shown[members] = False
        elif not edit.rate:
            is_shown[members[np.argsort(pts[members])[1:]]] = False
    return replace(table, pts=pts, dts=dts, is_discarded=~is_shown)


def _part_of(edits: tuple[Edit, ...], at: int, ticks: int, time_base: Fraction, *, is_repeat: bool) -> int | None:
    """The first part from `at` on (behind it for a repeat: within a part, packets follow in decode order) that holds
    media time `ticks`. FFmpeg takes an empty part for one that starts at -1.
    """
    for number in range(at + is_repeat, len(edits)):
        start = edits[number].media_start
        if start <= ticks < start + round(edits[number].duration_s / time_base):
            return number
    return None


def read_edits(file: BinaryIO, track_id: int) -> tuple[Edit, ...]:
    """The edit list of a track; empty where there is none, or the boxes make no sense. Raises SourceTooLarge."""
    try:
        moov = _moov(file)
        timescale = next(_timescale(body) for kind, body in _boxes(moov) if kind == b"mvhd")
        tracks = [dict(_boxes(body)) for kind, body in _boxes(moov) if kind == b"trak"]
        track = next(t for t in tracks if _track_id(t[b"tkhd"]) == track_id)
        return tuple(_edits(dict(_boxes(track[b"edts"]))[b"elst"], timescale))
    except (KeyError, StopIteration, struct.error, ZeroDivisionError):
        return ()


def _moov(file: BinaryIO) -> bytes:
    """The body of the movie box; what comes before it is not read. Raises struct.error or KeyError."""
    while True:
        size, kind = struct.unpack(">I4s", file.read(8))
        header_bytes = 8
        if size == 1:
            (size,), header_bytes = struct.unpack(">Q", file.read(8)), 16
        if kind == b"moov":
            return file.read(min(size - header_bytes, _MAX_INDEX_BYTES) if size else _MAX_INDEX_BYTES)
        if size < header_bytes:
            raise KeyError(kind)
        file.seek(size - header_bytes, 1)


def _boxes(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + 8 <= len(body):
        size, kind = struct.unpack_from(">I4s", body, at)
        if size < 8:
            return
        yield kind, body[at + 8 : at + size]
        at += size


def _timescale(mvhd: bytes) -> int:
    return int(struct.unpack_from(">I", mvhd, 20 if mvhd[:1] == b"\1" else 12)[0])


def _track_id(tkhd: bytes) -> int:
    return int(struct.unpack_from(">I", tkhd, 20 if tkhd[:1] == b"\1" else 12)[0])


def _edits(elst: bytes, timescale: int) -> Iterator[Edit]:
    layout = ">QqhH" if elst[:1] == b"\1" else ">IihH"
    (num_parts,) = struct.unpack_from(">I", elst, 4)
    if num_parts > _MAX_PARTS:
        raise SourceTooLarge("an edit list of too many parts", given=str(num_parts), allowed=str(_MAX_PARTS))
    start_s = Fraction(0)
    for number in range(num_parts):
        duration, media_start, whole, part = struct.unpack_from(layout, elst, 8 + number * struct.calcsize(layout))
        yield Edit(start_s, Fraction(duration, timescale), media_start, whole + part / 65536)
        start_s += Fraction(duration, timescale)
