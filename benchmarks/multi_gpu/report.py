"""What the trials say: REPORT.md, scaling.svg, result.json and one JSON line, from the folders that `run.py` wrote.

python benchmarks/multi_gpu/report.py OUT... [--to FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "serve_e2e"))

from report import OURS, about_of, arguments, by_arm, summary, table, trials_in, write

WIDTH, HEIGHT, MARGIN = 640, 400, 56
COLOURS = {"ours": "#1b7f3b", "vllm_nvdec_best": "#1f5fbf", "vllm_opencv": "#b8451a"}
INTRO = """# Several GPUs of one host behind our proxy

Question: how does the rate of captions grow with the number of replicas, one on each GPU, by who decodes?

{about}

One server of each kind on each GPU, MPS {mps}, all {num_cores} CPU cores for all; a trial asks those of one kind on the
first N GPUs through `framefleet proxy`. {in_flight} requests in flight for each GPU, {max_tokens} output tokens
(`ignore_eos`), clips of 1080p H.264, 20 s, 16 frames of 1024 x 576 each, trials of {trial_s} s, arms and numbers of
GPUs interleaved. Raw trials: `raw/`.

![captions per second over GPUs](scaling.svg)
"""
Rates = dict[str, dict[int, dict[str, Any]]]
"""Arm -> GPUs -> its summary."""


def by_count(folders: list[Path]) -> Rates:
    found: Rates = {}
    for name, trials in by_arm([one for lane in trials_in(folders).values() for one in lane]).items():
        arm, _, count = name.rpartition(" x")
        found.setdefault(arm, {})[int(count)] = {**summary(trials), "by_gpu": use_by_gpu(trials)}
    return {arm: dict(sorted(counts.items())) for arm, counts in sorted(found.items())}


def use_by_gpu(trials: list[Any]) -> dict[str, float]:
    """Mean use and NVDEC of each GPU."""
    names = {name for trial in trials for name in trial.gauges if name.startswith("gpu") and name[3].isdigit()}
    wanted = sorted(name for name in names if not name.endswith("_peak"))
    return {name: round(sum(trial.gauges.get(name, 0.0) for trial in trials) / len(trials), 3) for name in wanted}


def linear_share(counts: dict[int, dict[str, Any]]) -> float | None:
    """Rate on the most GPUs, over as many times the rate on one."""
    most = max(counts)
    if most == 1 or 1 not in counts or not counts[1]["captions_per_s"]:
        return None
    return float(counts[most]["captions_per_s"] / (most * counts[1]["captions_per_s"]))


def rows_of(rates: Rates) -> list[list[object]]:
    rows: list[list[object]] = []
    for arm, counts in rates.items():
        for count, seen in counts.items():
            one = counts.get(1, {}).get("captions_per_s")
            linear = f"{seen['captions_per_s'] / (count * one):.2f}" if one else ""
            uses = " ".join(f"{name} {value:.2f}" for name, value in seen["by_gpu"].items())
            figures = [f"{seen[name]:.2f}" if name in seen else "" for name in ("cores", "GPU", "NVDEC")]
            ttft = f"{seen['ttft_p50_s'] or 0:.1f} / {seen['ttft_p95_s'] or 0:.1f}"
            trials = f"{min(seen['trials']):.2f} to {max(seen['trials']):.2f} ({len(seen['trials'])})"
            rate = f"{seen['captions_per_s']:.2f}"
            errors = f"{seen['errors']} of {seen['captions']}"
            rows.append([f"`{arm}`", count, rate, linear, trials, ttft, *figures, uses, errors])
    return rows


def plot(rates: Rates) -> str:
    """SVG: captions per second over GPUs, a line for each arm, dashed where it would be if it were linear."""
    most_gpus = max(count for counts in rates.values() for count in counts)
    most_rate = max(seen["captions_per_s"] for counts in rates.values() for seen in counts.values()) * 1.1

    def at(count: float, rate: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * count / most_gpus
        return f"{x:.0f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * min(rate / most_rate, 1.0):.0f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    parts.append(f'<polyline points="{at(0, most_rate)} {at(0, 0)} {at(most_gpus, 0)}" fill="none" stroke="black"/>')
    for tick in range(1, most_gpus + 1):
        x, y = at(tick, 0).split(",")
        parts.append(f'<text x="{x}" y="{int(y) + 18}" text-anchor="middle" font-size="12">{tick}</text>')
    for tick in range(1, 5):
        rate = most_rate * tick / 5
        x, y = at(0, rate).split(",")
        parts.append(f'<text x="{int(x) - 6}" y="{y}" text-anchor="end" font-size="12">{rate:.1f}</text>')
    for number, (arm, counts) in enumerate(rates.items()):
        parts += _line_of(arm, counts, at, number)
    parts.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 12}" text-anchor="middle" font-size="13">GPUs</text>')
    parts.append(f'<text x="{MARGIN}" y="{MARGIN - 30}" font-size="13">captions per second</text></svg>')
    return "\n".join(parts)


def _line_of(arm: str, counts: dict[int, dict[str, Any]], at: Any, number: int) -> list[str]:
    colour = COLOURS.get(arm, "#555555")
    points = " ".join(at(count, seen["captions_per_s"]) for count, seen in counts.items())
    parts = [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>']
    if 1 in counts:
        ideal = f"{at(0, 0)} {at(max(counts), max(counts) * counts[1]['captions_per_s'])}"
        parts.append(f'<polyline points="{ideal}" fill="none" stroke="{colour}" stroke-dasharray="3 4"/>')
    parts += [
        '<circle cx="{}" cy="{}" r="4" fill="{}"/>'.format(*at(count, seen["captions_per_s"]).split(","), colour)
        for count, seen in counts.items()
    ]
    y = MARGIN + 18 * number
    return [*parts, f'<text x="{MARGIN + 12}" y="{y}" font-size="13" fill="{colour}">{arm}</text>']


def main() -> int:
    asked = arguments(__doc__)
    facts = json.loads((asked.folders[-1] / "facts.json").read_text())
    rates = by_count(asked.folders)
    mps = "on" if any(lane["mps"] for lane in facts["lanes"].values()) else "off"
    cores = next(iter(facts["lanes"].values()))["cores"]
    head = [
        "arm",
        "GPUs",
        "captions/s",
        "of linear",
        "trials",
        "TTFT p50 / p95, s",
        "cores",
        "GPU",
        "NVDEC",
        "by GPU",
        "errors",
    ]
    parts = [
        INTRO.format(about=about_of(facts), **{**facts["arguments"], "mps": mps, "num_cores": cores}),
        table(rows_of(rates), head),
    ]
    share = linear_share(rates.get(OURS, {1: {"captions_per_s": 0}}))
    most = max((count for counts in rates.values() for count in counts), default=0)
    figures = {"linear_share": None if share is None else round(share, 3), "gpus": most}
    to = asked.to or asked.folders[-1]
    write(to, parts, {"headline": figures, "arms": rates, "versions": facts["versions"]})
    (to / "scaling.svg").write_text(plot(rates) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
