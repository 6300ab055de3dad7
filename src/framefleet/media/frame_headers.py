"""VP8, VP9, MPEG-1/2, MPEG-4 part 2, Dirac and GIF packets, read as far as their frame headers."""

from __future__ import annotations

import re

from framefleet.errors import SourceCorrupt
from framefleet.media.bits import BitReader
from framefleet.media.facts import (
    DAMAGED,
    GAP,
    HIDDEN,
    IS_B,
    LEADS_SAFELY,
    NOT_ONE_PICTURE,
    ORDER_BITS,
    REFERENCE,
    START,
    holds_zero_run,
    order_of,
)

_MAX_UNCODED_VOP_BYTES = 19
_MPEG_RATES = (0, 24, 24, 25, 30, 30, 50, 60, 60)
"""Pictures per second of a time code, by frame_rate_code (ISO/IEC 13818-2, table 6-4)."""


class Vp8Reader:
    """RFC 6386, 9.1: the first byte tells key frames and hidden (alternative reference) frames."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        if not packet:
            return HIDDEN
        is_torn = holds_zero_run(packet, may_end_in_zeros=False)
        facts = REFERENCE | (DAMAGED if is_torn else 0)
        return facts | (0 if packet[0] & 1 else START) | (0 if packet[0] & 16 else HIDDEN)


class Vp9Reader:
    """VP9 bitstream specification, 6.1-6.2 and annex B: a packet is shown if one of its frames is.

    Frames that refresh no reference are still taken as references: they may renew the coder's saved statistics.
    """

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        heads = [_vp9_head(packet, at) for at in _superframe(packet)]
        is_torn = holds_zero_run(packet, may_end_in_zeros=False)
        facts = REFERENCE | (DAMAGED if is_torn else 0) | (START if heads and heads[0][0] else 0)
        return facts if any(is_shown for _, is_shown in heads) else facts | HIDDEN


def _superframe(packet: bytes) -> list[int]:
    """Where each frame of a packet starts."""
    marker = packet[-1] if packet else 0
    count, size_bytes = (marker & 7) + 1, (marker >> 3 & 3) + 1
    index_bytes = 2 + count * size_bytes
    if marker >> 5 != 6 or len(packet) < index_bytes or packet[-index_bytes] != marker:
        return [0] if packet else []
    at, starts = 0, []
    for number in range(count):
        sizes_at = len(packet) - index_bytes + 1 + number * size_bytes
        starts.append(at)
        at += int.from_bytes(packet[sizes_at : sizes_at + size_bytes], "little")
    return [start for start in starts if start < len(packet) - index_bytes]


def _vp9_head(packet: bytes, at: int) -> tuple[bool, bool]:
    """(is a key frame, is shown)."""
    bits = BitReader(packet[at : at + 2].ljust(2, b"\0"))
    bits.u(2)
    profile = bits.u(1) + 2 * bits.u(1)
    if profile == 3:
        bits.u(1)
    if bits.u(1):  # show_existing_frame
        return False, True
    is_inter = bits.u(1)
    return not is_inter, bool(bits.u(1))


class Mpeg12Reader:
    """ISO/IEC 13818-2, 6.2-6.3.9: picture types, closed and broken groups, gaps in temporal_reference, time codes."""

    def __init__(self) -> None:
        self._is_closed = False
        self._clock = _GroupClock()
        self._older_ref = self._newer_ref = self._last_b = -1
        """temporal_reference of the two reference pictures held, and of the last B-picture between them."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        picture = packet.find(b"\0\0\1\0")
        if picture < 0 or len(packet) < picture + 6:
            return HIDDEN
        is_broken = self._read_group(packet[:picture])
        number = packet[picture + 4] << 2 | packet[picture + 5] >> 6
        kind = packet[picture + 5] >> 3 & 7
        facts = self._clock.order(number) | (DAMAGED if holds_zero_run(packet, may_end_in_zeros=True) else 0)
        if kind == 3:
            return facts | IS_B | (LEADS_SAFELY if self._is_closed else 0) | self._gap_at_b(number)
        if kind == 1:
            self._older_ref, self._newer_ref, self._last_b = -1, number, -1
            return facts | REFERENCE | START | (GAP if is_broken else 0)
        return facts | REFERENCE | self._gap_at_p(number)

    def _read_group(self, head: bytes) -> bool:
        """Read the headers before a picture; True where they say that its leading pictures have lost what they need."""
        sequence, group = head.find(b"\0\0\1\xb3"), head.find(b"\0\0\1\xb8")
        if 0 <= sequence < len(head) - 7:
            self._clock.set_rate(head[sequence + 7] & 15)
        if not 0 <= group < len(head) - 7:
            return False
        self._clock.start_group(int.from_bytes(head[group + 4 : group + 8], "big") >> 7)
        self._is_closed = bool(head[group + 7] & 0x40)
        return bool(head[group + 7] & 0x20) and not self._is_closed

    def _gap_at_b(self, number: int) -> int:
        """B-pictures fill the numbers between the two references around them, one by one (fields share a number)."""
        if number == self._last_b:
            return 0
        expected = max(self._older_ref, self._last_b) + 1
        self._last_b = number
        return 0 if self._older_ref < 0 or expected == number < self._newer_ref else GAP

    def _gap_at_p(self, number: int) -> int:
        """Before the next reference, the numbers between the last two must have come (counters wrap at 1024)."""
        if number == self._newer_ref:
            return 0
        missing = self._older_ref >= 0 and self._newer_ref - 1 > max(self._older_ref, self._last_b)
        is_wrapped = number < self._newer_ref
        self._older_ref, self._newer_ref, self._last_b = (-1 if is_wrapped else self._newer_ref), number, -1
        return GAP if missing and not is_wrapped else 0


class _GroupClock:
    """Counts pictures over groups by their time codes (6.3.8), which tell where a stream was cut and joined."""

    def __init__(self) -> None:
        self._rate = 0
        self._code: int | None = None
        self._base = self._num_pictures = 0

    def set_rate(self, code: int) -> None:
        self._rate = _MPEG_RATES[code] if code < len(_MPEG_RATES) else 0

    def start_group(self, bits: int) -> None:
        """`bits`: the 25 of a time code. Pictures shown longer (film at 30 a second) may make it run ahead by half."""
        minutes = (bits >> 19 & 31) * 60 + (bits >> 13 & 63)
        code = (minutes * 60 + (bits >> 6 & 63)) * self._rate + (bits & 63)
        day = 24 * 3600 * self._rate
        if bits >> 24:
            code, day = code - 2 * (minutes - minutes // 10), day - 2 * 9 * 144
        advance = self._num_pictures if self._code is None or day <= 0 else (code - self._code) % day
        if self._num_pictures <= advance <= self._num_pictures * 3 // 2 + 2:
            advance = self._num_pictures
        self._base, self._code, self._num_pictures = self._base + advance, code, 0

    def order(self, temporal_reference: int) -> int:
        """The facts of a picture's place."""
        self._num_pictures = max(self._num_pictures, temporal_reference + 1)
        return order_of(self._base + temporal_reference, ORDER_BITS)


class Mpeg4Reader:
    """ISO/IEC 14496-2, 6.2.3-6.2.5: the coding type and time of the first VOP. Packets of several VOPs are references.

    A VOP of a few bytes may be one that is not coded, for which no picture comes out.
    """

    def __init__(self, extradata: bytes) -> None:
        self._clock = _VopClock()
        self._clock.read_headers(extradata)

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        vop = packet.find(b"\0\0\1\xb6")
        if vop < 0 or len(packet) < vop + 5:
            return HIDDEN | REFERENCE
        kind = packet[vop + 4] >> 6
        if packet.find(b"\0\0\1\xb6", vop + 4) >= 0 or len(packet) - vop <= _MAX_UNCODED_VOP_BYTES:
            return REFERENCE | NOT_ONE_PICTURE | (START if kind == 0 else 0)
        gap = GAP if self._clock.read_headers(packet[:vop]) and kind == 0 else 0
        facts = self._clock.order(packet[vop + 4 : vop + 16]) | gap
        facts |= DAMAGED if holds_zero_run(packet, may_end_in_zeros=True) else 0
        if kind == 2:
            return facts | IS_B
        return facts | REFERENCE | (START if kind == 0 else 0)


class _VopClock:
    """Times of VOPs in ticks of their layer: seconds are counted from one reference VOP to the next (6.3.5)."""

    def __init__(self) -> None:
        self._ticks_per_s = 0
        self._older_s = self._newer_s = 0
        """Whole seconds of the last two reference VOPs."""

    def read_headers(self, head: bytes) -> bool:
        """Read what comes before a VOP; True where it says that leading pictures have lost what they need."""
        for layer in re.finditer(b"\0\0\1[\x20-\x2f]", head):
            try:
                self._ticks_per_s = _ticks_per_s(BitReader(head[layer.end() : layer.end() + 32]))
            except SourceCorrupt:
                continue
        group = head.find(b"\0\0\1\xb3")
        if not 0 <= group < len(head) - 6:
            return False
        bits = BitReader(head[group + 4 : group + 7])
        hours, minutes, _, seconds = bits.u(5), bits.u(6), bits.u(1), bits.u(6)
        self._newer_s = (hours * 60 + minutes) * 60 + seconds
        is_closed, is_broken = bits.u(1), bits.u(1)
        return bool(is_broken and not is_closed)

    def order(self, head: bytes) -> int:
        """The facts of a VOP's place, by the bytes after its start code; 0 where they cannot be made out."""
        try:
            bits = BitReader(head)
            is_b, passed_s = bits.u(2) == 2, 0
            while bits.u(1):
                passed_s += 1
            bits.u(1)
            ticks = bits.u((self._ticks_per_s - 1).bit_length() or 1)
        except SourceCorrupt:
            return 0
        if not is_b:
            self._older_s, self._newer_s = self._newer_s, self._newer_s + passed_s
        seconds = self._older_s + passed_s if is_b else self._newer_s
        return order_of(seconds * self._ticks_per_s + ticks, ORDER_BITS) if self._ticks_per_s else 0


def _ticks_per_s(layer: BitReader) -> int:
    """6.2.3: vop_time_increment_resolution of a video object layer."""
    layer.u(9)
    version = layer.u(7) >> 3 if layer.u(1) else 1
    if layer.u(4) == 15:
        layer.u(16)  # pixel shape
    if layer.u(1):
        layer.u(3)
        layer.u(79 if layer.u(1) else 0)  # buffer sizes
    if layer.u(2) == 3 and version != 1:
        layer.u(4)
    layer.u(1)
    return layer.u(16)


class DiracReader:
    """Dirac specification 2.2.3, 9.6 and 11.1: the number of a packet's picture, which is its place in presentation."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        unit = packet.find(b"BBCD")
        while unit >= 0 and len(packet) >= unit + 17 and not packet[unit + 4] & 8:
            unit = packet.find(b"BBCD", unit + 13)
        if unit < 0 or len(packet) < unit + 17:
            return HIDDEN
        number = int.from_bytes(packet[unit + 13 : unit + 17], "big")
        is_intra = not packet[unit + 4] & 3  # the number of pictures it refers to
        return REFERENCE | (START if is_intra else 0) | order_of(number, ORDER_BITS)


class GifReader:
    """GIF89a: extension and image blocks, each a chain of sub-blocks that must end within the packet."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        facts = REFERENCE | (START if is_key and packet.startswith(b"GIF") else 0)
        return facts if _is_gif_whole(packet) else facts | DAMAGED


def _is_gif_whole(packet: bytes) -> bool:
    at = 0
    if packet[:3] == b"GIF":
        at = 13 + (3 << (packet[10] & 7) + 1 if len(packet) > 10 and packet[10] & 0x80 else 0)
    has_image = False
    while at < len(packet) and packet[at] != 0x3B:
        if packet[at] == 0x21:
            at = _after_sub_blocks(packet, at + 2)
        elif packet[at] == 0x2C and at + 10 < len(packet):
            table_bytes = 3 << (packet[at + 9] & 7) + 1 if packet[at + 9] & 0x80 else 0
            at, has_image = _after_sub_blocks(packet, at + 11 + table_bytes), True
        else:
            return False
    return has_image and at <= len(packet)


def _after_sub_blocks(packet: bytes, at: int) -> int:
    while at < len(packet) and packet[at]:
        at += 1 + packet[at]
    return at + 1
