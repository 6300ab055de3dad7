"""What a stream says about its colours, with the rules for what it leaves unsaid. Pure but for reading tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av

from framefleet.errors import SourceUnsupported

# Code points of ITU-T H.273.
_MATRIX_NAMES = {
    0: "rgb", 1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 7: "smpte240m", 9: "bt2020", 10: "bt2020",
}  # fmt: skip
_NO_WEIGHTED_SUMS = {8: "YCgCo", 11: "YDzDx", 13: "chromaticity-derived constant luminance", 14: "ICtCp", 15: "IPT-C2"}
"""Swscale has no coefficients for these."""
_TRANSFER_NAMES = {16: "pq", 18: "hlg"}
_PRIMARIES_BT2020 = 9
_SD_MAX_WIDTH, _SD_MAX_HEIGHT = 1279, 576


@dataclass(frozen=True, slots=True)
class ColourClaims:
    """Matrix, range and transfer by tag or by rule, and the layout of the samples."""

    matrix: str
    is_matrix_tagged: bool
    is_full_range: bool
    transfer: str
    bit_depth: int
    chroma: str
    has_alpha: bool
    is_wide_gamut: bool


def colour_claims(tagged: Any, pix_fmt: str, width: int, height: int) -> ColourClaims:
    """Of an `av.VideoFrame` or codec context. Untagged video up to 1279x576 is taken as BT.601, larger as BT.709.

    Raises SourceUnsupported for matrices that cannot be converted here.
    """
    layout = av.VideoFormat(pix_fmt) if pix_fmt else None
    is_rgb = bool(layout and layout.is_rgb) or pix_fmt == "pal8"
    return ColourClaims(
        matrix="rgb" if is_rgb else _matrix(tagged, width, height),
        is_matrix_tagged=is_rgb or tagged.colorspace in _MATRIX_NAMES,
        is_full_range=is_rgb or tagged.color_range == 2 or pix_fmt.startswith("yuvj"),
        transfer=_TRANSFER_NAMES.get(tagged.color_trc, "sdr"),
        bit_depth=max((c.bits for c in layout.components), default=8) if layout else 8,
        chroma=_chroma(layout, is_rgb=is_rgb),
        has_alpha=pix_fmt == "pal8" or any(c.is_alpha for c in layout.components) if layout else False,
        is_wide_gamut=tagged.color_primaries == _PRIMARIES_BT2020,
    )


def _matrix(tagged: Any, width: int, height: int) -> str:
    if strange := _NO_WEIGHTED_SUMS.get(tagged.colorspace):
        raise SourceUnsupported("the clip's colours cannot be converted", given=strange, remedy="convert it to BT.709")
    known = _MATRIX_NAMES.get(tagged.colorspace)
    if known and known != "rgb":
        return known
    if tagged.color_primaries == _PRIMARIES_BT2020:
        return "bt2020"
    return "bt601" if width <= _SD_MAX_WIDTH and height <= _SD_MAX_HEIGHT else "bt709"


def _chroma(layout: Any, *, is_rgb: bool) -> str:
    if is_rgb or layout is None:
        return "rgb" if is_rgb else "4:2:0"
    if sum(not c.is_alpha for c in layout.components) == 1:
        return "4:0:0"
    halves = (layout.chroma_width(64) <= 32, layout.chroma_height(64) <= 32)
    return {(True, True): "4:2:0", (True, False): "4:2:2", (False, True): "4:4:0"}.get(halves, "4:4:4")
