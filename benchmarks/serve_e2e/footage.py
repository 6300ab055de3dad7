"""The clips that are asked about, made where they are used; and the same, decoded before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np

from framefleet.decode.options import DecodeOptions
from framefleet.decode.session import decode
from framefleet.scenes.encode import ClipFormat, encode_frames

MAKE_CLIPS = Path(__file__).parents[1] / "nvdec" / "make_clips.py"
CLIP = "h264_1080p_20s"
NUM_COPIES = 32
FREE_BYTES = 64


def make_footage(folder: Path, policy: DecodeOptions, *, is_quick: bool) -> dict[str, list[Path]]:
    """`as_is`: copies of a 1080p clip, no two of equal bytes; `decoded_before`: just the frames the model takes."""
    source = folder / f"{CLIP}.mp4"
    if not source.exists():
        command = [sys.executable, str(MAKE_CLIPS), str(folder), "--only", CLIP, *(["--quick"] if is_quick else [])]
        subprocess.run(command, check=True, timeout=240)
    small = folder / f"{CLIP}_frames.mp4"
    write_frames(source, policy, small)
    return {"as_is": copies(source, folder / "as_is"), "decoded_before": copies(small, folder / "decoded_before")}


def write_frames(source: Path, policy: DecodeOptions, target: Path) -> None:
    """A clip of the frames that the policy takes of `source`, at its size, each a keyframe, over the same seconds."""
    frames = decode(str(source), msgspec.structs.replace(policy, keeps_size=True))
    rate = len(frames) / frames.duration_s
    form = ClipFormat(gop=1, b_frames=0, crf=16, preset="ultrafast")
    encode_frames(frames.data, np.arange(len(frames)) / rate, target, fps=rate, form=form)


def copies(source: Path, folder: Path) -> list[Path]:
    """Copies with a `free` box at the end that no other has: caches that go by content do not help."""
    folder.mkdir(parents=True, exist_ok=True)
    content = source.read_bytes()
    for number in range(NUM_COPIES):
        payload = f"{source.stem} {number}".encode().ljust(FREE_BYTES - 8)
        (folder / f"{number:02}.mp4").write_bytes(content + FREE_BYTES.to_bytes(4, "big") + b"free" + payload)
    return sorted(folder.glob("*.mp4"))
