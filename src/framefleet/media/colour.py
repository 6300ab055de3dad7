"""What a stream says about its colours, with the rules for what it leaves unsaid. Pure but for reading tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framefleet.errors import SourceUnsupported

# Code points of ITU-T H.273.
_MATRIX_NAMES = {
    0: "rgb", 1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 7: "smpte240m", 9: "bt2020", 10: "bt2020",
}  # fmt: skip
_NO_WEIGHTED_SUMS = {8: "YCgCo", 11: "YDzDx", 13: "chromaticity-derived constant luminance", 14: "ICtCp", 15: "IPT-C2"}
"""Swscale has no coefficients for these."""
_TRANSFER_NAMES = {16: "pq", 18: "hlg"}
_UNSPECIFIED = 2
_PRIMARIES_BT2020 = 9
_LIMITED, _FULL = 1, 2  # FFmpeg's code points of ranges; 0 is unspecified
_SD_MAX_WIDTH, _SD_MAX_HEIGHT = 1279, 576


@dataclass(frozen=True, slots=True)
class ColourTags:
    """Code points: 2 is unspecified, and 0 for the range (1 limited, 2 full)."""

    matrix: int = _UNSPECIFIED
    primaries: int = _UNSPECIFIED
    transfer: int = _UNSPECIFIED
    range: int = 0

    @classmethod
    def of(cls, tagged: Any) -> ColourTags:
        """Of an `av.VideoFrame`, or of a codec context: before it decodes, it tells what the container says."""
        codes = (tagged.colorspace, tagged.color_primaries, tagged.color_trc, tagged.color_range)
        return cls(*(int(code) for code in codes))

    def or_else(self, other: ColourTags) -> ColourTags:
        """Filled up from `other`. Where the matrix comes from there the range does too: without a word of the stream's
        HEVC's decoder says limited.
        """
        names_matrix = self.matrix != _UNSPECIFIED
        return ColourTags(
            self.matrix if names_matrix else other.matrix,
            other.primaries if self.primaries == _UNSPECIFIED else self.primaries,
            other.transfer if self.transfer == _UNSPECIFIED else self.transfer,
            (self.range or other.range) if names_matrix else (other.range or self.range),
        )


NO_TAGS = ColourTags()


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


def colour_claims(own: ColourTags, container: ColourTags, pix_fmt: str, width: int, height: int) -> ColourClaims:
    """By a picture's own tags; where it has none, by its container's. Untagged video up to 1279x576 is taken as BT.601,
    larger as BT.709, and as BT.2020 where the primaries or HDR tell; a range that nobody tells as limited, but full for
    grey, as FFmpeg writes it.

    Raises SourceUnsupported for matrices that cannot be converted here.
    """
    import av  # heavy, and StreamInfo, which is everywhere, leads here

    layout = av.VideoFormat(pix_fmt) if pix_fmt else None
    is_rgb = bool(layout and layout.is_rgb) or pix_fmt == "pal8"
    chroma = _chroma(layout, is_rgb=is_rgb)
    tags = own.or_else(container)
    transfer = _TRANSFER_NAMES.get(tags.transfer, "sdr")
    untagged_range = _FULL if chroma == "4:0:0" else _LIMITED
    return ColourClaims(
        matrix="rgb" if is_rgb else _matrix(tags, width, height),
        is_matrix_tagged=is_rgb or own.matrix in _MATRIX_NAMES,
        is_full_range=is_rgb or (tags.range or untagged_range) == _FULL or pix_fmt.startswith("yuvj"),
        transfer=transfer,
        bit_depth=max((c.bits for c in layout.components), default=8) if layout else 8,
        chroma=chroma,
        has_alpha=pix_fmt == "pal8" or any(c.is_alpha for c in layout.components) if layout else False,
        is_wide_gamut=tags.primaries == _PRIMARIES_BT2020 or (transfer != "sdr" and tags.primaries == _UNSPECIFIED),
    )


def _matrix(tags: ColourTags, width: int, height: int) -> str:
    if strange := _NO_WEIGHTED_SUMS.get(tags.matrix):
        raise SourceUnsupported("the clip's colours cannot be converted", given=strange, remedy="convert it to BT.709")
    known = _MATRIX_NAMES.get(tags.matrix)
    if known and known != "rgb":
        return known
    is_hdr = tags.transfer in _TRANSFER_NAMES
    if tags.primaries == _PRIMARIES_BT2020 or (is_hdr and tags.primaries == _UNSPECIFIED):
        return "bt2020"
    return "bt601" if width <= _SD_MAX_WIDTH and height <= _SD_MAX_HEIGHT else "bt709"


def _chroma(layout: Any, *, is_rgb: bool) -> str:
    if is_rgb or layout is None:
        return "rgb" if is_rgb else "4:2:0"
    if sum(not c.is_alpha for c in layout.components) == 1:
        return "4:0:0"
    halves = (layout.chroma_width(64) <= 32, layout.chroma_height(64) <= 32)
    return {(True, True): "4:2:0", (True, False): "4:2:2", (False, True): "4:4:0"}.get(halves, "4:4:4")
