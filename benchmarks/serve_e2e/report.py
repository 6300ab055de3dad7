"""What the trials say: REPORT.md, result.json and one JSON line, from the folders that `run.py` wrote.

    python benchmarks/serve_e2e/report.py OUT... [--to FOLDER]

Trials of several runs go together where their lane and its experiment are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framefleet.bench.experiment import Trial, metric_value
from framefleet.bench.stats import percentile
from framefleet.bench.trial_log import read_log

BASE, OURS = "decode_free", "ours"
SHOWN = {
    "cores": "cpu/lane", "API cores": "cpu/api_server", "engine cores": "cpu/engine",
    "decode cores": "cpu/decode_worker", "GPU": "gpu/busy", "NVDEC": "gpu/nvdec",
    "KV use": "engine/kv_use",
}  # fmt: skip
"""Column -> gauge (mean of a trial)."""
INTRO = """# Serving, end to end: who decodes

Question: what part of the rate at which the GPU captions when frames are almost free does each way of decoding reach?

{about}

Each GPU holds one server of each kind; only the one under test is asked, so arms interleave trial by trial (A B B A)
without a restart. {in_flight} requests in flight, {max_tokens} output tokens each (`ignore_eos`), clips of 1080p H.264,
20 s, 16 frames of 1024 x 576 a clip. A trial lasts {trial_s} s; what ends before the first round is over is not
counted, and what is in flight at its end is broken off. Arms count only if they answered without errors and their
prompts are as long as those of the others. Raw trials: `raw/`.

TTFT is as the client heard it; where the random weights' tokens were no text, as vLLM's histogram has it.
"""


def trials_in(folders: Sequence[Path]) -> dict[str, list[Trial]]:
    """Lane (or `trials`) -> its trials."""
    found: dict[str, list[Trial]] = defaultdict(list)
    for path in sorted(path for folder in folders for path in folder.glob("*/*.jsonl")):
        found[path.parent.name] += read_log(path)[1]
    return dict(found)


def by_arm(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        found[trial.arm].append(trial)
    return dict(found)


def rate_of(trials: Sequence[Trial]) -> float:
    """Captions per second: of all steady stretches together; 0 where there was not one answer."""
    good = sum(1 for trial in trials for one in trial.measurements if not one.error)
    wall_s = sum(trial.wall_s for trial in trials)
    return good / wall_s if wall_s > 0 else 0.0


def summary(trials: Sequence[Trial]) -> dict[str, Any]:
    """Of one arm."""
    measured = [one for trial in trials for one in trial.measurements]
    ttft = [one.ttft_s for one in measured if one.ttft_s is not None and not one.error]
    rates = [metric_value(trial, "requests_per_s") or 0.0 for trial in trials]
    gauges = {
        column: sum(trial.gauges[name] for trial in trials) / len(trials)
        for column, name in SHOWN.items()
        if all(name in trial.gauges for trial in trials)
    }
    return {
        "captions_per_s": rate_of(trials),
        "trials": [round(rate, 3) for rate in rates],
        "ttft_p50_s": percentile(ttft, 0.5) if ttft else server_ttft(trials, "p50"),
        "ttft_p95_s": percentile(ttft, 0.95) if ttft else server_ttft(trials, "p95"),
        "captions": len(measured),
        "errors": sum(1 for one in measured if one.error),
        **{name: round(value, 3) for name, value in gauges.items()},
    }


def server_ttft(trials: Sequence[Trial], quantile: str) -> float | None:
    """By vLLM's own histogram, the mean of the trials: of tokens that are no text a client hears nothing."""
    found = [trial.phases_s["server_ttft"][quantile] for trial in trials if "server_ttft" in trial.phases_s]
    return sum(found) / len(found) if found else None


def shares(arms: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of the decode-free rate."""
    base = arms.get(BASE, {}).get("captions_per_s")
    return {name: arm["captions_per_s"] / base for name, arm in arms.items()} if base else {}


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def lane_table(arms: dict[str, dict[str, Any]]) -> str:
    share = shares(arms)
    columns = [column for column in SHOWN if any(column in arm for arm in arms.values())]
    head = ["arm", "captions/s", "of decode-free", "trials", "TTFT p50 / p95, s", *columns, "errors"]
    rows = [
        [
            f"`{name}`",
            f"{arm['captions_per_s']:.2f}",
            f"{share[name]:.2f}" if name in share else "",
            f"{min(arm['trials']):.2f} to {max(arm['trials']):.2f} ({len(arm['trials'])})",
            f"{arm['ttft_p50_s'] or 0:.1f} / {arm['ttft_p95_s'] or 0:.1f}",
            *(f"{arm[column]:.2f}" if column in arm else "" for column in columns),
            f"{arm['errors']} of {arm['captions']}",
        ]
        for name, arm in sorted(arms.items(), key=lambda item: -item[1]["captions_per_s"])
    ]
    return table(rows, head)


def memory_table(facts: dict[str, Any]) -> str:
    """What each kind of server takes of the GPU beside its weights."""
    rows = []
    for lane, about in facts["lanes"].items():
        for kind, seen in about["servers"].items():
            used = about["gpu_bytes"].get(kind, 0)
            size = f"{used / 2**30:.1f}" if used else "not told"
            rows.append([lane, f"`{kind}`", size, seen.get("reserved_gib", "0"), seen.get("kv_tokens", "")])
    return table(rows, ["lane", "server", "GiB on the GPU, all", "GiB taken from the KV cache", "tokens of KV cache"])


def headline(lanes: dict[str, dict[str, dict[str, Any]]]) -> dict[str, float]:
    """Of the lane where ours is fastest; its shares are of its own decode-free rate."""
    with_ours = [arms for arms in lanes.values() if OURS in arms and BASE in arms]
    if not with_ours:
        return {}
    best = max(with_ours, key=lambda arms: arms[OURS]["captions_per_s"])
    share = shares(best)
    others = [value for name, value in share.items() if name.startswith("vllm_")]
    found = {
        "share_of_decode_free": share[OURS],
        "share_vllm_best": max(others, default=0.0),
        "share_vllm_opencv": share.get("vllm_opencv", 0.0),
        "captions_per_s": best[OURS]["captions_per_s"],
    }
    return {name: round(value, 3) for name, value in found.items()}


def about_of(facts: dict[str, Any]) -> str:
    """Machine and versions in words."""
    names = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    where = "Tried on the CPU with the bundled model: **these figures say nothing**, they show that the script works."
    if not facts["arguments"]["cpu"] or facts["arguments"]["cpu"] == "None":
        where = f"{facts['machine']}. Qwen3-VL-8B shape with random weights, eager."
    return f"{where} {names}. Commit {facts.get('commit') or commit()}."


def commit() -> str:
    """Of this checkout."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


def arguments(about: str | None) -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folders", nargs="+", type=Path)
    asked.add_argument("--to", type=Path, help="where the report goes; the last folder")
    return asked.parse_args()


def write(to: Path, parts: Sequence[str], result: dict[str, Any]) -> None:
    """The report, with what NOTES.md there has to add, its figures, and a line for programs."""
    to.mkdir(parents=True, exist_ok=True)
    notes = to / "NOTES.md"
    parts = [*parts, *([notes.read_text()] if notes.exists() else [])]
    (to / "REPORT.md").write_text("\n".join(parts).rstrip() + "\n")
    (to / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["headline"]))


def main() -> int:
    asked = arguments(__doc__)
    folders = asked.folders
    every = [json.loads((folder / "facts.json").read_text()) for folder in folders]
    facts = every[0] | {"lanes": {lane: about for one in every for lane, about in one["lanes"].items()}}
    lanes = {
        lane: {arm: summary(trials) for arm, trials in by_arm(all_trials).items()}
        for lane, all_trials in trials_in(folders).items()
    }
    parts = [INTRO.format(about=about_of(facts), **facts["arguments"])]
    for lane, arms in lanes.items():
        mps = "with MPS" if facts["lanes"].get(lane, {}).get("mps") else "without MPS"
        parts.append(f"## {lane}, {mps}, {facts['lanes'].get(lane, {}).get('cores')} cores\n\n{lane_table(arms)}\n")
    parts.append(f"## GPU memory\n\n{memory_table(facts)}\n")
    result = {"headline": headline(lanes), "lanes": lanes, "versions": facts["versions"]}
    write(asked.to or folders[-1], parts, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
