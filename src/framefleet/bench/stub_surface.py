"""How fast a fleet made of numbers is at each rung of each ladder: the shipped fake that `tune` is tested against.

The rate is the least of what each ladder's resource allows, times what its excess costs the others. Where the optimum
is follows from the seed, and `best` knows it by trying the whole grid without noise.
"""

from __future__ import annotations

import itertools
import math
import random

import msgspec

from framefleet.bench.ladder import Ladder, Outcome, Settings, Value

NOISE = 0.02
"""Standard deviation of a trial's rate, over the rate."""
LADDERS = (
    Ladder(name="vram_budget_gib", rungs=(0.5, 1.0, 2.0, 4.0, 8.0)),
    Ladder(name="concurrency", rungs=(4, 8, 16, 32, 64, 128), restarts=False),
    Ladder(name="hw_decoders", rungs=(1, 2, 4, 8)),
    Ladder(name="api_server_count", rungs=(1, 2, 4, 8)),
    Ladder(name="backend", rungs=("opencv", "pyav", "pynvvideocodec"), costs=False),
)


class StubSurface(msgspec.Struct, frozen=True, kw_only=True):
    """A planted optimum."""

    seed: int
    ladders: tuple[Ladder, ...] = LADDERS
    least_budget: Value | None = None
    """Below this rung of the first ladder, clips wait for room."""
    starved_fails: bool = False
    """They fail instead of waiting."""

    def rate(self, settings: Settings) -> float:
        """Requests/s, without noise."""
        allowed, excess = [], 1.0
        for ladder in self.ladders:
            capacity, loss = self._rungs(ladder)[settings[ladder.name]]
            allowed.append(capacity)
            excess *= loss
        return min(allowed) * excess

    def best(self) -> tuple[Settings, float]:
        """By trying everything."""
        names = [ladder.name for ladder in self.ladders]
        grid = (dict(zip(names, p, strict=True)) for p in itertools.product(*(one.rungs for one in self.ladders)))
        return max(((point, self.rate(point)) for point in grid), key=lambda found: found[1])

    def is_starved(self, settings: Settings) -> bool:
        """Whether its budget is too small for clips not to wait."""
        first = self.ladders[0]
        place = first.rungs.index(settings[first.name])
        return self.least_budget is not None and place < first.rungs.index(self.least_budget)

    def _rungs(self, ladder: Ladder) -> dict[Value, tuple[float, float]]:
        """Rung -> what it allows, and what it leaves the others. A planted rung is the first that suffices."""
        rng = random.Random(f"{self.seed}/{ladder.name}")
        place = rng.randrange(len(ladder.rungs))
        if not ladder.costs:
            return {v: (100.0 if i == place else rng.uniform(40, 90), 1.0) for i, v in enumerate(ladder.rungs)}
        growth, loss = rng.uniform(1.3, 1.9), rng.uniform(0.90, 0.99)
        top = rng.uniform(80, 120)
        found = {}
        for i, value in enumerate(ladder.rungs):
            capacity = top * growth ** min(i - place, 0)
            found[value] = (capacity, loss ** max(i - place, 0))
        return found


class StubBench:
    """Measures a surface, with noise; the same seed gives the same noise in the same order."""

    def __init__(self, surface: StubSurface, seed: int = 0) -> None:
        self.surface, self._rng = surface, random.Random(f"bench/{surface.seed}/{seed}")

    async def measure(self, settings: Settings, effort: int) -> Outcome:
        """See Measure."""
        rate = self.surface.rate(settings)
        rates = tuple(rate * math.exp(self._rng.gauss(0, NOISE)) for _ in range(effort))
        is_starved = self.surface.is_starved(settings)
        return Outcome(
            rates_per_s=rates,
            p95_s=16 / min(rates),
            error_share=0.2 if is_starved and self.surface.starved_fails else 0.0,
            budget_wait_s=5.0 if is_starved else 0.0,
        )
