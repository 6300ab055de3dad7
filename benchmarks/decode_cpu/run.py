"""Decoding on the CPU beside its peers: who gives the same frames for less. One JSON line last; result.json beside it.

    python benchmarks/decode_cpu/run.py [--short] [--rounds 5] [--case NAME ...] [--output FOLDER]

Before anything is timed every arm's frames are compared with the barcode drawn into each frame and with ours. The arms
take turns A B .. B A, each in its own process, all bound to one core; a sample is written as soon as it is there.
The headline is CPU seconds (user + system, all threads): on a shared machine they hold where the wall clock does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from arms import ARMS
from clips import ClipSpec, SceneClip

HERE = Path(__file__).parent
OURS = "framefleet"
MOST_APART = 3.0
"""Mean distance of levels up to which frames count as the same: colour conversions round differently."""


@dataclass(frozen=True, slots=True)
class Case:
    """A clip and how many of its frames."""

    clip: ClipSpec | SceneClip
    num_frames: int
    kind: str
    """`sparse` (counts for x_best_peer_sparse), `dense`, or `other`."""

    @property
    def name(self) -> str:
        """Of clip and task."""
        return f"{self.clip.name}-{self.num_frames}f"

    @property
    def rows(self) -> list[int]:
        """The frames asked for."""
        return np.linspace(0, self.clip.num_frames - 1, self.num_frames).round().astype(int).tolist()


def cases(*, is_short: bool) -> list[Case]:
    """Sparse are those of long GOPs: there a decoder must walk far for a frame. The short set takes a few minutes."""
    long_s, mid_s = (60, 8) if is_short else (300, 20)
    hd = [ClipSpec(f"1080p-{mid_s}s-gop{gop}", 1920, 1080, mid_s, gop) for gop in (15, 60, 250)]
    long = [ClipSpec(f"720p-{long_s}s-gop{gop}", 1280, 720, long_s, gop) for gop in (15, 60, 250)]
    dense = ClipSpec("720p-4s-gop60", 1280, 720, 4, 60)
    uhd = ClipSpec("2160p-hevc-10s-gop60", 3840, 2160, 4 if is_short else 10, 60, codec="libx265")
    return [
        *(Case(clip, 16, "sparse" if clip.gop == 250 else "other") for clip in hd),
        *(Case(clip, 8 if is_short else 32, "sparse" if clip.gop == 250 else "other") for clip in long),
        Case(dense, dense.num_frames, "dense"),
        Case(uhd, 16, "other"),
        Case(SceneClip("scene_09_1080p_h264", 193), 16, "other"),
        Case(SceneClip("scene_17_720p_hevc", 170), 16, "other"),
    ]


class Arm:
    """One decoder in its own process."""

    def __init__(self, name: str, core: int) -> None:
        self.name = name
        environ = os.environ | {"OMP_NUM_THREADS": "1", "OPENCV_LOG_LEVEL": "ERROR"}
        self._process = subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, str(HERE / "arms.py"), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ,
        )  # fmt: skip
        self.is_there = bool(self._process.stdout.readline())  # type: ignore[union-attr]

    def decode(self, case: Case, save: Path | None = None) -> dict[str, Any]:
        """One decode; `error` in the answer where it failed or died."""
        task = {"path": str(case.clip.path()), "rows": case.rows, "save": str(save) if save else None}
        try:
            print(json.dumps(task), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "the process is gone"}
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process died"}
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(30)


def differences(case: Case, arms: list[Arm]) -> dict[str, str]:
    """Arm -> what is wrong with its frames, for those with something wrong. Also warms every arm up."""
    wrong = {}
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "ours.npy"
        for arm in sorted(arms, key=lambda arm: arm.name != OURS):
            save = Path(folder) / f"{arm.name}.npy" if arm.name != OURS else ours
            answer = arm.decode(case, save)
            if reason := answer.get("error") or _difference(case, answer, save, ours):
                wrong[arm.name] = reason
            if save != ours:
                save.unlink(missing_ok=True)
    return wrong


def _difference(case: Case, answer: dict[str, Any], theirs: Path, ours: Path) -> str:
    if isinstance(case.clip, ClipSpec) and answer["barcodes"] != case.rows:
        off = sum(a != b for a, b in zip(answer["barcodes"], case.rows, strict=False))
        return f"{len(answer['barcodes'])} frames, {off} of them not the ones asked for"
    apart = _mean_apart(np.load(theirs, mmap_mode="r"), np.load(ours, mmap_mode="r"))
    return f"pictures {apart:.1f} levels apart from ours" if apart > MOST_APART else ""


def _mean_apart(theirs: Any, ours: Any) -> float:
    if theirs.shape != ours.shape:
        return float("inf")
    return max(float(np.abs(a.astype(np.int16) - b).mean()) for a, b in zip(theirs, ours, strict=True))


def measure(case: Case, arms: list[Arm], rounds: int, samples: Any) -> dict[str, Any]:
    """Medians of every right arm on one case; each sample is written to `samples` at once."""
    wrong = differences(case, arms)
    if OURS in wrong:
        raise SystemExit(f"{case.name}: our own frames are wrong: {wrong[OURS]}")
    right = [arm for arm in arms if arm.name not in wrong]
    taken: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in right}
    for nth in range(rounds):
        for arm in right if nth % 2 == 0 else reversed(right):
            answer = arm.decode(case)
            taken[arm.name].append(answer)
            kept = {key: value for key, value in answer.items() if key not in ("barcodes", "shape")}
            print(json.dumps({"case": case.name, "arm": arm.name, "round": nth, **kept}), file=samples, flush=True)
    for name, answers in taken.items():
        if failed := [answer["error"] for answer in answers if "error" in answer]:
            wrong[name] = f"failed {len(failed)} times of {rounds}: {failed[0]}"
    summary = {name: _summary(answers) for name, answers in taken.items() if name not in wrong}
    peers = {name: figures["cpu_s"] for name, figures in summary.items() if name != OURS}
    best = min(peers, key=lambda name: peers[name])
    gains = {
        "best_peer": best,
        "x_best_peer": round(peers[best] / summary[OURS]["cpu_s"], 3),
        "x_best_peer_wall": round(
            min(f["wall_s"] for n, f in summary.items() if n != OURS) / summary[OURS]["wall_s"], 3
        ),
    }
    return {"kind": case.kind, "frames": case.num_frames, "arms": summary, "left_out": wrong, **gains}


def _summary(answers: list[dict[str, Any]]) -> dict[str, float]:
    cpu_s, wall_s = (median(answer[key] for answer in answers) for key in ("cpu_s", "wall_s"))
    return {
        "cpu_s": round(cpu_s, 4),
        "cpu_s_min": round(min(answer["cpu_s"] for answer in answers), 4),
        "wall_s": round(wall_s, 4),
        "clips_per_cpu_s": round(1 / cpu_s, 3),
        "peak_mib": round(max(answer["peak_mib"] for answer in answers), 1),
    }


def machine() -> dict[str, Any]:
    """Where and with what."""
    names = ("av", "opencv-python-headless", "opencv-python", "torchcodec", "torch", "decord2", "numpy")
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": cpu, "cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version(),
        "versions": versions, "commit": commit, "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def headline(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The least favourable case of each kind, and the memory of one worker of ours."""
    found = {}
    for kind in ("sparse", "dense"):
        gains = [r["x_best_peer"] for r in results.values() if r["kind"] == kind]
        if gains:
            found[f"x_best_peer_{kind}"] = min(gains)
    found["worker_peak_mib"] = max(r["arms"][OURS]["peak_mib"] for r in results.values())
    return found


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="smaller clips, for a few minutes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--arm", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "framefleet-bench-decode")
    asked = parser.parse_args()
    chosen = [c for c in cases(is_short=asked.short) if not asked.case or any(part in c.name for part in asked.case)]
    asked.output.mkdir(parents=True, exist_ok=True)
    for case in chosen:
        print(f"clip {case.clip.path()}", file=sys.stderr, flush=True)
    arms = [arm for arm in (Arm(name, asked.core) for name in dict.fromkeys([OURS, *asked.arm])) if arm.is_there]
    results: dict[str, dict[str, Any]] = {}
    with (asked.output / "samples.jsonl").open("w") as samples:
        for case in chosen:
            results[case.name] = measure(case, arms, asked.rounds, samples)
            print(case.name, json.dumps(results[case.name]), file=sys.stderr, flush=True)
            report = {"headline": headline(results), "short": asked.short, "machine": machine(), "cases": results}
            (asked.output / "result.json").write_text(json.dumps(report, indent=1) + "\n")
    for arm in arms:
        arm.close()
    print(json.dumps({"bench": "decode_cpu", **headline(results), "short": asked.short}))


if __name__ == "__main__":
    main()
