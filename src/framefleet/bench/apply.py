"""Put chosen settings into effect: a canary first, then watched, then kept or rolled back.

What runs is measured before, the new settings after, with the same requests. Whether they are slower is judged once,
after the last trial: looking again and again would find a difference in anything. Errors, other captions, memory and a
canary that is no good are acted on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from framefleet.bench.ladder import Outcome, Settings
from framefleet.bench.stats import compare_runs


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a canary must not exceed, against what ran before."""

    max_p95_increase: Annotated[float, Meta(gt=0)] = 0.05
    """Of the 95th percentile of a request's time, as a share."""
    max_more_errors: Annotated[float, Meta(ge=0)] = 0.01
    """Failed requests, as a share of all, beyond those before."""
    max_other_captions: Annotated[float, Meta(ge=0)] = 0.02
    """Share of clips with other captions, beyond those that differ between two looks at what ran before."""
    max_more_memory: Annotated[float, Meta(ge=0)] = 0.10
    """Peak of memory, as a share."""
    trials: Annotated[int, Meta(ge=3)] = 6
    """Before, and after."""


class Revisions(Protocol):
    """A fleet whose settings can be changed and changed back. `StubRevisions` is the shipped fake."""

    async def measure(self) -> Outcome:
        """One trial of what is in effect."""
        ...

    async def change(self, settings: Settings) -> tuple[str, ...]:
        """A canary, and then all. Why the canary was rolled back; empty when all have the new settings.

        Raises FramefleetError, with nothing changed, for settings that cannot work.
        """
        ...

    async def keep(self) -> None:
        """The new settings are to stay."""
        ...

    async def roll_back(self) -> None:
        """To what was in effect before."""
        ...


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    kept: bool
    reasons: tuple[str, ...]
    """Why it was rolled back; empty when it was kept."""
    before: tuple[Outcome, ...] = ()
    after: tuple[Outcome, ...] = ()


async def apply_settings(
    revisions: Revisions,
    settings: Settings,
    limits: Limits | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Measure, change, measure, keep or roll back. What goes wrong while watching rolls back, and is raised again."""
    limits = limits or Limits()
    before: list[Outcome] = []
    for trial in range(limits.trials):
        on_step(f"before: trial {trial + 1} of {limits.trials}")
        before.append(await revisions.measure())
    on_step("canary, then all")
    if reasons := await revisions.change(settings):
        return Applied(kept=False, reasons=reasons, before=tuple(before))
    after: list[Outcome] = []
    try:
        found = await _watch(revisions, limits, before, after, on_step)
    except BaseException:
        await revisions.roll_back()
        raise
    await (revisions.roll_back() if found else revisions.keep())
    return Applied(kept=not found, reasons=tuple(found), before=tuple(before), after=tuple(after))


async def _watch(
    revisions: Revisions,
    limits: Limits,
    before: Sequence[Outcome],
    after: list[Outcome],
    on_step: Callable[[str], None],
) -> list[str]:
    for trial in range(limits.trials):
        on_step(f"after: trial {trial + 1} of {limits.trials}")
        after.append(await revisions.measure())
        if reasons := at_once(before, after, limits):
            return reasons
    return slower(before, after, limits)


def at_once(before: Sequence[Outcome], after: Sequence[Outcome], limits: Limits) -> list[str]:
    """What is reason enough whenever it is seen. Pure."""
    found = [f"it failed: {one.failure}" for one in after if one.failure][:1]
    errors, errors_before = _mean([o.error_share for o in after]), _mean([o.error_share for o in before])
    if errors > errors_before + limits.max_more_errors:
        found.append(f"{errors:.1%} of the requests fail ({errors_before:.1%} before)")
    differ, noise = other_captions(before[0], after), other_captions(before[0], before[1:])
    if differ > noise + limits.max_other_captions:
        found.append(f"{differ:.1%} of the captions differ ({noise:.1%} between two looks at what ran before)")
    memory, memory_before = max(o.memory_bytes for o in after), max(o.memory_bytes for o in before)
    if memory_before and memory > memory_before * (1 + limits.max_more_memory):
        found.append(f"it takes {memory / 2**30:.2f} GiB of memory ({memory_before / 2**30:.2f} before)")
    return found


def slower(before: Sequence[Outcome], after: Sequence[Outcome], limits: Limits) -> list[str]:
    """Whether the 95th percentile is worse, by an interval that leaves out zero. Pure."""
    times_s = [o.p95_s for o in before], [o.p95_s for o in after]
    if not all(value > 0 for side in times_s for value in side):
        return []
    found = compare_runs(*times_s, smallest_effect=limits.max_p95_increase, higher_is_better=False)
    if found.claim != "worse":
        return []
    gain = found.gain
    return [f"the p95 is {-gain.estimate:.0%} longer ({-gain.high:.0%} to {-gain.low:.0%})"]


def other_captions(base: Outcome, others: Sequence[Outcome]) -> float:
    """Share of clips, over all of `others`, whose caption is not that of `base`. Pure."""
    pairs = [(base.captions[c], o.captions[c]) for o in others for c in o.captions.keys() & base.captions.keys()]
    return sum(mine != theirs for mine, theirs in pairs) / len(pairs) if pairs else 0.0


class StubRevisions:
    """A fleet made of numbers, with a regression of a known kind planted in its new settings."""

    def __init__(self, before: Callable[[], Outcome], after: Callable[[], Outcome], *, canary: str = "") -> None:
        """`canary`: why it is no good, if it is not."""
        self._now, self._after, self._canary = before, after, canary
        self._before = before
        self.calls: list[str] = []

    async def measure(self) -> Outcome:
        """See Revisions."""
        return self._now()

    async def change(self, settings: Settings) -> tuple[str, ...]:
        """See Revisions."""
        self.calls.append(f"change {', '.join(sorted(settings))}")
        if self._canary:
            return (self._canary,)
        self._now = self._after
        return ()

    async def keep(self) -> None:
        """See Revisions."""
        self.calls.append("keep")

    async def roll_back(self) -> None:
        """See Revisions."""
        self.calls.append("roll back")
        self._now = self._before


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
