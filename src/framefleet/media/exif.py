"""The orientation that a JPEG's Exif segment asks for. Pure."""

from __future__ import annotations

import struct

_ORIENTATION_TAG = 0x112
_SHORT = 3


def exif_orientation(jpeg: bytes) -> int:
    """1 (upright) to 8 (TIFF 6.0, Orientation); 1 where there is none, or none that can be made out."""
    at = 2
    while jpeg[:2] == b"\xff\xd8" and at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] != 0xDA:
        length = int.from_bytes(jpeg[at + 2 : at + 4], "big")
        segment = jpeg[at + 4 : at + 2 + length]
        if jpeg[at + 1] == 0xE1 and segment.startswith(b"Exif\0\0"):
            return _of_tiff(segment[6:])
        at += 2 + length
    return 1


def _of_tiff(tiff: bytes) -> int:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (first,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, first)
        for entry in range(first + 2, first + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if (tag, kind) == (_ORIENTATION_TAG, _SHORT):
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
