"""Intervals, and comparisons against the smallest effect worth having. Pure.

The unit is the trial, never the request: requests of one trial share the machine's mood, and counting them as one
each makes every interval too narrow. Arms are compared within blocks (A B B A), on logarithms: a steady drift falls
out of each block, and the answer reads "x % more".

Student's distribution comes from its closed forms for whole degrees of
freedom (Abramowitz and Stegun 26.7.3 and 26.7.4), so no statistics library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev, variance
from typing import Literal

import msgspec

from framefleet.errors import ConfigError

Claim = Literal["better", "worse", "same", "not clear"]


class Interval(msgspec.Struct, frozen=True):
    """An estimate with the ends of its confidence interval. For a relative change, 0.05 is 5 % more."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the distance between the ends; infinite as long as nothing can be said."""
        return (self.high - self.low) / 2


class Comparison(msgspec.Struct, frozen=True):
    """What one arm gains over another, turned so that more is better, and what may be claimed of it."""

    gain: Interval
    smallest_effect: float
    claim: Claim


def percentile(values: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of the sorted values, interpolated. Raises ConfigError."""
    if not values or not 0 <= share <= 1:
        raise ConfigError(
            "no percentile", given=f"{len(values)} values, share {share}", allowed="a value or more, a share of 0 to 1"
        )
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Student's interval of the mean. One value says nothing about its spread, so its interval is infinite.

    Raises ConfigError for no value, or for a confidence outside (0, 1).
    """
    _check_confidence(confidence)
    if not values:
        raise ConfigError("no interval", given="no values", allowed="one value or more")
    if len(values) == 1:
        return Interval(values[0], -math.inf, math.inf)
    return _interval(fmean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1, confidence)


def compare_blocks(
    base: Sequence[float],
    other: Sequence[float],
    *,
    smallest_effect: float,
    higher_is_better: bool = True,
    confidence: float = 0.95,
) -> Comparison:
    """What `other` gains over `base`; the two hold one positive value per block, in the same order.

    Raises ConfigError for lengths that differ, no blocks, values not above 0, or a negative smallest effect.
    """
    if len(base) != len(other):
        raise ConfigError(
            "blocks do not pair up", given=f"{len(base)} and {len(other)} values", allowed="as many of each"
        )
    logs = [later - first for first, later in zip(_logs(base), _logs(other), strict=True)]
    change = mean_interval([x if higher_is_better else -x for x in logs], confidence=confidence)
    return _comparison(change, smallest_effect)


def compare_runs(
    base: Sequence[float],
    other: Sequence[float],
    *,
    smallest_effect: float,
    higher_is_better: bool = True,
    confidence: float = 0.95,
) -> Comparison:
    """What `other` gains over `base` when the two were measured apart (two recorded experiments), after Welch.

    Degrees of freedom are rounded down, which widens the interval. Drift between the two is not removed: prefer blocks.
    Raises ConfigError for fewer than two values on a side, values not above 0, or a negative smallest effect.
    """
    _check_confidence(confidence)
    if min(len(base), len(other)) < 2:
        raise ConfigError(
            "too few trials to compare", given=f"{len(base)} and {len(other)}", allowed="two or more of each"
        )
    first, later = _logs(base), _logs(other)
    noise = variance(first) / len(first), variance(later) / len(later)
    change = fmean(later) - fmean(first)
    dof = _welch_dof(noise, (len(first), len(later)))
    interval = _interval(change if higher_is_better else -change, math.sqrt(sum(noise)), dof, confidence)
    return _comparison(interval, smallest_effect)


def claim_of(gain: Interval, smallest_effect: float) -> Claim:
    """What may be said of a gain.

    Same: the whole interval is within the smallest effect. Better or worse: the interval leaves out zero, and the
    estimate reaches the smallest effect. Anything else is not clear.
    """
    if -smallest_effect < gain.low and gain.high < smallest_effect:
        return "same"
    if gain.low > 0 and gain.estimate >= smallest_effect:
        return "better"
    if gain.high < 0 and gain.estimate <= -smallest_effect:
        return "worse"
    return "not clear"


@lru_cache(maxsize=4096)
def student_quantile(dof: int, confidence: float) -> float:
    """The t for which Student's distribution holds `confidence` of its weight within ±t. Raises ConfigError."""
    _check_confidence(confidence)
    if dof < 1:
        raise ConfigError("no Student's distribution", given=f"{dof} degrees of freedom", allowed="1 or more")
    low, high = 0.0, math.pi / 2  # as an angle, atan(t / sqrt(dof)), which is bounded
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _weight_within(middle, dof) < confidence else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(dof)


def _weight_within(angle: float, dof: int) -> float:
    """The weight within ±t, where t = sqrt(dof) tan(angle)."""
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = dof % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0 if dof == 1 else term
    for k in range(2 + odd, dof, 2):
        term *= square * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _interval(estimate: float, error: float, dof: int, confidence: float) -> Interval:
    reach = student_quantile(dof, confidence) * error
    return Interval(estimate, estimate - reach, estimate + reach)


def _comparison(change: Interval, smallest_effect: float) -> Comparison:
    if smallest_effect < 0:
        raise ConfigError("a smallest effect below zero", given=str(smallest_effect), allowed="0 or more (0.05 is 5 %)")
    gain = Interval(_as_change(change.estimate), _as_change(change.low), _as_change(change.high))
    return Comparison(gain, smallest_effect, claim_of(gain, smallest_effect))


def _as_change(log_ratio: float) -> float:
    """A log ratio as a relative change; what no float holds is infinite."""
    return math.expm1(log_ratio) if log_ratio < 700 else math.inf


def _logs(values: Sequence[float]) -> list[float]:
    if not all(0 < value < math.inf for value in values):
        raise ConfigError("a value that has no ratio", given=str(list(values)), allowed="finite values above 0")
    return [math.log(value) for value in values]


def _welch_dof(noise: tuple[float, float], sizes: tuple[int, int]) -> int:
    spread = sum(part**2 / (size - 1) for part, size in zip(noise, sizes, strict=True))
    fewest = min(sizes) - 1
    return fewest if spread == 0 else max(fewest, math.floor(sum(noise) ** 2 / spread))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ConfigError("not a confidence", given=str(confidence), allowed="above 0 and below 1")
