"""Ladders of settings, and how they are climbed: few trials, most of them for what does well. Pure but for `measure`.

First a spread of settings over the whole grid, by successive halving (measure all a little, keep the better half,
measure that more). From the best of them, ladder by ladder, its rungs by halving again, until a round changes nothing;
then two ladders at a time, since two settings that limit alike must both move before anything gains. Last, the smallest
rung of each ladder that costs something (memory, processes) which is not slower by more than half the smallest effect:
half, since the other half is what a measured rate may err by.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from framefleet.errors import ConfigError

Value = str | int | float | bool
Settings = dict[str, Value]
MOST_ERRORS = 0.01
"""Share of failed requests above which a setting is out of the question."""
MOST_SPREAD = 24
ROUNDS = 3


class Ladder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting and the values it may take, cheapest first."""

    name: str
    rungs: tuple[Value, ...]
    costs: bool = True
    """Whether a higher rung takes something away from others (memory, cores): then the smallest that does is chosen."""
    restarts: bool = True
    """Whether a change of it needs the servers started anew."""

    def __post_init__(self) -> None:
        if not self.rungs or len(set(self.rungs)) < len(self.rungs):
            raise ConfigError(f"no ladder of {self.name}", given=str(self.rungs), allowed="values that differ")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one setting gave, over all its trials so far."""

    rates_per_s: tuple[float, ...]
    p95_s: float = 0.0
    error_share: float = 0.0
    budget_wait_s: float = 0.0
    """Waited for the VRAM budget, in all."""
    memory_bytes: float = 0.0
    kv_headroom: float | None = None
    """Share of the KV cache never used."""
    captions: dict[str, str] = {}
    """Clip -> digest of what was said."""
    failure: str = ""
    """Why it could not run at all."""

    @property
    def score(self) -> float:
        """Geometric mean of the rates; nothing for a setting that fails requests."""
        if self.failure or not self.rates_per_s or self.error_share > MOST_ERRORS:
            return 0.0
        return math.exp(sum(math.log(max(rate, 1e-12)) for rate in self.rates_per_s) / len(self.rates_per_s))

    def and_more(self, other: Outcome) -> Outcome:
        """Both together, weighted by their trials."""
        mine, theirs = len(self.rates_per_s), len(other.rates_per_s)
        total = max(mine + theirs, 1)
        return Outcome(
            rates_per_s=self.rates_per_s + other.rates_per_s,
            p95_s=max(self.p95_s, other.p95_s),
            error_share=(self.error_share * mine + other.error_share * theirs) / total,
            budget_wait_s=self.budget_wait_s + other.budget_wait_s,
            memory_bytes=max(self.memory_bytes, other.memory_bytes),
            kv_headroom=min((h for h in (self.kv_headroom, other.kv_headroom) if h is not None), default=None),
            captions=self.captions | other.captions,
            failure=self.failure or other.failure,
        )


Measure = Callable[[Settings, int], Awaitable[Outcome]]
"""So many further trials of these settings. What cannot run is an Outcome with `failure`, not an error."""


class Climb:
    """One search. `best` after `run`; `measured` holds everything that was seen."""

    def __init__(
        self, ladders: Sequence[Ladder], measure: Measure, *, smallest_effect: float = 0.05, seed: int = 0,
        start: Settings | None = None, max_trials: int | None = None,
    ) -> None:  # fmt: skip
        """`start`: today's settings, the middle of each ladder where it says nothing.

        `max_trials`: a bound on trials; None: a quarter of the full grid, and 200 at most.
        """
        self.ladders, self._measure, self._effect = list(ladders), measure, smallest_effect
        self._rng = random.Random(f"climb/{seed}")
        self.measured: dict[tuple[Value, ...], Outcome] = {}
        self.num_trials = 0
        self._running = ""
        self.max_trials = max_trials or max(8, min(200, grid_size(ladders) // 4))
        given = start or {}
        self.start = tuple(given.get(one.name, one.rungs[len(one.rungs) // 2]) for one in self.ladders)

    async def run(self) -> Settings:
        """The settings chosen. Raises ConfigError when none could run at all."""
        best = await self._halve(self._spread())
        for _ in range(ROUNDS):
            before = best
            for place in range(len(self.ladders)):
                best = await self._climb(best, place)
            if best == before:
                best = await self._halve(self._pairs(best), keep=best)
            if best == before:
                break
        if not self.measured[best].score:
            reasons = {outcome.failure for outcome in self.measured.values() if outcome.failure}
            raise ConfigError("no settings of the ladders can run", given="; ".join(sorted(reasons)) or "errors alone")
        self.fastest = best
        return self.settings(await self._shrink(best))

    async def look_again(self, settings: Settings, trials: int) -> None:
        """Bring settings up to so many trials, whatever the bound says."""
        point = tuple(settings[ladder.name] for ladder in self.ladders)
        await self._see(point, trials, is_last_word=True)

    def settings(self, point: tuple[Value, ...]) -> Settings:
        """By name."""
        return {ladder.name: value for ladder, value in zip(self.ladders, point, strict=True)}

    def outcome(self, settings: Settings) -> Outcome:
        """Of settings that were measured."""
        return self.measured[tuple(settings[ladder.name] for ladder in self.ladders)]

    def _spread(self) -> list[tuple[Value, ...]]:
        """The start, and points in which each rung of each ladder comes about as often (a Latin square)."""
        count = min(MOST_SPREAD, max(2, grid_size(self.ladders) // 16), max(2, self.max_trials // 4))
        columns = []
        for ladder in self.ladders:
            column = list(itertools.islice(itertools.cycle(ladder.rungs), count))
            self._rng.shuffle(column)
            columns.append(column)
        return list(dict.fromkeys([self.start, *zip(*columns, strict=True)]))

    async def _climb(self, best: tuple[Value, ...], place: int) -> tuple[Value, ...]:
        """The best rung of one ladder, all others held."""
        rungs = self.ladders[place].rungs
        return await self._halve([(*best[:place], rung, *best[place + 1 :]) for rung in rungs], keep=best)

    def _pairs(self, best: tuple[Value, ...]) -> list[tuple[Value, ...]]:
        """Two ladders moved by a rung each (to any other rung, where rungs are in no order), as trials are left."""
        found = []
        for first, second in itertools.combinations(range(len(best)), 2):
            for one, other in itertools.product(self._beside(best, first), self._beside(best, second)):
                point = list(best)
                point[first], point[second] = one, other
                found.append(tuple(point))
        self._rng.shuffle(found)
        return [best, *found[: max(0, (self.max_trials - self.num_trials) // 2)]]

    def _beside(self, best: tuple[Value, ...], place: int) -> list[Value]:
        ladder = self.ladders[place]
        at = ladder.rungs.index(best[place])
        return [rung for i, rung in enumerate(ladder.rungs) if (abs(i - at) == 1 if ladder.costs else i != at)]

    async def _halve(
        self, points: Sequence[tuple[Value, ...]], keep: tuple[Value, ...] | None = None
    ) -> tuple[Value, ...]:
        """`keep` wins unless another is better."""
        rest, effort = list(points), 1
        while True:
            for point in sorted(rest, key=self._restart_key):
                await self._see(point, effort)
            rest.sort(key=lambda point: (-self.measured[point].score, point != keep))
            if len(rest) <= 2 or self.num_trials >= self.max_trials:
                return rest[0]
            rest, effort = rest[: (len(rest) + 1) // 2], 2 * effort

    def _restart_key(self, point: tuple[Value, ...]) -> tuple[bool, str]:
        """Points that need the same servers stand together, those of the running ones first."""
        pairs = zip(self.ladders, point, strict=True)
        servers = repr([value for ladder, value in pairs if ladder.restarts])
        return servers != self._running, servers

    async def _shrink(self, fastest: tuple[Value, ...]) -> tuple[Value, ...]:
        chosen, least = fastest, self.measured[fastest].score * (1 - self._effect / 2)
        for place, ladder in enumerate(self.ladders):
            if not ladder.costs:
                continue
            for rung in ladder.rungs[: ladder.rungs.index(chosen[place])]:
                smaller = (*chosen[:place], rung, *chosen[place + 1 :])
                await self._see(smaller, 2)
                if self.measured[smaller].score >= least:
                    await self._see(smaller, 4, is_last_word=True)
                    if self.measured[smaller].score >= least:
                        chosen = smaller
                        break
        return chosen

    async def _see(self, point: tuple[Value, ...], effort: int, *, is_last_word: bool = False) -> None:
        """Bring a point up to so many trials, as far as they go."""
        seen = self.measured.get(point)
        have = len(seen.rates_per_s) if seen else 0
        missing = effort - have
        if seen is not None and (missing <= 0 or seen.failure):
            return
        if self.num_trials >= self.max_trials and seen is not None and not is_last_word:
            return
        self._running = self._restart_key(point)[1]
        more = await self._measure(self.settings(point), missing)
        self.num_trials += missing
        self.measured[point] = seen.and_more(more) if seen else more


def grid_size(ladders: Sequence[Ladder]) -> int:
    """Settings in all."""
    return math.prod(len(ladder.rungs) for ladder in ladders)


def doubling(most: int, least: int = 1) -> tuple[int, ...]:
    """`least`, twice that ... up to `most`, and `most`."""
    rungs = []
    while least < most:
        rungs.append(least)
        least *= 2
    return (*rungs, most)


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where more in flight stops to help."""

    concurrency: int
    reason: Literal["no more gain", "end of the ladder", "errors", "too slow"]
    measured: dict[int, Outcome]


async def find_knee(
    measure: Callable[[int], Awaitable[Outcome]], *, most: int, smallest_effect: float = 0.05,
    max_p95_s: float = math.inf,
) -> Knee:  # fmt: skip
    """Double until that gains less than the smallest effect (or fails, or is too slow), then look in between: the
    fewest in flight that are within the smallest effect of the most that was reached."""
    seen: dict[int, Outcome] = {}
    reason: Literal["no more gain", "end of the ladder", "errors", "too slow"] = "end of the ladder"
    best = 0
    for count in doubling(most):
        seen[count] = outcome = await measure(count)
        if not outcome.score:
            reason = "errors"
        elif outcome.p95_s > max_p95_s:
            reason = "too slow"
        elif best and outcome.score < seen[best].score * (1 + smallest_effect):
            reason = "no more gain"
        else:
            best = count
            continue
        break
    if not best:
        raise ConfigError("not even one request at a time works", given=str(seen[1].failure or "errors"))
    fits = [c for c, o in seen.items() if o.score and o.p95_s <= max_p95_s]
    enough = max(seen[count].score for count in fits) * (1 - smallest_effect)
    low, high = best // 2, best
    while high - low > 1:
        middle = (low + high) // 2
        seen.setdefault(middle, await measure(middle))
        low, high = (low, middle) if seen[middle].score >= enough else (middle, high)
    return Knee(concurrency=high, reason=reason, measured=seen)
