"""Decoding alone: each backend over the sample clips, one process, one thread; one JSON line last.

Outputs are compared before anything is timed, and the backends take turns clip by clip, so that a busy moment of the
machine falls on all of them.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from framefleet.decode.backends import AUTO_ORDER
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.session import decode
from framefleet.errors import FramefleetError

_REFERENCE = "pyav"
_MOST_APART = 3.0
"""Mean distance (0 to 255) up to which two backends gave the same frames: colour conversions round differently."""


class BackendResult(msgspec.Struct, kw_only=True):
    """One backend over all clips and rounds."""

    clips_per_s: float
    seconds: dict[str, float]
    """Per phase, summed over the clips, mean of the rounds."""
    frames_walked: int
    samples_s: list[float]
    """Wall-clock seconds of each clip's decode, round by round."""


class DecodeAloneResult(msgspec.Struct, kw_only=True):
    """All backends, and why some are not among them."""

    clips: int
    num_frames: int
    rounds: int
    backends: dict[str, BackendResult]
    left_out: dict[str, str]


def measure_decode(
    clips: Sequence[Path], *, backends: Sequence[str] = AUTO_ORDER, num_frames: int = 16, rounds: int = 3
) -> DecodeAloneResult:
    """Time every backend on every clip. A backend that refuses or differs is left out, with the reason."""
    left_out: dict[str, str] = {}
    for name in backends:
        if reason := _disagreement(name, clips, num_frames):
            left_out[name] = reason
    able = [name for name in backends if name not in left_out]
    samples: dict[str, list[float]] = {name: [] for name in able}
    phases: dict[str, Counter[str]] = {name: Counter() for name in able}
    walked: Counter[str] = Counter()
    for turn in range(rounds):
        for clip in clips:
            for name in able if turn % 2 == 0 else reversed(able):
                started = time.perf_counter()
                stats = decode(clip, backend=name, num_frames=num_frames).stats
                samples[name].append(time.perf_counter() - started)
                phases[name].update(stats.seconds)
                walked[name] += stats.frames_walked
    results = {name: _result(samples[name], phases[name], walked[name], rounds) for name in able}
    return DecodeAloneResult(
        clips=len(clips), num_frames=num_frames, rounds=rounds, backends=results, left_out=left_out
    )


def _result(samples_s: list[float], phases: Counter[str], walked: int, rounds: int) -> BackendResult:
    return BackendResult(
        clips_per_s=round(len(samples_s) / sum(samples_s), 3),
        seconds={name: round(total / rounds, 4) for name, total in phases.items()},
        frames_walked=walked // rounds,
        samples_s=[round(s, 5) for s in samples_s],
    )


def _disagreement(name: str, clips: Sequence[Path], num_frames: int) -> str:
    """Why the backend's frames are not those of the reference; empty if they are. Also warms it up."""
    try:
        for clip in clips:
            theirs = decode(clip, backend=name, num_frames=num_frames)
            if reason := _difference(decode(clip, backend=_REFERENCE, num_frames=num_frames), theirs):
                return f"{clip.name}: {reason}"
    except FramefleetError as error:
        return str(error)
    return ""


def _difference(ours: DecodedFrames, theirs: DecodedFrames) -> str:
    if ours.indices.tolist() != theirs.indices.tolist():
        return "other frames"
    apart = float(np.abs(ours.data.astype(np.int16) - theirs.data.astype(np.int16)).mean())
    return f"pixels {apart:.1f} apart on average" if apart > _MOST_APART else ""


def main() -> None:
    """Measure, tell people on stderr, and print the JSON line."""
    from framefleet.scenes import sample_clips

    result = measure_decode([Path(clip.path) for clip in sample_clips()])
    for name, one in result.backends.items():
        sys.stderr.write(f"{name}: {one.clips_per_s:.1f} clips/s\n")
    for name, reason in result.left_out.items():
        sys.stderr.write(f"{name}: left out, {reason}\n")
    sys.stdout.write(msgspec.json.encode(headline(result)).decode() + "\n")


def headline(result: DecodeAloneResult) -> dict[str, Any]:
    """The result as one flat JSON object with the samples kept."""
    return {"benchmark": "decode_alone", **msgspec.to_builtins(result)}


if __name__ == "__main__":
    main()
