"""Feed: a clip cut down to the packets that a plan needs, as Matroska in memory, and which pictures of it are wanted.

DeepStream's pool decodes a whole byte stream and picks pictures by their place in the output. So it is given a stream
whose places we know: the planned packets alone, stamped anew in presentation order, in a container without edit lists
whose index is not needed. What that container lacks is what the pool gets wrong (an MP4's index behind 10 MB of data,
edit lists, raw streams that stop early), and the number of pictures that must come out is known beforehand. The
stream's colour tags are written in full: where one is missing, DeepStream converts by BT.601 and limited range.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.bitstream import BitStreamFilterContext

from framefleet.decode.nvdec.parcel import presentation_ranks
from framefleet.decode.plan import DecodePlan, SeekGroup
from framefleet.decode.walk import PacketWalk, require_packets
from framefleet.errors import DecodeError, SourceCorrupt
from framefleet.media.clip import ScannedClip
from framefleet.media.index import Int64
from framefleet.media.info import StreamInfo
from framefleet.media.limits import ScanLimits
from framefleet.media.nal import split_nals

_STEP_MS = 40
_TIME_BASE = Fraction(1, 1000)
_LENGTH_SIZE_AT = {"h264": 4, "hevc": 21}
"""Offset of `lengthSizeMinusOne` in avcC and hvcC (ISO/IEC 14496-15)."""
_METADATA_FILTER = {"h264": "h264_metadata", "hevc": "hevc_metadata"}
MATRIX_CODES = {"bt601": 6, "bt709": 1}
"""Matrices the pool's converter knows -> their code point in ITU-T H.273, as that of their primaries and transfer."""
_Numbered = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class Feed:
    """What one decode is given, and what it must give back."""

    clip: ScannedClip
    """Without the bytes of a clip in memory."""
    width: int
    height: int
    rows: Int64
    """[T] the target rows, as planned."""
    content: npt.NDArray[np.uint8]
    """[B] Matroska."""
    places: Int64
    """[R] the place of each unique target row among the pictures that come out, increasing."""
    num_pictures: int
    """All that must come out."""


def cut(clip: ScannedClip, plan: DecodePlan, limits: ScanLimits) -> Feed:
    """Read the plan's packets and put them into one stream.

    Raises SourceError, SeekFailed or DecodeTimeout, DecodeError where no decoder could start at the packets.
    """
    with PacketWalk(clip, limits) as walk:
        runs = _enterable_runs(walk, clip, plan)
        order = _presentation_order(clip, runs)
        content = _muxed(walk.stream, clip.info, [packet for run in runs for _, packet in run], order)
    wanted = clip.index.packet_of_row[np.unique(plan.targets.rows)].tolist()
    place_of = dict(zip((number for run in runs for number, _ in run), order.tolist(), strict=True))
    if missing := [packet for packet in wanted if packet not in place_of]:
        raise DecodeError("a wanted picture leans on what is not in the clip", given=f"packet {missing[0]}")
    return Feed(
        clip=dataclasses.replace(clip, source=dataclasses.replace(clip.source, content=None)),
        width=plan.width,
        height=plan.height,
        rows=plan.targets.rows,
        content=content,
        places=np.array([place_of[packet] for packet in wanted], np.int64),
        num_pictures=len(order),
    )


def _enterable_runs(walk: PacketWalk, clip: ScannedClip, plan: DecodePlan) -> list[list[_Numbered]]:
    """The plan's runs; or one run in their place, where a warm decoder could not tell that a new one begins: a picture
    that only *may* be entered at (CRA, recovery point) is told apart from an entry by nothing.

    H.264 is entered at IDR pictures only, if need be at the first packet: what is shown before a recovery point may be
    referred to behind it, so nothing can be left out. HEVC's leading pictures can be, and must: decoders drop them.
    """
    codec, index, first = clip.info.codec, clip.index, plan.groups[0].first_packet
    runs = _read(walk, clip, plan.groups)
    length_bytes = _length_bytes(codec, walk.stream.codec_context.extradata or b"")
    is_fresh = [_starts_afresh(codec, run[0][1], length_bytes) for run in runs]
    if not all(is_fresh[1:]):
        runs = _read(walk, clip, (_one_run(clip, plan, first),))
    if not is_fresh[0] and codec == "h264":
        runs = _read(walk, clip, (_one_run(clip, plan, 0),))
        if not _starts_afresh(codec, runs[0][0][1], length_bytes):
            raise DecodeError("DeepStream enters H.264 at IDR pictures only", remedy="backend='pyav'")
    elif not is_fresh[0]:
        runs[0] = [
            (number, packet) for number, packet in runs[0] if index.packet_pts[number] >= index.packet_pts[first]
        ]
    return runs


def _read(walk: PacketWalk, clip: ScannedClip, groups: tuple[SeekGroup, ...]) -> list[list[_Numbered]]:
    runs = []
    for group in groups:
        runs.append(list(walk.feed(group)))
        require_packets(len(runs[-1]), clip)
    return runs


def _one_run(clip: ScannedClip, plan: DecodePlan, first: int) -> SeekGroup:
    """From packet `first` to the plan's last, with all that lies between its groups."""
    index, last = clip.index, max(group.last_packet for group in plan.groups)
    rows = np.unique(plan.targets.rows)
    can_skip = ~index.packet_is_reference[first : last + 1]
    can_skip[index.packet_of_row[rows] - first] = False
    return SeekGroup(first, last, rows, np.flatnonzero(can_skip) + first)


def _starts_afresh(codec: str, packet: Any, length_bytes: int) -> bool:
    """Whether nothing decoded before the packet matters from here on (IDR; any keyframe of AV1 and VP9)."""
    if codec not in _LENGTH_SIZE_AT:
        return True
    content = bytes(packet)
    try:
        kinds = [content[start] for start, end in split_nals(content, length_bytes) if end > start]
    except SourceCorrupt:
        return False
    return any(kind & 31 == 5 if codec == "h264" else kind >> 1 & 63 in (19, 20) for kind in kinds)


def _length_bytes(codec: str, extradata: bytes) -> int:
    """Bytes of a NAL unit's length prefix; 0 for start codes."""
    at = _LENGTH_SIZE_AT.get(codec, 0)
    return (extradata[at] & 3) + 1 if at and extradata[:1] == b"\1" and len(extradata) > at else 0


def _presentation_order(clip: ScannedClip, runs: list[list[_Numbered]]) -> Int64:
    """[F] each packet's place in the output: the runs one after the other, each in its order of presentation."""
    ranks = presentation_ranks(clip.index)
    numbers = np.array([number for run in runs for number, _ in run], np.int64)
    run_of = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    places = np.empty(len(numbers), np.int64)
    places[np.lexsort((ranks[numbers], run_of))] = np.arange(len(numbers))
    return places


def _muxed(stream: Any, info: StreamInfo, packets: list[Any], places: Int64) -> npt.NDArray[np.uint8]:
    """Raises DecodeError for packets that are not what their codec says."""
    delay = int((np.arange(len(places)) - places).max(initial=0))
    out = io.BytesIO()
    try:
        with av.open(out, "w", format="matroska") as container:
            target = container.add_stream_from_template(stream)
            tag = _tagger(stream, target, info)
            for number, (packet, place) in enumerate(zip(packets, places.tolist(), strict=True)):
                packet.time_base, packet.duration = _TIME_BASE, _STEP_MS
                packet.dts, packet.pts = number * _STEP_MS, (place + delay) * _STEP_MS
                for tagged in tag(packet):
                    tagged.stream = target
                    container.mux(tagged)
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError("the clip's packets do not go into another container", given=str(error)) from error
    return np.frombuffer(out.getbuffer(), np.uint8)


def _tagger(stream: Any, target: Any, info: StreamInfo) -> Callable[[Any], list[Any]]:
    """What writes matrix and range into the parameter sets of a packet, and at once into those of `target`."""
    if info.codec not in _METADATA_FILTER or info.colour_matrix not in MATRIX_CODES:
        return lambda packet: [packet]
    code = MATRIX_CODES[info.colour_matrix]
    settings = (
        f"colour_primaries={code}:transfer_characteristics={code}:matrix_coefficients={code}"
        f":video_full_range_flag={info.is_full_range:d}"
    )
    writer = BitStreamFilterContext(f"{_METADATA_FILTER[info.codec]}={settings}", stream, target)
    target.codec_context.codec_tag = "\0\0\0\0"  # else that of the container it came from
    write: Callable[[Any], list[Any]] = writer.filter
    return write
