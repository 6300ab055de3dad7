"""Flat colour patches whose samples are computed here, so that the truth is known without any decoder."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

COLOURS = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (128, 128, 128), (0, 0, 0), (200, 30, 60)])
GREYS = np.array([(level,) * 3 for level in (0, 30, 60, 128, 200, 235, 255)])
SIDE = 32
WIDTH, HEIGHT = SIDE * len(COLOURS), 64
MATRIX, PRIMARIES, TRANSFER, RANGE = range(4)
UNTAGGED = (2, 2, 2, 0)
_WEIGHTS = {1: (0.2126, 0.0722), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}
_OPTIONS = {
    "libx265": {"x265-params": "log-level=none:pools=none:frame-threads=1:bframes=0"},  # else dts are wrong at times
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
}


def write_patches(
    path: Path,
    colours: np.ndarray = COLOURS,
    *,
    codec: str = "libx265",
    pix_fmt: str = "yuv420p",
    matrix: int = 1,
    is_full: bool = False,
    tags: tuple[int, int, int, int] = UNTAGGED,
) -> Path:
    """Seven patches side by side in two frames; `tags` (matrix, primaries, transfer, range) are what it says."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pix_fmt
        stream.options = {"crf": "4", "b": "0", **_OPTIONS.get(codec, {})}
        context = stream.codec_context
        context.colorspace, context.color_primaries, context.color_trc, context.color_range = tags
        for row in range(2):
            picture = _picture(colours, pix_fmt, matrix, is_full=is_full)
            picture.pts, picture.time_base = row, Fraction(1, 10)
            picture.colorspace, picture.color_primaries, picture.color_trc, picture.color_range = tags
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def patches_of(picture: np.ndarray) -> np.ndarray:
    """[7, 3] the colours in the middle of the patches of an RGB picture."""
    return picture[picture.shape[0] // 2, SIDE // 2 :: SIDE].astype(int)


def with_colr(content: bytes, matrix: int, *, is_full: bool = False) -> bytes:
    """An MP4 whose index comes last, with an `nclx` colour box at the end of its only sample entry."""
    box = struct.pack(">I4s4sHHHB", 19, b"colr", b"nclx", matrix, matrix, matrix, is_full << 7)
    at = content.find(b"stts") - 4
    grown = bytearray(content)
    entry = content.find(b"stsd") + 16
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", content[entry : entry + 4]):
        start = content.find(kind, entry if kind == content[entry : entry + 4] else content.find(b"moov")) - 4
        grown[start : start + 4] = struct.pack(">I", struct.unpack_from(">I", content, start)[0] + len(box))
    grown[at:at] = box
    return bytes(grown)


def _picture(colours: np.ndarray, pix_fmt: str, matrix: int, *, is_full: bool) -> av.VideoFrame:
    picture = av.VideoFrame(WIDTH, HEIGHT, pix_fmt)
    bits = picture.format.components[0].bits
    rgb = np.repeat(colours, SIDE, axis=0)[None].repeat(HEIGHT, axis=0) / 255
    kr, kb = _WEIGHTS[matrix]
    luma = rgb @ (kr, 1 - kr - kb, kb)
    chroma = (rgb[..., 2] - luma) / (2 * (1 - kb)), (rgb[..., 0] - luma) / (2 * (1 - kr))
    top = (1 << bits) - 1
    if is_full:
        samples = [luma * top, *(part * top + (1 << (bits - 1)) for part in chroma)]
    else:
        samples = [(219 * luma + 16) * 2 ** (bits - 8), *((224 * part + 128) * 2 ** (bits - 8) for part in chroma)]
    for plane, values in zip(picture.planes, samples, strict=False):
        shrunk = values[:: HEIGHT // plane.height, :: WIDTH // plane.width]
        rows = np.zeros((plane.height, plane.line_size // (1 + (bits > 8))), "<u2" if bits > 8 else np.uint8)
        rows[:, : plane.width] = np.clip(np.rint(shrunk), 0, top)
        plane.update(rows.tobytes())
    return picture
