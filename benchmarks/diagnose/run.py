"""How often `diagnose` is right where the truth is known; see REPORT.md.

python benchmarks/diagnose/run.py        simulated fleets: raw.jsonl, result.json
python benchmarks/diagnose/fleet.py OUT  a real fleet on the CPU
python benchmarks/diagnose/servers.py    real vLLM servers, on a GPU
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import get_args

from framefleet._version import __version__
from framefleet.bench.diagnose import Stage, diagnose
from framefleet.bench.stats import compare_runs
from framefleet.bench.stub_fleet import observe, plant, simulate

HERE = Path(__file__).parent
STAGES = get_args(Stage)
PLANS = [*((stage,) for stage in STAGES), *combinations(STAGES, 2)]
"""Each of the ten alone, and every pair."""
FIRST_SEED, NUM_FLEETS = 5000, 200
"""Not those that thresholds were tried on, nor those of the tests."""
NUM_SAME = 100
SMALLEST_EFFECT = 0.05


def diagnosed(seed: int) -> dict[str, object]:
    """One fleet with planted bottlenecks."""
    plan = PLANS[seed % len(PLANS)]
    verdict = diagnose(observe(plant(plan, seed), seed))
    named, planted = set(verdict.bottlenecks), set(plan)
    outcome = "right" if named == planted else "not clear" if not named else "in part" if named < planted else "wrong"
    return {"seed": seed, "planted": plan, "named": verdict.bottlenecks, "outcome": outcome, "reason": verdict.reason}


def same_arm(stage: Stage, seed: int, smallest_effect: float) -> str:
    """The claim about an arm against itself."""
    fleet = plant([stage], seed)
    base, again = (simulate(fleet, None, run).rates_per_s for run in (seed, seed + 1_000_000))
    return compare_runs(base, again, smallest_effect=smallest_effect).claim


def main() -> int:
    started_s = time.perf_counter()
    rows = [diagnosed(seed) for seed in range(FIRST_SEED, FIRST_SEED + NUM_FLEETS)]
    outcomes = Counter(str(row["outcome"]) for row in rows)
    claims = {
        f"{effect:.0%}": Counter(same_arm(STAGES[seed % len(STAGES)], seed, effect) for seed in range(NUM_SAME))
        for effect in (SMALLEST_EFFECT, 0.0)
    }
    wrong = {effect: (found["better"] + found["worse"]) / NUM_SAME for effect, found in claims.items()}
    (HERE / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = {
        "benchmark": "diagnose",
        "headline": {
            "right_share": outcomes["right"] / NUM_FLEETS,
            "wrong_share": outcomes["wrong"] / NUM_FLEETS,
            "false_positive_share": wrong["5%"],
            "false_positive_share_without_smallest_effect": wrong["0%"],
        },
        "outcomes": outcomes,
        "same_arm_claims": claims,
        "seeds": [FIRST_SEED, FIRST_SEED + NUM_FLEETS],
        "seconds": round(time.perf_counter() - started_s, 1),
        "versions": {"framefleet": __version__, "python": sys.version.split()[0]},
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
