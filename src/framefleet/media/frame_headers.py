"""VP8, VP9, MPEG-1/2, MPEG-4 part 2 and GIF packets, read as far as their frame headers."""

from __future__ import annotations

from framefleet.media.bits import BitReader
from framefleet.media.facts import (
    DAMAGED,
    GAP,
    HIDDEN,
    IS_B,
    LEADS_SAFELY,
    NOT_ONE_PICTURE,
    REFERENCE,
    START,
    holds_zero_run,
)

_MAX_UNCODED_VOP_BYTES = 19


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
    """ISO/IEC 13818-2, 6.2-6.3.9: picture types, closed groups of pictures, gaps in temporal_reference."""

    def __init__(self) -> None:
        self._is_closed = False
        self._older_ref = self._newer_ref = self._last_b = -1
        """temporal_reference of the two reference pictures held, and of the last B-picture between them."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        picture = packet.find(b"\0\0\1\0")
        if picture < 0 or len(packet) < picture + 6:
            return HIDDEN
        group = packet.find(b"\0\0\1\xb8", 0, picture)
        if 0 <= group < len(packet) - 7:
            self._is_closed = bool(packet[group + 7] & 0x40)
        number = packet[picture + 4] << 2 | packet[picture + 5] >> 6
        kind = packet[picture + 5] >> 3 & 7
        facts = DAMAGED if holds_zero_run(packet, may_end_in_zeros=True) else 0
        if kind == 3:
            return facts | IS_B | (LEADS_SAFELY if self._is_closed else 0) | self._gap_at_b(number)
        if kind == 1:
            self._older_ref, self._newer_ref, self._last_b = -1, number, -1
            return facts | REFERENCE | START
        return facts | REFERENCE | self._gap_at_p(number)

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


class Mpeg4Reader:
    """ISO/IEC 14496-2, 6.2.5: the coding type of the first VOP. Packets of several VOPs are references.

    A VOP of a few bytes may be one that is not coded, for which no picture comes out.
    """

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        vop = packet.find(b"\0\0\1\xb6")
        if vop < 0 or len(packet) < vop + 5:
            return HIDDEN | REFERENCE
        kind = packet[vop + 4] >> 6
        if packet.find(b"\0\0\1\xb6", vop + 4) >= 0 or len(packet) - vop <= _MAX_UNCODED_VOP_BYTES:
            return REFERENCE | NOT_ONE_PICTURE | (START if kind == 0 else 0)
        damage = DAMAGED if holds_zero_run(packet, may_end_in_zeros=True) else 0
        if kind == 2:
            return IS_B | damage
        return REFERENCE | damage | (START if kind == 0 else 0)


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
