"""Small clips made on the spot, every frame carrying its number in the barcode that `read_barcode` reads back."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from framefleet.decode.backends.fake import draw_frame

WIDTH, HEIGHT = 320, 176
TIME_BASE = Fraction(1, 90_000)

BT601, BT709 = 6, 1


def write_clip(
    path: Path,
    num_frames: int = 60,
    *,
    codec: str = "libx264",
    gop: int = 12,
    b_frames: int = 2,
    fps: int = 30,
    times: list[float] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    pix_fmt: str = "yuv420p",
    matrix: int | None = None,
    options: dict[str, str] | None = None,
    time_base: Fraction = TIME_BASE,
) -> Path:
    """Write `path`; its suffix names the container. `times` in seconds in place of a constant rate.

    `matrix` tags (and converts by) BT601 or BT709; None leaves the stream untagged and converts by BT.601.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.time_base = stream.codec_context.time_base = time_base
        quiet = {"x265-params": f"log-level=none:bframes={b_frames}"} if codec == "libx265" else {"bf": str(b_frames)}
        stream.options = {"g": str(gop), "crf": "12", "threads": "1", **quiet, **(options or {})}
        if matrix is not None:
            stream.codec_context.colorspace = matrix
        for row in range(num_frames):
            picture = _picture(row, size, pix_fmt, matrix)
            seconds = times[row] if times else row / fps
            picture.pts, picture.time_base = round(seconds / time_base), time_base
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def _picture(row: int, size: tuple[int, int], pix_fmt: str, matrix: int | None) -> av.VideoFrame:
    rgb = np.ascontiguousarray(tinted(draw_frame(row, *size, size[0])))
    return av.VideoFrame.from_ndarray(rgb, "rgb24").reformat(
        format=pix_fmt, dst_colorspace=BT709 if matrix == BT709 else 5, dst_color_range=1
    )


def tinted(grey: np.ndarray) -> np.ndarray:
    """The lower half in strong colours, so that a wrong matrix shows."""
    half = grey.shape[0] // 2
    coloured = grey.copy()
    coloured[half:, :, 0] = 200
    coloured[half:, :, 1] = 30
    coloured[half:, :, 2] = 60
    return coloured


def flip_bits(path: Path, to: Path, *, seed: int, num_flips: int = 4) -> Path:
    """A copy with bits flipped in the middle part of the file, where the pictures are."""
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for at in rng.integers(len(content) * 3 // 10, len(content) * 9 // 10, num_flips):
        content[at] ^= 1 << int(rng.integers(8))
    to.write_bytes(content)
    return to
