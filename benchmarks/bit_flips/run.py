"""How many pictures that flipped bits spoilt are given as good, by codec. One JSON line last; result.json beside it.

    python benchmarks/bit_flips/run.py [--files 40] [--flips 2]

Bits are flipped inside the coded pictures of a clip drawn anew for each codec (never in the container), and the file is
decoded by `auto`. A picture is wrong where a level is more than 8 from that of the whole file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

import framefleet
from framefleet.errors import FramefleetError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from barcode_clips import write_clip  # noqa: E402

FRAMES, FPS, FAR = 48, 30, 8
_FAST = {"b": "1M", "cpu-used": "8", "deadline": "realtime"}
CODECS: dict[str, dict[str, Any]] = {
    "h264": {"codec": "libx264"},
    "hevc": {"codec": "libx265"},
    "hevc, MD5 of each picture": {"codec": "libx265", "options": {"x265-params": "log-level=none:bframes=2:hash=1"}},
    "vp8": {"codec": "libvpx", "b_frames": 0, "options": _FAST},
    "vp9": {"codec": "libvpx-vp9", "b_frames": 0, "options": _FAST},
    "av1": {"codec": "libsvtav1", "b_frames": 0, "options": {"preset": "10", "svtav1-params": "lp=1"}},
    "mpeg4": {"codec": "mpeg4", "options": {"b": "2M"}, "time_base": Fraction(1, FPS)},
}


def flipped(content: bytes, places: list[tuple[int, int]], flips: int, seed: int) -> bytes:
    """The bytes with bits flipped in pictures; the first of them and the first bytes of each are left alone."""
    rng, changed = np.random.default_rng(seed), bytearray(content)
    for _ in range(flips):
        at, size = places[int(rng.integers(1, len(places)))]
        changed[at + int(rng.integers(min(12, size - 1), size))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def places_of(path: Path) -> list[tuple[int, int]]:
    """(position, bytes) of every packet in the file."""
    content, found, at = path.read_bytes(), [], 0
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            if packet.size and (at := content.find(bytes(packet), at)) >= 0:
                found.append((at, packet.size))
                at += packet.size
    return found


def count(whole: Path, num_files: int, flips: int) -> dict[str, int]:
    """Pictures given, missing and wrong over all damaged files."""
    clean = framefleet.decode(whole, num_frames=FRAMES)
    places, content = places_of(whole), whole.read_bytes()
    counts = {"given": 0, "wrong": 0, "missing": 0, "files_refused": 0}
    for seed in range(num_files):
        try:
            frames = framefleet.decode(flipped(content, places, flips, seed), num_frames=FRAMES)
        except FramefleetError:
            counts["files_refused"] += 1
            continue
        counts["given"] += len(frames)
        counts["missing"] += frames.stats.num_missing
        for pts_s, picture in zip(frames.pts_s, frames.data, strict=True):
            true = clean.data[int(np.argmin(np.abs(clean.pts_s - pts_s)))]
            counts["wrong"] += int(np.abs(picture.astype(np.int16) - true).max() > FAR)
    return counts


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--flips", type=int, default=2)
    asked = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, spec in CODECS.items():
            clip = write_clip(Path(folder) / "clip.mkv", FRAMES, fps=FPS, gop=12, **spec)
            results[name] = count(clip, asked.files, asked.flips)
            print(name, results[name], file=sys.stderr, flush=True)
    report = {"bench": "bit_flips", "files": asked.files, "flips": asked.flips, "frames": FRAMES, "codecs": results}
    (HERE / "result.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
