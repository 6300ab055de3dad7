"""PacketTable: every packet of one stream as the demuxer gives it, and what its bytes tell."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.bitstream import BitStreamFilterContext

from framefleet.errors import DecodeTimeout, SourceCorrupt, SourceTooLarge
from framefleet.media.av1 import Av1Reader
from framefleet.media.coded_frames import CodedFrames
from framefleet.media.fact_readers import fact_reader
from framefleet.media.facts import ORDERED
from framefleet.media.index import Bool, FrameIndex, Int64
from framefleet.media.joins import unwrapped
from framefleet.media.limits import ScanLimits

NO_PTS = FrameIndex.NO_PTS
_LOOK_AT_CLOCK_EVERY = 256
_AVI_CHUNK_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class PacketTable:
    """Packets [P] in decode order. Times are stream ticks, `NO_PTS` where the container gives none."""

    pts: Int64
    dts: Int64
    duration: Int64
    pos: Int64
    """Byte position in the source, -1 if unknown."""
    size: Int64
    """Bytes."""
    facts: Int64
    """Bits of `media.facts`."""
    is_discarded: Bool
    """The container says: decode, but do not show."""
    is_corrupt: Bool
    """The demuxer saw damage."""
    coded_frames: CodedFrames | None = None
    """What leans on what, frame by frame, for codecs that tell it."""

    def __len__(self) -> int:
        return len(self.pts)


def demuxed(container: Any, stream: Any) -> Iterator[Any]:
    """`container.demux(stream)` that goes on past packets of streams found after opening: PyAV fails at those."""
    while True:
        try:
            yield from container.demux(stream)
            return
        except IndexError:
            continue


def read_packets(container: Any, stream: Any, name: str, limits: ScanLimits) -> Iterator[Any]:
    """The stream's packets that hold bytes, in decode order; stops quietly where the demuxer does.

    Other streams are not read. Raises DecodeTimeout, SourceTooLarge.
    """
    only(container, stream)
    number = 0
    packets = demuxed(container, stream)
    if stream.codec_context.codec.canonical_name == "mpeg4":
        packets = _unpacked(packets, stream)
    while True:
        if number % _LOOK_AT_CLOCK_EVERY == 0:
            limits.deadline.check("reading packets", name)
        try:
            packet = next(packets, None)
        except av.FFmpegError as error:
            if isinstance(error, av.ExitError) or limits.deadline.remaining_s <= 0:
                raise DecodeTimeout("reading packets passed the deadline", given=repr(name)) from error
            return
        if packet is None:
            return
        if not packet.size:
            continue
        number += 1
        if number > limits.max_source_frames:
            raise SourceTooLarge(
                "the clip has too many frames",
                given=f"{name!r} (more than {limits.max_source_frames})",
                allowed=f"max_source_frames {limits.max_source_frames}",
                remedy="a larger max_source_frames, or cut the clip",
            )
        yield packet


def _unpacked(packets: Iterator[Any], stream: Any) -> Iterator[Any]:
    """Packed B-VOPs (two VOPs in a packet, then a placeholder, as DivX and Xvid wrote them into AVI) put one by one."""
    unpack = BitStreamFilterContext("mpeg4_unpack_bframes", stream)
    for packet in packets:
        yield from unpack.filter(packet if packet.size else None)


def only(container: Any, stream: Any) -> None:
    """Tell the demuxer to skip every other stream."""
    for other in container.streams:
        if other.index != stream.index:
            other.discard = "all" if isinstance(other.discard, str) else av.stream.Discard.all


def table_of(packets: Iterator[Any], stream: Any, name: str) -> PacketTable:
    """Walk the packets to their end. Raises SourceCorrupt when there is none."""
    context = stream.codec_context
    reader = fact_reader(context.codec.canonical_name, context.extradata or b"")
    columns = tuple(array("q") for _ in range(8))
    pts, dts, duration, pos, size, facts, discarded, corrupt = columns
    for packet in packets:
        pts.append(NO_PTS if packet.pts is None else packet.pts)
        dts.append(NO_PTS if packet.dts is None else packet.dts)
        duration.append(packet.duration or 0)
        pos.append(-1 if packet.pos is None else packet.pos)
        size.append(packet.size)
        facts.append(reader.read(bytes(packet), is_key=packet.is_keyframe))
        discarded.append(packet.is_discard)
        corrupt.append(packet.is_corrupt)
    if not pts:
        raise SourceCorrupt("the clip holds no video packets", given=repr(name), remedy="fetch it again")
    numbers = [np.array(column, np.int64) for column in columns]
    return PacketTable(
        pts=numbers[0], dts=numbers[1], duration=numbers[2], pos=numbers[3], size=numbers[4], facts=numbers[5],
        is_discarded=numbers[6] != 0, is_corrupt=numbers[7] != 0,
        coded_frames=reader.coded_frames if isinstance(reader, Av1Reader) else None,
    )  # fmt: skip


def avi_times(table: PacketTable, stream: Any) -> PacketTable:
    """The table with times by the AVI index, which numbers the frames even where chunks between them are torn.

    AVI has decode times only; where they are presentation times (no packet waits for another), the pts follow them.
    """
    numbers = {entry.pos + _AVI_CHUNK_HEADER_BYTES: entry.timestamp for entry in stream.index_entries}
    found = [numbers.get(pos, dts) for pos, dts in zip(table.pos.tolist(), table.dts.tolist(), strict=True)]
    dts = np.array(found, np.int64)
    is_ordered = np.array_equal(table.pts, table.dts)
    return replace(table, dts=dts, pts=dts if is_ordered else np.full(len(dts), NO_PTS, np.int64))


def dirac_times(table: PacketTable, stream: Any) -> PacketTable:
    """The table of a raw Dirac stream with times: what FFmpeg gives as stamps are the pictures' bare numbers.

    They are read from the pictures themselves, since the last one's stamp is guessed.
    """
    has_picture, numbers = table.facts & ORDERED != 0, unwrapped(table.facts)
    rate = stream.codec_context.framerate or stream.guessed_rate
    step = 1 / (Fraction(rate) * stream.time_base)
    ticks = np.array([round(number * step) for number in (numbers - numbers[0]).tolist()], np.int64)
    unknown = np.full(len(ticks), NO_PTS)
    return replace(table, pts=np.where(has_picture, ticks, unknown), dts=unknown, duration=0 * ticks + round(step))
