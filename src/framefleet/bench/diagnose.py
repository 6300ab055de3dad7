"""From evidence to the stage that limits the rate, or "not clear". Pure.

The reasoning is that of operational laws (Denning and Buzen 1978). With requests waiting, the rate is set by the stage
whose lanes are always busy; a stage in use for a share U of the time would allow 1/U of the rate. So an ablation that
leaves a stage with share U untouched gains at most 1/U - 1, and one that takes away every stage that limits must gain
something. Readings that break these rules are not believed, and then nothing is named.

KV-cache slots are held across prefill and generation: full slots whose holders wait for the GPU are a symptom, full
slots whose holders are all being served are a cause.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from framefleet.bench.stats import Interval

Stage = Literal[
    "client", "proxy", "fetch", "cpu_decode", "nvdec", "preprocess", "transfer", "kv_cache", "vision_prefill",
    "generation",
]  # fmt: skip
Ablation = Literal["decoded_before", "one_token", "half_frames"]
"""The same requests with frames decoded before the clock starts, with one output token, with every second frame."""

TAKES_AWAY: dict[Ablation, frozenset[Stage]] = {
    "decoded_before": frozenset({"fetch", "cpu_decode", "nvdec"}),
    "one_token": frozenset({"generation"}),
    "half_frames": frozenset(),
}
EASES: dict[Ablation, frozenset[Stage]] = {
    "decoded_before": frozenset({"fetch", "cpu_decode", "nvdec"}),
    "one_token": frozenset({"generation", "kv_cache"}),
    "half_frames": frozenset({"cpu_decode", "nvdec", "preprocess", "transfer", "vision_prefill", "kv_cache"}),
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


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A run with requests waiting, and what each ablation gained in requests/s. Stages not on the path are left out."""

    total_s: float
    """Mean time of a request."""
    stages: dict[Stage, StageReading]
    ablations: dict[Ablation, Interval]


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
    unread = tuple(stage for stage, reading in evidence.stages.items() if reading.utilisation is None)
    if missing := [ablation for ablation in TAKES_AWAY if ablation not in evidence.ablations]:
        return Verdict(bottlenecks=(), reason=f"not clear: not measured yet: {', '.join(missing)}", unread=unread)
    shares = _causes(evidence)
    busiest = max(shares, key=lambda stage: shares[stage], default=None)
    if busiest is None or shares[busiest] < SATURATED:
        return _nothing_saturated(evidence, shares, unread)
    named = [stage for stage in shares if shares[stage] >= max(SATURATED, NEXT_TO_TOP * shares[busiest])]
    named.sort(key=lambda stage: -shares[stage])
    others = {stage: share for stage, share in shares.items() if stage not in named}
    if broken := contradiction(evidence, named, others):
        return Verdict(bottlenecks=(), reason=f"not clear: {broken}", unread=unread)
    return _named(evidence, named, others, unread)


def contradiction(evidence: Evidence, named: list[Stage], others: dict[Stage, float]) -> str | None:
    """Which ablation speaks against the named stages, in words; None when none does."""
    for ablation, gain in evidence.ablations.items():
        for stage in named:
            share = evidence.stages[stage].utilisation
            if share and stage not in EASES[ablation] and gain.low > 1 / share - 1 + SLACK:
                return (
                    f"{ablation} gains {gain.low:.0%} or more, and {stage}, busy {share:.0%} of the time, "
                    f"allows {1 / share - 1:.0%}"
                )
        room = 1 / max(others.values(), default=1.0) - 1
        if TAKES_AWAY[ablation].issuperset(named) and room > 4 * SLACK and gain.high < SLACK:
            return f"{ablation} takes away {' and '.join(named)} and gains nothing, where {room:.0%} were expected"
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


def _causes(evidence: Evidence) -> dict[Stage, float]:
    """Shares of use, without the KV cache where its being full is a symptom."""
    shares = {stage: r.utilisation for stage, r in evidence.stages.items() if r.utilisation is not None}
    slots = evidence.stages.get("kv_cache")
    if slots is not None and shares.get("kv_cache", 0.0) > 0:
        waiting_s = sum(evidence.stages[stage].wait_s for stage in INSIDE_KV if stage in evidence.stages)
        gpu_is_full = any(shares.get(stage, 0.0) >= SATURATED for stage in INSIDE_KV)
        if gpu_is_full and waiting_s >= WAITING_INSIDE * slots.service_s:
            del shares["kv_cache"]
    return shares


def _nothing_saturated(evidence: Evidence, shares: dict[Stage, float], unread: tuple[Stage, ...]) -> Verdict:
    if unread:
        reason = f"not clear: nothing that was read is always busy, and {', '.join(unread)} could not be read"
        return Verdict(bottlenecks=(), reason=reason, unread=unread)
    waiting_s = sum(reading.wait_s for reading in evidence.stages.values())
    busiest = max(shares, key=lambda stage: shares[stage], default=None)
    if busiest is not None and waiting_s < IDLE_WAIT * evidence.total_s:
        reason = f"client: requests find every stage free ({busiest}, the busiest, is at {shares[busiest]:.0%})"
        return Verdict(bottlenecks=("client",), reason=reason + ": too few are in flight", next_stage=busiest)
    near = f"{busiest} is nearest with {shares[busiest]:.0%}" if busiest else "no stage was read"
    return Verdict(bottlenecks=(), reason=f"not clear: no stage is always busy ({near}); try more requests in flight")


def _named(evidence: Evidence, named: list[Stage], others: dict[Stage, float], unread: tuple[Stage, ...]) -> Verdict:
    said = ", ".join(
        f"{stage} (busy {evidence.stages[stage].utilisation:.0%}, wait {evidence.stages[stage].wait_s:.3g} s)"
        for stage in named
    )
    gains = ", ".join(f"{ablation} {gain.estimate:+.0%}" for ablation, gain in evidence.ablations.items())
    after = max(others, key=lambda stage: others[stage], default=None)
    return Verdict(
        bottlenecks=tuple(named),
        reason=f"{said}; ablations: {gains}",
        next_stage=after,
        gain_at_most=None if after is None or others[after] <= 0 else 1 / others[after] - 1,
        unread=unread,
    )
