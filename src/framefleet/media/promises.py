"""What a container promises to hold, so that a source cut short or torn open can be told from a whole one.

MP4 and AVI carry an index of all frames, MXF their number. Matroska carries each stream's end and the size of it all,
FLV its size. GIF ends with a trailer, Ogg with a last page, a transport stream with a whole packet. Program streams and
elementary streams promise nothing.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

from framefleet.media.transport import STRIDES, SYNC
from framefleet.units import NS_PER_S

_SEGMENT = b"\x18\x53\x80\x67"
_TRAILER_GIF = b"\x3b"
_HEAD_BYTES = 512
_MAX_PAGE_BYTES = 65_307


@dataclass(frozen=True, slots=True)
class Promise:
    """Zero, None and False where nothing is promised or nothing is amiss."""

    num_packets: int = 0
    end_ns: int | None = None
    is_cut_short: bool = False


def promise_of(container: Any, stream: Any, file: BinaryIO | None) -> Promise:
    """Of an open container; `file` holds its bytes (any position), None if they cannot be read again."""
    kind = container.format.name
    if kind.startswith("mov"):
        return Promise(num_packets=len(stream.index_entries))
    if kind == "mxf" and stream.duration and stream.average_rate == 1 / stream.time_base:
        return Promise(num_packets=stream.duration)
    head, num_bytes, last = _ends(file) if file else (b"", 0, b"")
    if kind == "avi":
        is_cut = head[:4] == b"RIFF" and int.from_bytes(head[4:8], "little") + 8 > num_bytes
        num_packets = max(len(stream.index_entries), stream.frames if is_cut else 0)
        return Promise(num_packets, is_cut_short=is_cut)
    if kind.startswith("matroska"):
        return Promise(end_ns=_tagged_end_ns(stream.metadata), is_cut_short=_is_segment_cut(head, num_bytes))
    return Promise(is_cut_short=file is not None and _is_cut_short(kind, file, head, num_bytes, last))


def _is_cut_short(kind: str, file: BinaryIO, head: bytes, num_bytes: int, last: bytes) -> bool:
    if kind == "flv":
        return _told_size_of_flv(head) > num_bytes
    if kind == "mpegts":
        return _is_packet_torn(file, head, num_bytes)
    if kind == "ogg":
        return _goes_on(file, num_bytes)
    return kind == "gif" and last != _TRAILER_GIF


def _goes_on(ogg: BinaryIO, num_bytes: int) -> bool:
    """Whether the last page (RFC 3533, 6) is not its stream's last: streams end with a page that says so."""
    ogg.seek(max(0, num_bytes - _MAX_PAGE_BYTES))
    tail = ogg.read()
    at = tail.rfind(b"OggS")
    return 0 <= at < len(tail) - 5 and not tail[at + 5] & 4


def _ends(file: BinaryIO) -> tuple[bytes, int, bytes]:
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    num_bytes = file.seek(0, 2)
    file.seek(max(0, num_bytes - 1))
    return head, num_bytes, file.read(1)


def _told_size_of_flv(head: bytes) -> float:
    """By the `filesize` of its metadata (an AMF0 number), 0 where there is none."""
    at = head.find(b"filesize\0") + len(b"filesize\0")
    told: float = struct.unpack_from(">d", head, at)[0] if len(b"filesize\0") <= at <= len(head) - 8 else 0.0
    return told


def _is_packet_torn(file: BinaryIO, head: bytes, num_bytes: int) -> bool:
    """Whether the file ends in the midst of a packet, in sync from its start to there."""
    for stride, lead in STRIDES:
        rest = num_bytes % stride
        if head[lead::stride].startswith(bytes([SYNC]) * 2):
            file.seek(num_bytes - rest + lead)
            return rest > lead and file.read(1) == bytes([SYNC])
    return False


def _tagged_end_ns(tags: dict[str, str]) -> int | None:
    """The DURATION tag that muxers write for each stream: where its last frame ends."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d)\.(\d{1,9})", tags.get("DURATION", ""))
    if not match:
        return None
    hours, minutes, seconds, fraction = match.groups()
    whole_s = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    return whole_s * NS_PER_S + int(fraction.ljust(9, "0"))


def _is_segment_cut(head: bytes, num_bytes: int) -> bool:
    """Whether the Segment element (RFC 8794, RFC 9559) claims to reach past the end of the file."""
    at = head.find(_SEGMENT)
    if at < 0 or at + 5 > len(head) or not head[at + 4]:
        return False
    width = 9 - head[at + 4].bit_length()
    value = int.from_bytes(head[at + 4 : at + 4 + width], "big") & ((1 << 7 * width) - 1)
    return value != (1 << 7 * width) - 1 and at + 4 + width + value > num_bytes
