"""VP8, VP9, MPEG-1/2 and MPEG-4 part 2 packets, read as far as their frame headers."""

from __future__ import annotations

from framefleet.media.bits import BitReader
from framefleet.media.facts import HIDDEN, IS_B, LEADS_SAFELY, NOT_ONE_PICTURE, REFERENCE, START


class Vp8Reader:
    """RFC 6386, 9.1: the first byte tells key frames and hidden (alternative reference) frames."""

    def read(self, packet: bytes, *, is_key: bool) -> int:  # noqa: ARG002
        """See FactReader."""
        if not packet:
            return HIDDEN
        return REFERENCE | (0 if packet[0] & 1 else START) | (0 if packet[0] & 16 else HIDDEN)


class Vp9Reader:
    """VP9 bitstream specification, 6.1-6.2 and annex B: a packet is shown if one of its frames is.

    Frames that refresh no reference are still taken as references: they may renew the coder's saved statistics.
    """

    def read(self, packet: bytes, *, is_key: bool) -> int:  # noqa: ARG002
        """See FactReader."""
        heads = [_vp9_head(packet, at) for at in _superframe(packet)]
        facts = REFERENCE | (START if heads and heads[0][0] else 0)
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
    """ISO/IEC 13818-2, 6.2: picture types, and whether a group of pictures is closed."""

    def __init__(self) -> None:
        self._is_closed = False

    def read(self, packet: bytes, *, is_key: bool) -> int:  # noqa: ARG002
        """See FactReader."""
        picture = packet.find(b"\0\0\1\0")
        if picture < 0 or len(packet) < picture + 6:
            return HIDDEN
        group = packet.find(b"\0\0\1\xb8", 0, picture)
        if 0 <= group < len(packet) - 7:
            self._is_closed = bool(packet[group + 7] & 0x40)
        kind = packet[picture + 5] >> 3 & 7
        if kind == 3:
            return IS_B | (LEADS_SAFELY if self._is_closed else 0)
        return REFERENCE | (START if kind == 1 else 0)


class Mpeg4Reader:
    """ISO/IEC 14496-2, 6.2.5: the coding type of the first VOP. Packets of several VOPs ("packed" B-frames) are references."""

    def read(self, packet: bytes, *, is_key: bool) -> int:  # noqa: ARG002
        """See FactReader."""
        vop = packet.find(b"\0\0\1\xb6")
        if vop < 0 or len(packet) < vop + 5:
            return HIDDEN | REFERENCE
        kind = packet[vop + 4] >> 6
        if packet.find(b"\0\0\1\xb6", vop + 4) >= 0:
            return REFERENCE | NOT_ONE_PICTURE | (START if kind == 0 else 0)
        if kind == 2:
            return IS_B
        return REFERENCE | (START if kind == 0 else 0)
