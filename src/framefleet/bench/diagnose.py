"""From evidence to the stage that limits the rate, or "not clear". Pure.

The reasoning is that of operational laws (Denning and Buzen 1978). With requests waiting, the rate is set by the stage
whose lanes are always busy; a stage in use for a share U of the time would allow 1/U of the rate. So an ablation that
leaves a stage with share U untouched gains at most 1/U - 1, and one that takes away every stage that limits must gain
something. Readings that break these rules are not believed, and then nothing is named.

KV-cache slots are held across prefill and generation: full slots whose holders wait for the GPU are a symptom, full
slots whose holders are all being served are a cause.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from framefleet.bench.stats import Interval

Stage = Literal[
    "client", "proxy", "fetch", "cpu_decode", "nvdec", "preprocess", "transfer", "kv_cache", "vision_prefill",
    "generation",
]  # fmt: skip
Ablation = Literal["decoded_before", "one_token", "half_frames", "more_in_flight"]
"""The same requests with frames decoded before the clock starts, with one output token, with every second frame, and
twice as many at a time."""

REQUIRED: tuple[Ablation, ...] = ("decoded_before", "one_token", "half_frames")
TAKES_AWAY: dict[Ablation, frozenset[Stage]] = {
    "decoded_before": frozenset({"fetch", "cpu_decode", "nvdec"}),
    "one_token": frozenset({"generation"}),
    "half_frames": frozenset(),
    "more_in_flight": frozenset(),
}
EASES: dict[Ablation, frozenset[Stage]] = {
    "decoded_before": frozenset({"fetch", "cpu_decode", "nvdec"}),
    "one_token": frozenset({"generation", "kv_cache"}),
    "half_frames": frozenset({"fetch", "cpu_decode", "nvdec", "preprocess", "transfer", "vision_prefill", "kv_cache"}),
    "more_in_flight": frozenset(),
}
"""Stages that an ablation makes cheaper at all; every other stage it leaves as it is."""
INSIDE_KV: tuple[Stage, ...] = ("vision_prefill", "generation")

SATURATED = 0.90
"""A share of use from which a stage may be what limits: balanced pairs hold each other a little below 1."""
NEXT_TO_TOP = 0.93
"""Stages this near to the busiest (as a ratio) limit together with it."""
WAITING_INSIDE = 0.20
"""Full KV slots are a symptom from this share of their holding time spent waiting."""
IDLE_WAIT = 0.10
"""Below this share of waiting in the whole time, requests find every stage free."""
LARGE_PART = 0.30
"""Of the time of lanes that several stages share, those with this part or more are named."""
TOO_WIDE = 3.0
"""An ablation whose interval spans more than this ratio of rates says nothing, and is to be measured for longer."""
SLACK = 0.05
"""By how much a gain may pass a bound before the readings are called contradictory."""


class StageReading(msgspec.Struct, frozen=True, kw_only=True):
    """One stage over a run."""

    utilisation: float | None
    """Busy lanes among its lanes, 0 to 1, over time; None where it cannot be read."""
    wait_s: float
    """Mean wait in front of it, over its visits."""
    service_s: float
    """Mean time in it, without that wait; for `kv_cache` the time from grant to release."""


class Lanes(msgspec.Struct, frozen=True):
    """Lanes that several stages share (a GPU, the cores of a machine): the share of its time that each takes."""

    name: str
    busy: dict[Stage, float]

    @property
    def utilisation(self) -> float:
        """Of the lanes as a whole."""
        return sum(self.busy.values())

    def large_parts(self) -> list[Stage]:
        """The stages that take most of it, largest first."""
        least = LARGE_PART * self.utilisation
        return sorted((s for s, busy in self.busy.items() if busy >= least), key=lambda stage: -self.busy[stage])

    def relief(self, ablation: Ablation) -> float:
        """What these lanes could carry more if the ablation were the only change; infinite where it empties them."""
        left = sum(busy for stage, busy in self.busy.items() if stage not in TAKES_AWAY[ablation])
        return self.utilisation / left - 1 if left > 0 else math.inf

    def is_eased_by(self, ablation: Ablation) -> bool:
        """Whether it has less to do there."""
        return not EASES[ablation].isdisjoint(self.busy)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A run with requests waiting, and what each ablation gained in requests/s. Stages not on the path are left out."""

    total_s: float
    """Mean time of a request."""
    stages: dict[Stage, StageReading]
    """A stage in shared lanes is counted there; its own utilisation is that of lanes which it has to itself, if any."""
    ablations: dict[Ablation, Interval]
    shared: tuple[Lanes, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The stages that limit, busiest first; none when it is not clear."""

    bottlenecks: tuple[Stage, ...]
    reason: str
    next_stage: Stage | None = None
    """What limits once the bottlenecks are gone."""
    gain_at_most: float | None = None
    """The relative gain up to there (0.3 is 30 %)."""
    unread: tuple[Stage, ...] = ()

    @property
    def clear(self) -> bool:
        """Something is named."""
        return bool(self.bottlenecks)


class NvdecAdvice(msgspec.Struct, frozen=True):
    """What taking decode off the CPU can gain at most, and what to do."""

    at_most: Interval
    advice: Literal["try it", "leave it", "not clear"]


def diagnose(evidence: Evidence) -> Verdict:
    """Name what limits, or say why it is not clear and what to measure next."""
    unread = _unread(evidence)
    if missing := [ablation for ablation in REQUIRED if ablation not in evidence.ablations]:
        return Verdict(bottlenecks=(), reason=f"not clear: not measured yet: {', '.join(missing)}", unread=unread)
    if wide := [name for name in REQUIRED if not _is_narrow(evidence.ablations[name])]:
        reason = f"not clear: too few answers to tell what {', '.join(wide)} gains; give it more time"
        return Verdict(bottlenecks=(), reason=reason, unread=unread)
    lanes = sorted(_causes(evidence), key=lambda one: -one.utilisation)
    if not lanes or lanes[0].utilisation < SATURATED:
        return _nothing_saturated(evidence, lanes, unread)
    least = max(SATURATED, NEXT_TO_TOP * lanes[0].utilisation)
    named = [one for one in lanes if one.utilisation >= least]
    others = [one for one in lanes if one.utilisation < least]
    if broken := contradiction(evidence, named, others):
        return Verdict(bottlenecks=(), reason=f"not clear: {broken}", unread=unread)
    return _named(evidence, named, others, unread)


def contradiction(evidence: Evidence, named: list[Lanes], others: list[Lanes]) -> str | None:
    """Which ablation speaks against the named lanes, in words; None when none does."""
    room = 1 / max((one.utilisation for one in others), default=1.0) - 1
    for ablation, gain in evidence.ablations.items():
        for one in named:
            allowed = 1 / min(one.utilisation, 1.0) - 1
            if not one.is_eased_by(ablation) and gain.low > allowed + SLACK:
                return (
                    f"{ablation} gains {gain.low:.0%} or more, and {one.name}, busy {one.utilisation:.0%} of the time, "
                    f"allows {allowed:.0%}"
                )
        expected = min(room, *(one.relief(ablation) for one in named))
        if expected > 4 * SLACK and gain.high < SLACK:
            names = " and ".join(one.name for one in named)
            return f"{ablation} takes away {names} and gains nothing, where {expected:.0%} were expected"
    return None


def nvdec_advice(evidence: Evidence, smallest_effect: float) -> NvdecAdvice | None:
    """What NVDEC can gain at most: all that frames decoded before the start gain (fetching included, decoding free).

    None when nothing is decoded on the CPU, or the ablation was not measured.
    """
    at_most = evidence.ablations.get("decoded_before")
    if at_most is None or "cpu_decode" not in evidence.stages:
        return None
    if at_most.high < smallest_effect:
        return NvdecAdvice(at_most, "leave it")
    return NvdecAdvice(at_most, "try it" if at_most.low >= smallest_effect else "not clear")


def _is_narrow(gain: Interval) -> bool:
    return (1 + gain.high) <= TOO_WIDE * (1 + gain.low)


def _unread(evidence: Evidence) -> tuple[Stage, ...]:
    shared = {stage for one in evidence.shared for stage in one.busy}
    return tuple(s for s, reading in evidence.stages.items() if reading.utilisation is None and s not in shared)


def _causes(evidence: Evidence) -> list[Lanes]:
    """Everything that can limit, without the KV cache where its being full is a symptom."""
    own = {stage: r.utilisation for stage, r in evidence.stages.items() if r.utilisation is not None}
    slots = evidence.stages.get("kv_cache")
    if slots is not None and own.get("kv_cache", 0.0) > 0:
        waiting_s = sum(evidence.stages[stage].wait_s for stage in INSIDE_KV if stage in evidence.stages)
        shared = [one.utilisation for one in evidence.shared if not set(INSIDE_KV).isdisjoint(one.busy)]
        gpu_is_full = max([0.0, *shared, *(own.get(stage, 0.0) for stage in INSIDE_KV)]) >= SATURATED
        if gpu_is_full and waiting_s >= WAITING_INSIDE * slots.service_s:
            del own["kv_cache"]
    return [*(Lanes(stage, {stage: share}) for stage, share in own.items()), *evidence.shared]


def _nothing_saturated(evidence: Evidence, lanes: list[Lanes], unread: tuple[Stage, ...]) -> Verdict:
    """`lanes`: busiest first."""
    doubled = evidence.ablations.get("more_in_flight")
    said = f"{lanes[0].name}, the busiest, is at {lanes[0].utilisation:.0%}" if lanes else "no stage was read"
    after = lanes[0].large_parts()[0] if lanes and lanes[0].utilisation > 0 else None
    if doubled is not None and doubled.low > SLACK:
        reason = f"client: twice as many requests in flight gain {doubled.estimate:.0%} ({said}): too few are in flight"
        return Verdict(bottlenecks=("client",), reason=reason, next_stage=after, unread=unread)
    if unread:
        reason = f"not clear: nothing that was read is always busy ({said}), and {', '.join(unread)} could not be read"
        return Verdict(bottlenecks=(), reason=reason, unread=unread)
    waiting_s = sum(reading.wait_s for reading in evidence.stages.values())
    if lanes and waiting_s < IDLE_WAIT * evidence.total_s:
        reason = f"client: requests find every stage free ({said}): too few are in flight"
        return Verdict(bottlenecks=("client",), reason=reason, next_stage=after)
    return Verdict(bottlenecks=(), reason=f"not clear: no stage is always busy ({said}); try more requests in flight")


def _named(evidence: Evidence, named: list[Lanes], others: list[Lanes], unread: tuple[Stage, ...]) -> Verdict:
    gains = ", ".join(f"{ablation} {gain.estimate:+.0%}" for ablation, gain in evidence.ablations.items())
    after = others[0] if others and others[0].utilisation > 0 else None
    bottlenecks = tuple(dict.fromkeys(stage for one in named for stage in one.large_parts()))
    following = [stage for stage in after.large_parts() if stage not in bottlenecks] if after else []
    return Verdict(
        bottlenecks=bottlenecks,
        reason=f"{', '.join(_said(one, evidence) for one in named)}; ablations: {gains}",
        next_stage=following[0] if following else None,
        gain_at_most=None if after is None else 1 / after.utilisation - 1,
        unread=unread,
    )


def _said(one: Lanes, evidence: Evidence) -> str:
    if len(one.busy) > 1:
        parts = ", ".join(f"{stage} {one.busy[stage]:.0%}" for stage in one.large_parts())
        return f"{one.name} (busy {one.utilisation:.0%}: {parts})"
    waits = evidence.stages[next(iter(one.busy))].wait_s
    return f"{one.name} (busy {one.utilisation:.0%}, wait {waits:.3g} s)"
