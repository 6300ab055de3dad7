"""FFV1 packets (RFC 9043): the slices' checksums, which FFmpeg's decoder reports to nobody but its log."""

from __future__ import annotations

import zlib

from framefleet.media.facts import DAMAGED, TrustingReader

_FOOTER_BYTES = 8
"""Of a slice with a checksum: its length (3), an error status (1) and the parity (4) that makes the whole CRC zero."""
_SIZE_BYTES = 3
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL_ONES = 0xFFFFFFFF


class Ffv1Reader(TrustingReader):
    """Believes the container about keyframes. A stream whose slices have checksums is checked by them."""

    def __init__(self) -> None:
        self._has_checksums = False

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        facts = super().read(packet, is_key=is_key)
        slices = _slices(packet)
        self._has_checksums |= bool(slices)
        is_whole = bool(slices) and all(map(_is_intact, slices))
        return facts | DAMAGED if self._has_checksums and not is_whole else facts


def _slices(packet: bytes) -> list[bytes]:
    """From the last to the first; none unless the lengths, read as if there were checksums, fill the packet."""
    found, end = [], len(packet)
    while end >= _FOOTER_BYTES:
        footer = end - _FOOTER_BYTES
        start = footer - int.from_bytes(packet[footer : footer + _SIZE_BYTES], "big")
        if start < 0:
            return []
        found.append(packet[start:end])
        end = start
    return [] if end else found


def _is_intact(piece: bytes) -> bool:
    """4.9.3: CRC-32 with the highest bit first, from zero; zlib has the mirrored one, inverted at both ends."""
    return zlib.crc32(piece.translate(_MIRRORED), _ALL_ONES) == _ALL_ONES
