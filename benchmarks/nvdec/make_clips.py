"""The clips of the NVDEC benchmark, encoded by PyAV where they are used (they are too large to keep).

    python benchmarks/nvdec/make_clips.py OUT [--quick]

A textured picture slides under moving bars, with a little noise, so that motion vectors and residuals are those of
film rather than of flat drawings. The 5 minute clip repeats 30 s of packets: decoding costs the same, encoding less.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

CLIPS = {
    "h264_1080p_20s": ("libx264", 1920, 1080, 20, {"preset": "medium", "g": "60", "b": "4300000"}),
    "h264_1080p_ip_10s": ("libx264", 1920, 1080, 10, {"preset": "medium", "g": "60", "bf": "0", "b": "4000000"}),
    "hevc_1080p_10s": ("libx265", 1920, 1080, 10, {"preset": "fast", "b": "4000000", "x265-params": "log-level=none"}),
    "hevc_4k_10s": ("libx265", 3840, 2160, 10, {"preset": "ultrafast", "b": "12000000", "x265-params": "log-level=none:bframes=3:b-adapt=0:keyint=120"}),  # noqa: E501
    "av1_1080p_10s": ("libsvtav1", 1920, 1080, 10, {"preset": "10", "b": "3000000", "g": "60"}),
    "vp9_1080p_10s": ("libvpx-vp9", 1920, 1080, 10, {"deadline": "realtime", "cpu-used": "8", "row-mt": "1", "tile-columns": "2", "lag-in-frames": "0", "b": "4000000", "g": "60"}),  # noqa: E501
    "h264_720p_30s": ("libx264", 1280, 720, 30, {"preset": "fast", "g": "250", "b": "1500000"}),
}  # fmt: skip
FPS = 30


def pictures(width: int, height: int, count: int):
    rng = np.random.default_rng(0)
    coarse = rng.integers(40, 215, (height // 24 + 60, width // 24 + 120), dtype=np.uint8)
    texture = np.kron(coarse, np.ones((24, 24), np.uint8))
    noise = rng.integers(-4, 5, (height + 64, width + 64), dtype=np.int16)
    for n in range(count):
        y, x = 3 * n % 700, 5 * n % 1500
        luma = texture[y : y + height, x : x + width].astype(np.int16)
        dy, dx = rng.integers(0, 64, 2)
        luma += noise[dy : dy + height, dx : dx + width]
        bar = 11 * n % width
        luma[:, bar : bar + width // 16] = 235 - luma[:, bar : bar + width // 16]
        chroma = np.full((height // 2, width), 128, np.int16)
        chroma[:, bar : bar + width // 16] += 60
        yield np.concatenate([luma, chroma]).clip(16, 235).astype(np.uint8)


def encode(path: Path, clip: tuple[str, int, int, int, dict[str, str]]) -> None:
    codec, width, height, seconds, options = clip
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options={k: v for k, v in options.items() if k != "b"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = int(options["b"])
        stream.thread_type, stream.thread_count = "AUTO", 16
        for picture in pictures(width, height, seconds * FPS):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="nv12").reformat(format="yuv420p")))
        container.mux(stream.encode(None))


def repeat(source: Path, target: Path, times: int) -> None:
    with av.open(str(target), "w") as out:
        stream, offset = None, 0
        for _ in range(times):
            with av.open(str(source)) as container:
                video = container.streams.video[0]
                stream = stream or out.add_stream_from_template(video)
                period = int(Fraction(video.frames, FPS) / video.time_base)
                for packet in container.demux(video):
                    if packet.dts is None:
                        continue
                    packet.pts, packet.dts, packet.stream = packet.pts + offset, packet.dts + offset, stream
                    out.mux(packet)
            offset += period


def make(job: tuple[Path, str, tuple, bool]) -> str:
    folder, name, (codec, width, height, seconds, options), is_quick = job
    start = time.monotonic()
    shape = (width // 4 // 2 * 2, height // 4 // 2 * 2, 2) if is_quick else (width, height, seconds)
    encode(folder / f"{name}.mp4", (codec, *shape, options))
    return f"{name}: {time.monotonic() - start:.1f} s, {(folder / f'{name}.mp4').stat().st_size >> 10} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="names, comma-separated")
    parser.add_argument("--quick", action="store_true", help="tiny ones, to try the script")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    chosen = {n: c for n, c in CLIPS.items() if not asked.only or n in asked.only.split(",")}
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 4)) as together:
        for line in together.map(make, [(asked.out, name, clip, asked.quick) for name, clip in chosen.items()]):
            print(line, flush=True)
    short = asked.out / "h264_720p_30s.mp4"
    if short.exists():
        repeat(short, asked.out / "h264_720p_5min.mp4", 10)
        short.unlink()


if __name__ == "__main__":
    sys.exit(main())
