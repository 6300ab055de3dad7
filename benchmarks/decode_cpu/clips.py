"""The clips measured on: a moving picture drawn by rule, its frame number in a barcode, written and cached by PyAV."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

import framefleet

BARCODE_BITS = 16
BLOCK_PX = 16
DRAWING = "5"
"""Raise when what is drawn changes, so that cached clips are made anew."""
UInt8 = npt.NDArray[np.uint8]
_TIME_BASE = Fraction(1, 90_000)


@dataclass(frozen=True, slots=True)
class ClipSpec:
    """One clip."""

    name: str
    width: int
    height: int
    seconds: int
    gop: int
    codec: str = "libx264"
    b_frames: int = 3
    fps: int = 30
    drawn_s: int = 20
    """Longer clips show this much of the world again and again: the coded packets are repeated with later stamps."""

    @property
    def num_frames(self) -> int:
        """N."""
        return self.seconds * self.fps

    @property
    def num_drawn(self) -> int:
        """Frames drawn and encoded; frame n carries the barcode n modulo this."""
        return min(self.seconds, self.drawn_s) * self.fps

    def path(self) -> Path:
        """Where it is cached; written if it is not there yet."""
        digest = hashlib.blake2b(
            json.dumps([asdict(self), DRAWING, av.__version__]).encode(), digest_size=6
        ).hexdigest()
        folder = Path(os.environ.get("FRAMEFLEET_BENCH_CLIPS", tempfile.gettempdir())) / "framefleet-bench-clips"
        path = folder / f"{self.name}-{digest}.mp4"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}.part")
            write(self, unfinished)
            unfinished.rename(path)
        return path


@dataclass(frozen=True, slots=True)
class SceneClip:
    """One of the drawn driving scenes that ship with the package. It carries no barcode."""

    name: str
    num_frames: int

    def path(self) -> Path:
        """In the package."""
        return Path(framefleet.__file__).parent / "scenes" / "samples" / f"{self.name}.mp4"


_ENCODERS = {
    "libx264": {
        "preset": "veryfast", "sc_threshold": "0", "crf": "23",
        "x264-params": "open-gop=0:b-pyramid=normal:b-adapt=0",
    },
    "libx265": {"preset": "ultrafast", "crf": "26"},
    "libsvtav1": {"preset": "10", "crf": "38", "svtav1-params": "lp=1"},
}  # fmt: skip


def write(spec: ClipSpec, path: Path) -> None:
    """Encode with B-pictures and pyramids, closed GOPs of a fixed length, as a camera or an encoding service would."""
    options = _ENCODERS[spec.codec] | {"g": str(spec.gop), "keyint_min": str(spec.gop), "bf": str(spec.b_frames)}
    if spec.codec == "libx265":
        params = f"keyint={spec.gop}:min-keyint={spec.gop}:bframes={spec.b_frames}:open-gop=0:scenecut=0:log-level=none"
        options |= {"x265-params": params}
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(spec.codec, rate=spec.fps)
        stream.width, stream.height, stream.pix_fmt, stream.options = spec.width, spec.height, "yuv420p", options
        stream.codec_context.colorspace = stream.codec_context.color_primaries = stream.codec_context.color_trc = 1
        stream.time_base = stream.codec_context.time_base = _TIME_BASE
        once = [(bytes(packet), packet.pts, packet.dts, packet.is_keyframe) for packet in _encoded(spec, stream)]
        for start in range(0, spec.num_frames, spec.num_drawn):
            for content, pts, dts, is_key in once:
                packet = av.Packet(content)
                packet.stream, packet.time_base, packet.is_keyframe = stream, _TIME_BASE, is_key
                packet.pts, packet.dts = pts + _ticks(start, spec), dts + _ticks(start, spec)
                container.mux(packet)


def _encoded(spec: ClipSpec, stream: Any) -> Iterator[Any]:
    painter = Painter(spec.width, spec.height)
    for row in range(spec.num_drawn):
        picture = painter.picture(row)
        picture.pts, picture.time_base = _ticks(row, spec), _TIME_BASE
        yield from stream.encode(picture)
    yield from stream.encode(None)


def _ticks(row: int, spec: ClipSpec) -> int:
    return round(row / (spec.fps * _TIME_BASE))


class Painter:
    """A textured world that pans, six moving cars, sensor noise of a few levels, and the barcode."""

    def __init__(self, width: int, height: int) -> None:
        self._size = (height, width)
        rng = np.random.default_rng(7)
        coarse = rng.normal(0, 1, (height // 16 + 2, width // 8 + 2))
        world = np.kron(coarse, np.ones((16, 16)))[:height, : 2 * width]
        fine = rng.normal(0, 2, (height, 2 * width))
        slope = np.linspace(80, 150, height)[:, None]
        self._world = np.clip(slope + 14 * _blurred(world) + fine, 20, 230).astype(np.uint8)
        self._noise = rng.normal(0, 4.2, (height, width + 512)).astype(np.int8)
        self._chroma = np.clip(128 + 30 * _blurred(world)[::2, ::2], 40, 210).astype(np.uint8)
        self._cars = rng.uniform((0.05, 0.3, 1, 0.5), (0.9, 0.9, 6, 1), (6, 4))

    def picture(self, row: int) -> av.VideoFrame:
        """Frame `row` as yuv420p."""
        height, width = self._size
        pan, shake = (row * 2) % width // 2 * 2, (row * 97) % 512
        luma = self._world[:, pan : pan + width].astype(np.int16) + self._noise[:, shake : shake + width]
        chroma = self._chroma[:, pan // 2 : pan // 2 + width // 2]
        blue, red = chroma.copy(), (255 - chroma).astype(np.uint8)
        for nth, (x, y, speed, bright) in enumerate(self._cars):
            left = int(x * width + speed * row) % (width - width // 8)
            top, tall, wide = int(y * (height - height // 8)), height // 10, width // 10
            luma[top : top + tall, left : left + wide] = int(60 + 150 * bright)
            blue[top // 2 : (top + tall) // 2, left // 2 : (left + wide) // 2] = 60 + 30 * nth
        luma = np.clip(luma, 16, 235).astype(np.uint8)
        for bit in range(BARCODE_BITS):
            luma[:BLOCK_PX, bit * BLOCK_PX : (bit + 1) * BLOCK_PX] = 235 if row >> bit & 1 else 16
        half = BLOCK_PX // 2
        blue[:half, : half * BARCODE_BITS] = red[:half, : half * BARCODE_BITS] = 128
        return av.VideoFrame.from_ndarray(
            np.concatenate([luma.ravel(), blue.ravel(), red.ravel()]).reshape(-1, width), "yuv420p"
        )


def _blurred(texture: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    for axis in (0, 1):
        texture = sum(np.roll(texture, shift, axis) for shift in range(-6, 7)) / 13
    return texture


def read_barcode(frame: UInt8) -> int:
    """The number in a native-size RGB frame [H, W, 3]."""
    xs = np.arange(BARCODE_BITS) * BLOCK_PX + BLOCK_PX // 2
    return int(sum(1 << bit for bit, level in enumerate(frame[BLOCK_PX // 2, xs].mean(axis=-1)) if level > 127))
