"""Orientation: the turn and mirror that a display matrix or Exif asks for. Pure but for reading the side data."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from framefleet.media.pictures import exif_of


@dataclass(frozen=True, slots=True)
class Orientation:
    """Mirror left-right first (`hflip`), then turn clockwise by `rotation_deg` (0, 90, 180, 270).

    `tilt_deg` is what was asked for beyond that, clockwise; no picture is tilted here.
    """

    rotation_deg: int = 0
    hflip: bool = False
    tilt_deg: float = 0.0

    @property
    def swaps_sides(self) -> bool:
        """Width and height change places."""
        return self.rotation_deg in (90, 270)


UPRIGHT = Orientation()
_MIN_TILT_DEG = 1.0
"""As in ffmpeg's own tools, which leave smaller ones alone."""
_OF_EXIF = (
    UPRIGHT, Orientation(hflip=True), Orientation(180), Orientation(180, hflip=True), Orientation(270, hflip=True),
    Orientation(90), Orientation(90, hflip=True), Orientation(270),
)  # fmt: skip
"""By TIFF's numbers, from 1."""


def orientation_of(picture: Any) -> Orientation:
    """Of an `av.VideoFrame` out of a `PictureFeed`, by its display matrix or Exif; upright when it has none."""
    try:
        matrix = picture.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV gives no side data if one kind is new to it, as Exif is
        if (exif := exif_of(picture)) > 1:
            return _OF_EXIF[exif - 1]
        return Orientation(rotation_deg=-round(picture.rotation / 90) * 90 % 360)
    return orientation_of_matrix(struct.unpack("<9i", bytes(matrix)[:36])) if matrix else UPRIGHT


def orientation_of_matrix(matrix: tuple[int, ...]) -> Orientation:
    """Of the nine 16.16 fixed-point numbers of a display matrix (ISO/IEC 14496-12, 8.3.2), row by row.

    A picture point (x, y), y down, is shown at (a·x + c·y, b·x + d·y). A turn is the nearest multiple of 90 degrees,
    and the rest a tilt if it is a degree or more; a matrix without an inverse is taken as upright.
    """
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    determinant = a * d - b * c
    if determinant == 0:
        return UPRIGHT
    hflip = determinant < 0
    if hflip:  # shown = turn(mirror(p)): undo the mirror on the x axis to find the turn
        a, b = -a, -b
    asked_deg = math.degrees(math.atan2(b, a))
    turn = round(asked_deg / 90) * 90
    tilt_deg = round(asked_deg - turn, 1)
    return Orientation(turn % 360, hflip, tilt_deg if abs(tilt_deg) >= _MIN_TILT_DEG else 0.0)
