"""Which trial comes next, and when to stop. All pure but `run_experiment`, which acts on it.

A block runs each arm once in a shuffled order and then once in the reverse of it (A B B A), so that a steady drift hits
all arms alike and no arm is always first. After each block of `min_blocks` or more, the run ends as soon as every
comparison with the first arm is narrow enough (half its interval is within half the smallest effect) or settled as the
same. It never ends because a difference has shown: looking again and again until one does would find one in anything.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from framefleet.bench.experiment import WARM_UP, Arm, Experiment, Trial, metric_value, trials_of
from framefleet.bench.stats import Comparison, compare_blocks


class Slot(msgspec.Struct, frozen=True):
    """A trial to be run."""

    arm: str
    block: int
    position: int


class Stop(msgspec.Struct, frozen=True):
    """No more trials, and why."""

    reason: str


class Log(Protocol):
    """Where trials go; TrialLog is one."""

    @property
    def trials(self) -> Sequence[Trial]: ...

    def append(self, trial: Trial) -> None: ...


RunTrial = Callable[[Arm, Slot], Awaitable[Trial]]


def block_order(experiment: Experiment, block: int) -> tuple[str, ...]:
    """The arms of a block: shuffled by the experiment's digest and the block's number, then the same backwards."""
    names = [arm.name for arm in experiment.arms]
    random.Random(f"{experiment.digest}/{block}").shuffle(names)
    return (*names, *reversed(names))


def next_slot(experiment: Experiment, trials: Sequence[Trial]) -> Slot | Stop:
    """What to do after these trials, in whatever order they stand. A block that was begun is finished first, but for
    time: that is looked at before each trial."""
    if mute := [trial.arm for trial in trials if metric_value(trial, experiment.metric) is None]:
        return Stop(f"arm {mute[0]!r} has a trial without one good answer")
    if sum(trial.wall_s for trial in trials) >= experiment.time_limit_s:
        return Stop(f"the time is spent ({experiment.time_limit_s:g} s)")
    done = {(trial.block, trial.position) for trial in trials}
    for block in range(experiment.max_blocks):
        for position, arm in enumerate(block_order(experiment, block)):
            if (block, position) not in done:
                return (position == 0 and _enough(experiment, trials)) or Slot(arm, block, position)
    return Stop(f"{experiment.max_blocks} blocks are done")


def block_values(experiment: Experiment, trials: Iterable[Trial], arm: str) -> dict[int, float]:
    """Per whole block, the geometric mean of the arm's two values; blocks in which one is missing are left out."""
    found: dict[int, list[float]] = {}
    for trial in trials_of(trials, arm):
        if (value := metric_value(trial, experiment.metric)) is not None:
            found.setdefault(trial.block, []).append(math.log(value))
    return {block: math.exp(sum(logs) / 2) for block, logs in found.items() if len(logs) == 2}


def compare_arms(experiment: Experiment, trials: Sequence[Trial]) -> dict[str, Comparison]:
    """Each later arm against the first, over the blocks both have; arms that share no whole block are left out.

    The confidence is that of all comparisons together (Bonferroni): with many arms each interval is wider.
    """
    base_arm, *others = [arm.name for arm in experiment.arms]
    base = block_values(experiment, trials, base_arm)
    confidence = 1 - (1 - experiment.confidence) / len(others)
    found = {}
    for arm in others:
        values = block_values(experiment, trials, arm)
        if both := sorted(base.keys() & values.keys()):
            found[arm] = compare_blocks(
                [base[block] for block in both],
                [values[block] for block in both],
                smallest_effect=experiment.smallest_effect,
                higher_is_better=experiment.higher_is_better,
                confidence=confidence,
            )
    return found


async def run_experiment(experiment: Experiment, log: Log, run_trial: RunTrial) -> Stop:
    """Run what is still missing, each trial logged before the next begins; the reason why it ended.

    Every arm is warmed up first, also on resuming (its caches and clocks are cold again), unless nothing is missing.
    What `run_trial` raises passes through, and the trials before are in the log.
    """
    arms = {arm.name: arm for arm in experiment.arms}
    step = next_slot(experiment, log.trials)
    if isinstance(step, Stop):
        return step
    for slot in _warm_ups(experiment, log.trials):
        log.append(await run_trial(arms[slot.arm], slot))
    while isinstance(step := next_slot(experiment, log.trials), Slot):
        log.append(await run_trial(arms[step.arm], step))
    return step


def _warm_ups(experiment: Experiment, trials: Sequence[Trial]) -> list[Slot]:
    before = sum(1 for trial in trials if trial.block == WARM_UP)
    return [Slot(arm.name, WARM_UP, before + place) for place, arm in enumerate(experiment.arms)]


def _enough(experiment: Experiment, trials: Sequence[Trial]) -> Stop | None:
    """Asked between blocks."""
    num_blocks = len(block_values(experiment, trials, experiment.arms[0].name))
    if num_blocks < experiment.min_blocks:
        return None
    comparisons = compare_arms(experiment, trials).values()
    narrow = experiment.smallest_effect / 2
    if all(one.claim == "same" or one.gain.half_width <= narrow for one in comparisons):
        return Stop(f"every interval is narrow enough after {num_blocks} blocks")
    return None
