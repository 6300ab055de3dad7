"""How near to a planted optimum `tune` comes, with how many trials, and whether planted regressions are rolled back.

python benchmarks/tune/run.py    simulated surfaces and canaries: raw.jsonl, result.json; see REPORT.md
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from functools import partial
from pathlib import Path

from framefleet._version import __version__
from framefleet.bench.apply import StubRevisions, apply_settings
from framefleet.bench.ladder import Climb, Outcome, grid_size
from framefleet.bench.stub_surface import LADDERS, NOISE, StubBench, StubSurface

HERE = Path(__file__).parent
FIRST_SEED, NUM_SURFACES = 7000, 200
NUM_CANARIES = 100
REGRESSIONS: dict[str, dict[str, float]] = {
    "slower by 15 %": {"p95_s": 2.3},
    "5 % of the requests fail": {"errors": 0.05},
    "6 % of the captions changed": {"changed": 3},
    "20 % more memory": {"memory_gib": 4.8},
    "nothing (false alarms)": {},
}
CLIPS = 50


async def climbed(seed: int) -> dict[str, object]:
    """One planted optimum."""
    surface = StubSurface(seed=seed)
    climb = Climb(surface.ladders, StubBench(surface, seed).measure, seed=seed)
    chosen = await climb.run()
    best, most = surface.best()
    return {
        "seed": seed,
        "share_of_optimum": surface.rate(chosen) / most,
        "trials_share": climb.num_trials / grid_size(surface.ladders),
        "trials": climb.num_trials,
        "chosen": chosen,
        "optimum": best,
    }


def look(
    rng: random.Random, *, p95_s: float = 2.0, errors: float = 0.0, changed: int = 0, memory_gib: float = 4.0
) -> Outcome:
    """One trial of a fleet made of numbers; its 95th percentile scatters by 3 %."""
    return Outcome(
        rates_per_s=(8.0,),
        p95_s=p95_s * math.exp(rng.gauss(0, 0.03)),
        error_share=errors,
        captions={f"clip{n}": "other" if n < changed else "same" for n in range(CLIPS)},
        memory_bytes=memory_gib * 2**30,
    )


async def rolled_back(seed: int, planted: dict[str, float]) -> bool:
    rng = random.Random(f"canary/{seed}")
    revisions = StubRevisions(partial(look, rng), partial(look, rng, **planted))
    return not (await apply_settings(revisions, {})).kept


async def measure() -> dict[str, object]:
    started_s = time.perf_counter()
    rows = [await climbed(seed) for seed in range(FIRST_SEED, FIRST_SEED + NUM_SURFACES)]
    shares = [float(str(row["share_of_optimum"])) for row in rows]
    trials = [float(str(row["trials_share"])) for row in rows]
    canaries = {
        name: sum([await rolled_back(seed, planted) for seed in range(NUM_CANARIES)]) / NUM_CANARIES
        for name, planted in REGRESSIONS.items()
    }
    (HERE / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "benchmark": "tune",
        "headline": {
            "within_optimum_share": sum(share >= 0.95 for share in shares) / len(shares),
            "trials_share": max(trials),
            "trials_share_mean": sum(trials) / len(trials),
            "worst_share_of_optimum": min(shares),
            "regressions_rolled_back": min(share for name, share in canaries.items() if REGRESSIONS[name]),
            "false_rollback_share": canaries["nothing (false alarms)"],
        },
        "rolled_back": canaries,
        "grid": grid_size(LADDERS),
        "noise": NOISE,
        "seeds": [FIRST_SEED, FIRST_SEED + NUM_SURFACES],
        "seconds": round(time.perf_counter() - started_s, 1),
        "versions": {"framefleet": __version__, "python": sys.version.split()[0]},
    }


def main() -> int:
    result = asyncio.run(measure())
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
