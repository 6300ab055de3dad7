"""What a whole collection takes, from measured rates: GPU-hours, wall time, disk, cores, money. Pure.

The uncertainty is that of the rate as it was measured (its interval), widened by what a collection is unlike the clips
that were measured; both are stated. More machines are taken to help in proportion, less a share for each: they share
nothing but the store.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from framefleet.bench.stats import Interval
from framefleet.errors import ConfigError

SECONDS_PER_HOUR = 3600.0
UNLIKE = 0.15
"""Relative; how much a collection's clips may differ in cost from those measured, where nobody knows better."""
RECORD_BYTES = 1500.0
"""Of a record without its text: names, digests, times, versions (see benchmarks/store)."""
BYTES_PER_TOKEN = 4.5
LOSS_PER_MACHINE = 0.01


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What there is to do, and what was measured."""

    clips: Annotated[int, Meta(ge=1)]
    """In the collection."""
    windows_per_clip: Annotated[float, Meta(gt=0)] = 1.0
    """Requests for each clip."""
    tokens: Annotated[float, Meta(gt=0)] = 128.0
    """Of an answer."""
    rate_per_s: Annotated[float, Meta(gt=0)]
    """Requests per second of one GPU, measured with answers of `measured_tokens`."""
    rate_low_per_s: float | None = None
    """Lower end of its interval."""
    rate_high_per_s: float | None = None
    """Upper end."""
    measured_tokens: float | None = None
    """Of the answers that were measured; None: as many as planned."""
    generation_share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of the engine's time that is token generation: what longer answers cost."""
    gpus_per_machine: Annotated[int, Meta(ge=1)] = 8
    """In each machine."""
    machines: Annotated[int, Meta(ge=1)] = 1
    """Beside the figures for one."""
    cores_per_gpu: float | None = None
    """Cores in use for each GPU, as measured."""
    clip_bytes: float = 0.0
    """Mean size of a clip; read once."""
    price_per_gpu_hour: float | None = None
    """Money."""
    unlike: Annotated[float, Meta(ge=0, lt=1)] = UNLIKE
    """How much the collection's clips may differ in cost, as a share."""


class MachinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """For so many machines. Intervals hold the estimate and what it may be."""

    machines: int
    gpus: int
    wall_hours: Interval
    gpu_hours: Interval
    cost: Interval | None
    requests_per_s: float
    read_bytes_per_s: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    requests: float
    rate_per_gpu: Interval
    """With answers of the planned length."""
    store_bytes: float
    read_bytes: float
    cores_per_machine: float | None
    plans: tuple[MachinePlan, ...]
    assumptions: tuple[str, ...]


def plan_collection(settings: PlanSettings) -> Plan:
    """One machine and `machines`. Raises ConfigError for an interval that does not hold its estimate."""
    rate = rate_interval(settings)
    requests = settings.clips * settings.windows_per_clip
    counts = sorted({1, settings.machines})
    cores = settings.cores_per_gpu
    return Plan(
        requests=requests,
        rate_per_gpu=rate,
        store_bytes=requests * (RECORD_BYTES + settings.tokens * BYTES_PER_TOKEN),
        read_bytes=settings.clips * settings.clip_bytes,
        cores_per_machine=None if cores is None else cores * settings.gpus_per_machine,
        plans=tuple(_machines(settings, rate, requests, count) for count in counts),
        assumptions=tuple(_assumptions(settings)),
    )


def rate_interval(settings: PlanSettings) -> Interval:
    """Requests/s of a GPU for answers of the planned length: the measured interval, and how unlike clips may be."""
    rate = settings.rate_per_s
    low = rate if settings.rate_low_per_s is None else settings.rate_low_per_s
    high = rate if settings.rate_high_per_s is None else settings.rate_high_per_s
    if not 0 < low <= rate <= high:
        raise ConfigError("an interval without its estimate", given=f"{low} <= {rate} <= {high}", allowed="in order")
    longer = 1.0
    if settings.measured_tokens:
        share = settings.generation_share
        longer = 1 - share + share * settings.tokens / settings.measured_tokens
    return Interval(rate / longer, low / longer * (1 - settings.unlike), high / longer * (1 + settings.unlike))


def _machines(settings: PlanSettings, rate: Interval, requests: float, machines: int) -> MachinePlan:
    gpus = machines * settings.gpus_per_machine
    useful = gpus * (1 - LOSS_PER_MACHINE * (machines - 1) / machines)
    wall = _hours(requests, rate, useful)
    gpu = Interval(wall.estimate * gpus, wall.low * gpus, wall.high * gpus)
    price = settings.price_per_gpu_hour
    per_s = rate.estimate * useful
    return MachinePlan(
        machines=machines,
        gpus=gpus,
        wall_hours=wall,
        gpu_hours=gpu,
        cost=None if price is None else Interval(gpu.estimate * price, gpu.low * price, gpu.high * price),
        requests_per_s=per_s,
        read_bytes_per_s=per_s / settings.windows_per_clip * settings.clip_bytes,
    )


def _hours(requests: float, rate: Interval, gpus: float) -> Interval:
    """The faster, the shorter: the ends change places."""
    estimate, low, high = (
        requests / (value * gpus * SECONDS_PER_HOUR) for value in (rate.estimate, rate.high, rate.low)
    )
    return Interval(estimate, low, high)


def _assumptions(settings: PlanSettings) -> list[str]:
    lines = [f"the collection's clips cost within {settings.unlike:.0%} of those that were measured"]
    if settings.rate_low_per_s is None or settings.rate_high_per_s is None:
        lines.append("the rate is taken as exact: nothing was given of its interval")
    if settings.measured_tokens and settings.measured_tokens != settings.tokens:
        share = settings.generation_share
        lines.append(f"{share:.0%} of the engine's time is generation, and grows with the answer")
    if settings.machines > 1:
        lines.append(f"each further machine loses {LOSS_PER_MACHINE:.0%} (uneven ends; they share only the store)")
    return lines
