"""Decoding on the CPU beside its peers: who gives the same frames for less. One JSON line last; result.json beside it.

    python benchmarks/decode_cpu/run.py [--short] [--rounds 3] [--case NAME ...] [--output FOLDER] [--fresh]
        [--before FOLDER --arm framefleet_before torchcodec_exact ...]

Peers that are not installed are left out, and named (`pip install decord2` for one that `make` does not install).
A run that was broken off goes on where it stopped; `complete` in result.json says whether all cases are there.

Before anything is timed every arm's frames are compared with the barcode drawn into each frame and with ours. The arms
take turns A B .. B A, each in its own process, all bound to one core; a sample is written as soon as it is there.
The headline is CPU seconds (user + system, all threads): on a shared machine they hold where the wall clock does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
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
OURS, BEFORE = "framefleet", "framefleet_before"
MOST_S = 180
SLOW = 3
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

    def drawn_rows(self, clip: ClipSpec) -> list[int]:
        """The barcodes of these frames."""
        return [row % clip.num_drawn for row in self.rows]


def cases(*, is_short: bool) -> list[Case]:
    """Sparse are those of long GOPs: there a decoder must walk far for a frame. The short set takes a few minutes."""
    long_s, mid_s = (60, 8) if is_short else (300, 20)
    hd = [ClipSpec(f"1080p-{mid_s}s-gop{gop}", 1920, 1080, mid_s, gop) for gop in (15, 60, 250)]
    long = [
        ClipSpec(f"720p-{long_s}s-gop{gop}", 1280, 720, long_s, gop, drawn_s=25 if gop == 250 else 20)
        for gop in (15, 60, 250)
    ]
    dense = ClipSpec("720p-4s-gop60", 1280, 720, 4, 60)
    others = [
        ClipSpec(f"720p-{codec}-{long_s}s-gop250", 1280, 720, long_s, 250, codec=encoder, drawn_s=25)
        for codec, encoder in (("hevc", "libx265"), ("av1", "libsvtav1"))
    ]
    uhd = ClipSpec("2160p-hevc-4s-gop60", 3840, 2160, 4, 60, codec="libx265")
    return [
        *(Case(clip, 16, "sparse" if clip.gop == 250 else "other") for clip in hd),
        *(Case(clip, 8 if is_short else 32, "sparse" if clip.gop == 250 else "other") for clip in long),
        *(Case(clip, 8 if is_short else 32, "sparse") for clip in others),
        Case(ClipSpec(f"1080p-av1-{mid_s}s-gop60", 1920, 1080, mid_s, 60, codec="libsvtav1"), 16, "other"),
        Case(dense, dense.num_frames, "dense"),
        Case(uhd, 16, "other"),
        Case(SceneClip("scene_09_1080p_h264", 193), 16, "other"),
        Case(SceneClip("scene_17_720p_hevc", 170), 16, "other"),
    ]


class Arm:
    """One decoder in its own process, started anew where it died or took too long."""

    def __init__(self, name: str, core: int, before: Path | None = None) -> None:
        self.name = name
        self._core = core
        self._path = {"PYTHONPATH": str(before / "src")} if before and name == BEFORE else {}
        self._start()

    def _start(self) -> None:
        environ = os.environ | {"OMP_NUM_THREADS": "1", "OPENCV_LOG_LEVEL": "ERROR"} | self._path
        self._process = subprocess.Popen(
            ["taskset", "-c", str(self._core), sys.executable, str(HERE / "arms.py"), self.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ,
        )  # fmt: skip
        self.is_there = bool(self._process.stdout.readline())  # type: ignore[union-attr]

    def decode(self, case: Case, save: Path | None = None) -> dict[str, Any]:
        """One decode; `error` in the answer where it failed, died or took longer than `MOST_S`."""
        task = {"path": str(case.clip.path()), "rows": case.rows, "save": str(save) if save else None}
        print(json.dumps(task), file=self._process.stdin, flush=True)
        is_answered = bool(select.select([self._process.stdout], [], [], MOST_S)[0])
        line = self._process.stdout.readline() if is_answered else ""  # type: ignore[union-attr]
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process.kill()
        self._process.wait()
        self._start()
        return {"error": "the process died" if is_answered else f"no answer in {MOST_S} s"}

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(30)


def check(case: Case, arms: list[Arm]) -> tuple[dict[str, str], dict[str, float]]:
    """Arm -> what is wrong with its frames, if anything; arm -> CPU seconds for the others. Also warms them up."""
    wrong, cpu_s = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "ours.npy"
        for arm in sorted(arms, key=lambda arm: arm.name != OURS):
            save = Path(folder) / f"{arm.name}.npy" if arm.name != OURS else ours
            answer = arm.decode(case, save)
            if reason := answer.get("error") or _difference(case, answer, save, ours):
                wrong[arm.name] = reason
            else:
                cpu_s[arm.name] = answer["cpu_s"]
            if save != ours:
                save.unlink(missing_ok=True)
    return wrong, cpu_s


def _difference(case: Case, answer: dict[str, Any], theirs: Path, ours: Path) -> str:
    if isinstance(case.clip, ClipSpec) and answer["barcodes"] != (drawn := case.drawn_rows(case.clip)):
        off = sum(a != b for a, b in zip(answer["barcodes"], drawn, strict=False))
        return f"{len(answer['barcodes'])} frames, {off} of them not the ones asked for"
    apart = _mean_apart(np.load(theirs, mmap_mode="r"), np.load(ours, mmap_mode="r"))
    return f"pictures {apart:.1f} levels apart from ours" if apart > MOST_APART else ""


def _mean_apart(theirs: Any, ours: Any) -> float:
    if theirs.shape != ours.shape:
        return float("inf")
    return max(float(np.abs(a.astype(np.int16) - b).mean()) for a, b in zip(theirs, ours, strict=True))


def measure(case: Case, arms: list[Arm], rounds: int, samples: Any) -> dict[str, Any]:
    """Medians of every right arm on one case; each sample is written to `samples` at once.

    An arm that took more than `SLOW` times our CPU seconds in the check is timed once only.
    """
    wrong, checked_s = check(case, arms)
    if OURS in wrong:
        raise SystemExit(f"{case.name}: our own frames are wrong: {wrong[OURS]}")
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in checked_s}
    for nth in range(rounds):
        for arm in arms if nth % 2 == 0 else reversed(arms):
            if arm.name in wrong or (nth and checked_s[arm.name] > SLOW * checked_s[OURS]):
                continue
            answer = arm.decode(case)
            kept = {key: value for key, value in answer.items() if key not in ("barcodes", "shape")}
            print(json.dumps({"case": case.name, "arm": arm.name, "round": nth, **kept}), file=samples, flush=True)
            if "error" in answer:
                wrong[arm.name] = f"failed in round {nth}: {answer['error']}"
            else:
                taken[arm.name].append(answer)
    summary = {name: _summary(answers) for name, answers in taken.items() if name not in wrong}
    return {"kind": case.kind, "frames": case.num_frames, "arms": summary, "left_out": wrong, **_gains(summary)}


def _gains(summary: dict[str, dict[str, float]]) -> dict[str, Any]:
    peers = [name for name in summary if name not in (OURS, BEFORE)]
    if not peers:
        return {"best_peer": None}
    best = min(peers, key=lambda name: summary[name]["cpu_s"])
    best_wall_s = min(summary[name]["wall_s"] for name in peers)
    return {
        "best_peer": best,
        "x_best_peer": round(summary[best]["cpu_s"] / summary[OURS]["cpu_s"], 3),
        "x_best_peer_wall": round(best_wall_s / summary[OURS]["wall_s"], 3),
    }


def _summary(answers: list[dict[str, Any]]) -> dict[str, float]:
    cpu_s, wall_s = (median(answer[key] for answer in answers) for key in ("cpu_s", "wall_s"))
    return {
        "cpu_s": round(cpu_s, 4),
        "cpu_s_min": round(min(answer["cpu_s"] for answer in answers), 4),
        "wall_s": round(wall_s, 4),
        "clips_per_cpu_s": round(1 / cpu_s, 3),
        "peak_mib": round(max(answer["peak_mib"] for answer in answers), 1),
        "samples": len(answers),
    }


_MEASURED_PATHS = (".", "../../src/framefleet/decode", "../../src/framefleet/media", "../../src/framefleet/sampling")
"""The commit noted is the last one to touch these."""


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
        ["git", "log", "-1", "--format=%H", "--", *_MEASURED_PATHS],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpu": cpu, "cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version(),
        "versions": versions, "commit": commit, "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def headline(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The least favourable case of each kind, and the memory of one worker of ours."""
    found = {}
    for kind in ("sparse", "dense", "other"):
        gains = [r["x_best_peer"] for r in results.values() if r["kind"] == kind and "x_best_peer" in r]
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
    parser.add_argument("--arm", nargs="*", default=[arm for arm in ARMS if arm != BEFORE], choices=list(ARMS))
    parser.add_argument("--before", type=Path, help=f"another checkout of ours, for the arm {BEFORE}")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "framefleet-bench-decode")
    parser.add_argument("--fresh", action="store_true", help="measure again what the output folder already has")
    asked = parser.parse_args()
    planned = cases(is_short=asked.short)
    chosen = [c for c in planned if not asked.case or any(part in c.name for part in asked.case)]
    asked.output.mkdir(parents=True, exist_ok=True)
    here = machine()
    results = {} if asked.fresh else _measured_before(asked.output / "result.json", here, is_short=asked.short)
    started = [Arm(name, asked.core, asked.before) for name in dict.fromkeys([OURS, *asked.arm])]
    arms = [arm for arm in started if arm.is_there]
    with (asked.output / "samples.jsonl").open("a" if results else "w") as samples:
        for case in (c for c in chosen if c.name not in results):
            print(f"clip {case.clip.path()}", file=sys.stderr, flush=True)
            results[case.name] = measure(case, arms, asked.rounds, samples)
            print(case.name, json.dumps(results[case.name]), file=sys.stderr, flush=True)
            report = {
                "headline": headline(results), "complete": all(c.name in results for c in planned),
                "short": asked.short, "machine": here, "cases": results,
                "not_installed": [arm.name for arm in started if not arm.is_there],
            }  # fmt: skip
            (asked.output / "result.json").write_text(json.dumps(report, indent=1) + "\n")
    for arm in arms:
        arm.close()
    print(json.dumps({"bench": "decode_cpu", **headline(results), "short": asked.short}))


def _measured_before(path: Path, here: dict[str, Any], *, is_short: bool) -> dict[str, dict[str, Any]]:
    """Cases of a run that was broken off: same machine, versions and commit."""
    if not path.exists():
        return {}
    report = json.loads(path.read_text())
    same = ("cpu", "cores", "python", "versions", "commit")
    if report["short"] != is_short or any(report["machine"].get(key) != here[key] for key in same):
        return {}
    cases: dict[str, dict[str, Any]] = report["cases"]
    return cases


if __name__ == "__main__":
    main()
