"""From a decoded picture to upright RGB at the output size: colour, scale, turn, alpha, HDR, fields, in one place.

Matrix and range come from each picture's tags (`media.colour` has the rules for untagged ones). Scaling is bicubic in
one pass with the colour conversion. Transparent pictures are laid on black. HDR goes through `decode.tonemap`.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from framefleet.decode.tonemap import METHOD, to_sdr
from framefleet.media.colour import ColourClaims, ColourTags, colour_claims
from framefleet.media.info import StreamInfo

UInt8 = npt.NDArray[np.uint8]
_MATRIX = {
    "bt601": Colorspace.ITU601,
    "bt709": Colorspace.ITU709,
    "smpte240m": Colorspace.SMPTE240M,
    "bt2020": Colorspace.BT2020,
    "rgb": Colorspace.DEFAULT,
}
_SCALING = (
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
)
_FORMATS_CONVERTED_FAST = frozenset(("yuv420p", "yuvj420p"))
"""At their own size swscale converts these 20 times as fast if chroma may be repeated instead of interpolated: the same
colours (within 2 levels) but on the pixel beside a sharp colour edge. OpenCV and TorchCodec do so too."""


class PictureWriter:
    """Turns pictures of one clip into RGB arrays of one size; keeps the scaler's tables between pictures."""

    def __init__(self, info: StreamInfo, width: int, height: int) -> None:
        self._info = info
        self._size = (height, width) if info.rotation_deg in (90, 270) else (width, height)
        self._scaler = VideoReformatter()
        self._claims: dict[tuple[ColourTags, str, int, int], ColourClaims] = {}
        self.notes: list[str] = []
        self.tone_mapped = ""
        self.seconds = 0.0
        """Spent here so far."""

    def write(self, picture: Any, out: UInt8) -> None:
        """Fill `out`, uint8 RGB [H, W, 3]."""
        started_s = time.monotonic()
        self._note_size(picture)
        claims = self._claims_of(picture)
        if claims.has_alpha:
            picture = self._on_black(picture, claims)
            claims = self._claims_of(picture)
        if claims.transfer == "sdr":
            rgb = self._rgb(picture, claims, np.uint8)
        else:
            self.tone_mapped = METHOD[claims.transfer]
            rgb = to_sdr(self._rgb(picture, claims, np.uint16), claims.transfer, claims.is_wide_gamut)
        out[...] = turn_upright(rgb, self._info)
        self.seconds += time.monotonic() - started_s

    def _note_size(self, picture: Any) -> None:
        coded = (self._info.coded_width, self._info.coded_height)
        if (picture.width, picture.height) != coded:
            note = f"pictures of {picture.width}x{picture.height} among {coded[0]}x{coded[1]}, brought to one size"
            if note not in self.notes:
                self.notes.append(note)

    def _claims_of(self, picture: Any) -> ColourClaims:
        own = ColourTags.of(picture)
        key = (own, picture.format.name, picture.width, picture.height)
        if key not in self._claims:
            self._claims[key] = colour_claims(own, self._info.container_colours, *key[1:])
        return self._claims[key]

    def _rgb(self, picture: Any, claims: ColourClaims, dtype: Any) -> npt.NDArray[Any]:
        """[H, W, 3], full range, in the output's size but not turned yet."""
        converted = self._convert(picture, claims, "rgb24" if dtype is np.uint8 else "rgb48le", self._size)
        rgb = plane_of(converted, 3, dtype)
        is_limited_grey = claims.chroma == "4:0:0" and not claims.is_full_range
        return _stretch(dtype)[rgb] if is_limited_grey else rgb

    def _convert(self, picture: Any, claims: ColourClaims, pix_fmt: str, size: tuple[int, int]) -> Any:
        return self._scaler.reformat(
            picture,
            width=size[0],
            height=size[1],
            format=pix_fmt,
            src_colorspace=_MATRIX[claims.matrix],
            dst_colorspace=Colorspace.DEFAULT,
            src_color_range=ColorRange.JPEG if claims.is_full_range else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=Interpolation.BICUBIC if _is_fast(picture, size) else _SCALING,
            threads=1,
        )

    def _on_black(self, picture: Any, claims: ColourClaims) -> Any:
        """Composited at full size, before scaling can mix hidden colours into visible ones."""
        rgba = plane_of(self._convert(picture, claims, "rgba", (picture.width, picture.height)), 4)
        alpha = rgba[..., 3:].astype(np.uint16)
        return av.VideoFrame.from_ndarray(((rgba[..., :3] * alpha + 127) // 255).astype(np.uint8), format="rgb24")


@cache
def _stretch(dtype: Any) -> npt.NDArray[Any]:
    """Limited to full range by level: swscale takes every grey picture for full range, whatever it is told."""
    top = np.iinfo(dtype).max
    levels = (np.arange(top + 1) / top * 255 - 16) / 219
    return np.asarray(np.rint(np.clip(levels, 0, 1) * top), dtype)


def _is_fast(picture: Any, size: tuple[int, int]) -> bool:
    width, height = size
    is_same = (picture.width, picture.height) == size and not width % 2 and not height % 2
    return is_same and picture.format.name in _FORMATS_CONVERTED_FAST


def plane_of(picture: Any, channels: int, dtype: Any = np.uint8) -> npt.NDArray[Any]:
    """A view [H, W, channels] of a packed picture's only plane."""
    plane = picture.planes[0]
    rows = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // np.dtype(dtype).itemsize)
    return rows[: picture.height, : picture.width * channels].reshape(picture.height, picture.width, channels)


def turn_upright(rgb: UInt8, info: StreamInfo) -> UInt8:
    """A view of [H, W, 3], mirrored and turned as `info` asks."""
    if info.hflip:
        rgb = rgb[:, ::-1]
    return np.rot90(rgb, k=-(info.rotation_deg // 90)) if info.rotation_deg else rgb


class Deinterlacer:
    """FFmpeg's bwdif on the pictures of one run, in order; progressive pictures pass unchanged."""

    def __init__(self) -> None:
        self._graph: Any = None

    def push(self, picture: Any) -> list[Any]:
        """Pictures that are ready; each keeps the `opaque` of the one it was made from."""
        if self._graph is None:
            self._graph = av.filter.Graph()
            source = self._graph.add_buffer(
                width=picture.width, height=picture.height, format=picture.format, time_base=picture.time_base
            )
            bwdif = self._graph.add("bwdif", "mode=send_frame:deint=interlaced")
            sink = self._graph.add("buffersink")
            source.link_to(bwdif)
            bwdif.link_to(sink)
            self._graph.configure()
        self._graph.push(picture)
        return self._pull()

    def drain(self) -> list[Any]:
        """The rest."""
        if self._graph is None:
            return []
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> list[Any]:
        ready = []
        while True:
            try:
                ready.append(self._graph.pull())
            except (av.error.BlockingIOError, av.error.EOFError):
                return ready
