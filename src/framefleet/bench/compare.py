"""Two arms of recorded experiments beside each other: first what they answered, then how fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from framefleet.bench.charts import change
from framefleet.bench.experiment import (
    Differences,
    Experiment,
    Metric,
    Trial,
    answers_that_differ,
    metric_value,
    trials_of,
)
from framefleet.bench.scheduler import block_values
from framefleet.bench.stats import Comparison, compare_blocks, compare_runs
from framefleet.bench.trial_log import read_log
from framefleet.config import unknown
from framefleet.errors import ConfigError


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """An arm of a log."""

    log: str
    arm: str
    experiment: Experiment
    trials: tuple[Trial, ...]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The second against the first."""

    first: str
    second: str
    metric: Metric
    first_values: tuple[float, ...]
    second_values: tuple[float, ...]
    comparison: Comparison | None
    """None where the answers differ, or there are too few trials."""
    differences: Differences
    errors: tuple[float, float]
    """Shares of failed requests."""
    reason: str = ""
    """Why there is no comparison."""


def metric_named(name: str) -> Metric:
    """Raises ConfigError for a name that is none."""
    allowed: tuple[Metric, ...] = get_args(Metric)
    found = next((metric for metric in allowed if metric == name), None)
    if found is None:
        raise unknown("metric", name, list(allowed))
    return found


def recorded(place: str) -> Recorded:
    """`LOG.jsonl` (its first arm) or `LOG.jsonl:ARM`. Raises StoreError, ConfigError for an arm that is not there."""
    path, _, arm = place.rpartition(":") if not Path(place).exists() and ":" in place else (place, "", "")
    experiment, trials = read_log(Path(path))
    names = [one.name for one in experiment.arms]
    chosen = arm or names[0]
    mine = trials_of(trials, chosen)
    if not mine:
        raise ConfigError("no trials of this arm", given=place, allowed=", ".join(dict.fromkeys(t.arm for t in trials)))
    return Recorded(log=path, arm=chosen, experiment=experiment, trials=tuple(mine))


def compare(
    first: Recorded, second: Recorded, *, metric: Metric, smallest_effect: float, may_differ: bool = False
) -> Compared:
    """Speed counts only once the answers are the same, unless they may differ: then that is said.

    Within one experiment blocks are paired; apart, drift between the two is in the interval.
    """
    sides = (first, second)
    differences = answers_that_differ(first.trials, second.trials)
    values = [_values(one.trials, metric) for one in sides]
    reason = ""
    if not differences.passed and not may_differ:
        reason = difference_words(differences)
    elif min(map(len, values)) < 2:
        reason = "too few trials with good answers"
    comparison = None if reason else _comparison(first, second, values, metric, smallest_effect)
    return Compared(
        first=_name(first), second=_name(second), metric=metric, first_values=tuple(values[0]),
        second_values=tuple(values[1]), comparison=comparison, differences=differences, reason=reason,
        errors=(_errors(first.trials), _errors(second.trials)),
    )  # fmt: skip


def difference_words(found: Differences) -> str:
    """Why speed is not compared."""
    if not found.num_compared:
        return "they have no clip in common"
    parts = [(len(found.captions), "captions"), (len(found.frames), "frames")]
    return f"of {found.num_compared} clips " + " and ".join(
        f"{count} have other {what}" for count, what in parts if count
    )


def sentence(found: Compared) -> str:
    """The outcome in one sentence."""
    if found.comparison is None:
        return f"Not compared: {found.reason}."
    gain = found.comparison.gain
    bound = f"{change(gain.estimate, 1)} ({change(gain.low, 1)} to {change(gain.high, 1)})"
    words = {
        "better": "better than", "worse": "worse than",
        "same": "no different from", "not clear": "not clearly different from",
    }  # fmt: skip
    return f"{found.second} is {words[found.comparison.claim]} {found.first}: {bound} in {found.metric}."


def _comparison(
    first: Recorded, second: Recorded, values: Sequence[Sequence[float]], metric: Metric, smallest_effect: float
) -> Comparison:
    up = metric.endswith("_per_s")
    if first.log == second.log:
        asked = msgspec.structs.replace(first.experiment, metric=metric)
        a, b = (block_values(asked, one.trials, one.arm) for one in (first, second))
        if len(both := sorted(a.keys() & b.keys())) >= 2:
            pairs = [a[block] for block in both], [b[block] for block in both]
            return compare_blocks(*pairs, smallest_effect=smallest_effect, higher_is_better=up)
    return compare_runs(values[0], values[1], smallest_effect=smallest_effect, higher_is_better=up)


def _values(trials: Sequence[Trial], metric: Metric) -> list[float]:
    return [value for trial in trials if (value := metric_value(trial, metric)) is not None]


def _errors(trials: Sequence[Trial]) -> float:
    return sum(trial.error_share for trial in trials) / max(len(trials), 1)


def _name(one: Recorded) -> str:
    return f"{Path(one.log).name}:{one.arm}"
