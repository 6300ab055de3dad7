"""`tune`: which settings of a running fleet are the fastest on one's own clips, and the smallest that are as fast.

First the knee of the requests in flight, with today's settings; then the ladders; last, a look at the smallest memory
budget: clips must wait for room there, not fail. Settings whose captions are others than today's do not count.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from framefleet._version import __version__
from framefleet.bench.apply import Applied, Limits, apply_settings, other_captions
from framefleet.bench.clips import LoadClip, Send, load_clips
from framefleet.bench.experiment import Arm, Experiment, Workload
from framefleet.bench.fleet_bench import FleetBench, FleetRevisions
from framefleet.bench.fleet_values import (
    BUDGET,
    CONCURRENCY,
    default_ladders,
    engine_line,
    fleet_toml,
    settings_of,
    with_settings,
)
from framefleet.bench.ladder import Climb, Knee, Ladder, Measure, Outcome, Settings, find_knee, grid_size
from framefleet.bench.load import LoadSettings
from framefleet.bench.stats import Comparison, Interval, compare_runs, mean_interval
from framefleet.bench.trial_log import TrialLog
from framefleet.engine.prompts import prompt_text
from framefleet.errors import ConfigError
from framefleet.serve.fleet_client import FleetClient

MOST_OTHER_CAPTIONS = 0.10
"""Share of clips, beyond those that differ between two looks at today's settings."""
LAST_LOOKS = 3
"""Trials of the chosen and of today's settings after the search, to say what was gained."""


class TuneSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is tuned, with what load, and how long it may take."""

    inputs: tuple[str, ...]
    """Files, folders, patterns: the user's own clips."""
    prompt: str = "general"
    """A prompt's name or its text."""
    send: Send = "url"
    """`url` or `bytes`."""
    max_tokens: Annotated[int, Meta(ge=1)] = 64
    """Of every answer; all are exactly so long."""
    most_in_flight: Annotated[int, Meta(ge=1)] = 128
    """Where the search for the knee ends."""
    trial_s: Annotated[float, Meta(gt=0)] = 20.0
    """Of one trial."""
    time_limit_s: Annotated[float, Meta(gt=0)] = 3600.0
    """Of load; starting servers anew comes on top."""
    max_clips: Annotated[int, Meta(ge=1)] = 32
    """Of the inputs, the first so many."""
    smallest_effect: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """The least gain that would make anyone switch."""
    api_key: str = ""
    """Of the fleet."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that was tried."""

    settings: Settings
    rate_per_s: float
    interval: Interval | None
    """None after one trial."""
    num_trials: int
    p95_s: float
    error_share: float
    budget_wait_s: float
    memory_bytes: float
    kv_headroom: float | None
    failure: str


class Starved(msgspec.Struct, frozen=True, kw_only=True):
    """What the smallest budget did."""

    budget: str
    verdict: Literal["waits", "has room", "errors"]
    detail: str


class TuneResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is to tell."""

    settings: TuneSettings
    today: Settings
    chosen: Settings
    fastest: Settings
    gain: Comparison | None
    """Of the chosen over today's; None with too few trials."""
    knee: Knee
    points: tuple[Point, ...]
    starved: Starved | None
    num_trials: int
    grid_size: int
    fleet_toml: str
    engine_line: str
    log: str
    applied: Applied | None = None
    versions: dict[str, str] = {}


OnStep = Callable[[str], None]


def run_tune(
    settings: TuneSettings,
    fleet: FleetClient,
    folder: Path,
    *,
    ladders: Sequence[Ladder] = (),
    apply: bool = False,
    limits: Limits | None = None,
    on_step: OnStep = lambda _: None,
) -> TuneResult:
    """Search, put back what was in effect, and with `apply` put the chosen settings into effect, watched.

    `ladders`: those that suit the engine, when empty.

    Raises ReplicaError when no fleet runs, SourceError, ConfigError, MissingLibrary, StoreError; KeyboardInterrupt on
    Ctrl-C and SIGTERM, when what was in effect is back.
    """
    status = fleet.status()
    clips = load_clips(settings.inputs, settings.send)[: settings.max_clips]
    load = _load(settings, status["address"])
    ladders = list(ladders) or default_ladders(
        status["engine"],
        most_in_flight=settings.most_in_flight,
        has_decode_service=any(one["name"].startswith("decode") for one in status["services"]),
        has_gpu=any(one["gpu"] for one in status["replicas"]),
    )
    experiment = _experiment(settings, clips, ladders, fleet)
    with TrialLog(folder, experiment) as log:
        bench = FleetBench(fleet, load, clips, log)
        result = asyncio.run(_search(settings, ladders, bench, on_step))
        result = msgspec.structs.replace(result, log=str(log.path), versions=experiment.versions)
        if not apply:
            return result
        concurrency = int(result.chosen.get(CONCURRENCY, load.concurrency))
        watched = msgspec.structs.replace(load, concurrency=concurrency)
        revisions = FleetRevisions(fleet, watched, clips, log)
        applied = asyncio.run(apply_settings(revisions, result.chosen, limits, on_step))
        return msgspec.structs.replace(result, applied=applied)


async def _search(settings: TuneSettings, ladders: Sequence[Ladder], bench: FleetBench, on_step: OnStep) -> TuneResult:
    if threading.current_thread() is threading.main_thread():  # else a SIGTERM would leave what was tried in effect
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    try:
        return await _found(settings, ladders, bench, on_step)
    finally:
        on_step("putting back what was in effect")
        await bench.put_back()


async def _found(settings: TuneSettings, ladders: Sequence[Ladder], bench: FleetBench, on_step: OnStep) -> TuneResult:
    today = settings_of(bench.base, ladders)
    knee = await _knee(settings, today, bench, on_step)
    ladders = _at_the_knee(knee, ladders)
    today[CONCURRENCY] = knee.concurrency
    measure = _gated(_told(bench.measure, on_step), knee)
    most = max(8, int(settings.time_limit_s / settings.trial_s) - len(knee.measured))
    climb = Climb(
        ladders, measure, smallest_effect=settings.smallest_effect, start=today,
        max_trials=min(most, max(8, grid_size(ladders) // 4)),
    )  # fmt: skip
    chosen = await climb.run()
    fastest = climb.settings(climb.fastest)
    await climb.look_again(chosen, LAST_LOOKS)
    starved = await _starved(ladders, chosen, measure)
    await bench.put_back()
    again = await bench.measure(today, LAST_LOOKS)
    return TuneResult(
        settings=settings,
        today=today,
        chosen=chosen,
        fastest=fastest,
        gain=_gain(knee.measured[knee.concurrency].and_more(again), climb.outcome(chosen), settings.smallest_effect),
        knee=knee,
        points=tuple(point_of(climb.settings(point), outcome) for point, outcome in climb.measured.items()),
        starved=starved,
        num_trials=climb.num_trials + len(knee.measured) + LAST_LOOKS,
        grid_size=grid_size(ladders),
        fleet_toml=fleet_toml(with_settings(bench.base, chosen), chosen),
        engine_line=engine_line(with_settings(bench.base, chosen)),
        log="",
    )


async def _knee(settings: TuneSettings, today: Settings, bench: FleetBench, on_step: OnStep) -> Knee:
    async def measure(count: int) -> Outcome:
        on_step(f"{count} in flight")
        return await bench.measure({**today, CONCURRENCY: count}, 1)

    return await find_knee(measure, most=settings.most_in_flight, smallest_effect=settings.smallest_effect)


def _gain(before: Outcome, after: Outcome, smallest_effect: float) -> Comparison | None:
    if min(len(before.rates_per_s), len(after.rates_per_s)) < 2 or not before.score or not after.score:
        return None
    return compare_runs(before.rates_per_s, after.rates_per_s, smallest_effect=smallest_effect)


def _at_the_knee(knee: Knee, ladders: Sequence[Ladder]) -> list[Ladder]:
    """With other settings the knee may lie at half or twice as many in flight. Who has no ladder of them stays at it,
    or what is tried would meet another load than today's settings did."""
    counts = sorted({max(1, knee.concurrency // 2), knee.concurrency, 2 * knee.concurrency})
    at_it = Ladder(name=CONCURRENCY, rungs=(knee.concurrency,), restarts=False)
    if all(ladder.name != CONCURRENCY for ladder in ladders):
        return [*ladders, at_it]
    around = msgspec.structs.replace(at_it, rungs=tuple(counts))
    return [around if ladder.name == CONCURRENCY else ladder for ladder in ladders]


def _told(measure: Measure, on_step: OnStep) -> Measure:
    async def told(settings: Settings, effort: int) -> Outcome:
        on_step(f"{effort} trials of " + ", ".join(f"{name} {value}" for name, value in settings.items()))
        outcome = await measure(settings, effort)
        on_step(f"  {outcome.failure or f'{outcome.score:.3g} requests/s'}")
        return outcome

    return told


def _gated(measure: Measure, knee: Knee) -> Measure:
    """Settings under which other things are said are not faster, they do something else. How much captions differ
    among themselves, with today's settings, is known from the search for the knee."""
    looks = [outcome for outcome in knee.measured.values() if outcome.captions]
    reference = looks[0] if looks else None
    noise = max((other_captions(looks[0], [one]) for one in looks[1:]), default=0.0)

    async def gated(settings: Settings, effort: int) -> Outcome:
        outcome = await measure(settings, effort)
        share = other_captions(reference, [outcome]) if reference else 0.0
        if share > noise + MOST_OTHER_CAPTIONS:
            reason = f"{share:.0%} of the captions are others ({noise:.0%} differ with today's settings alone)"
            return msgspec.structs.replace(outcome, failure=reason)
        return outcome

    return gated


async def _starved(ladders: Sequence[Ladder], chosen: Settings, measure: Measure) -> Starved | None:
    """Whether too small a budget turns into waiting, as it must, and not into errors."""
    ladder = next((one for one in ladders if one.name == BUDGET), None)
    if ladder is None:
        return None
    outcome = await measure({**chosen, BUDGET: ladder.rungs[0]}, 1)
    budget = str(ladder.rungs[0])
    if outcome.failure or outcome.error_share:
        detail = outcome.failure or f"{outcome.error_share:.1%} of the requests failed"
        return Starved(budget=budget, verdict="errors", detail=detail)
    waited = f"clips waited {outcome.budget_wait_s:.1f} s in all"
    return Starved(budget=budget, verdict="waits" if outcome.budget_wait_s > 0 else "has room", detail=waited)


def point_of(settings: Settings, outcome: Outcome) -> Point:
    """For the report. Pure."""
    rates = outcome.rates_per_s
    return Point(
        settings=settings,
        rate_per_s=outcome.score,
        interval=mean_interval(rates) if len(rates) > 1 else None,
        num_trials=len(rates),
        p95_s=outcome.p95_s,
        error_share=outcome.error_share,
        budget_wait_s=outcome.budget_wait_s,
        memory_bytes=outcome.memory_bytes,
        kv_headroom=outcome.kv_headroom,
        failure=outcome.failure,
    )


def _experiment(
    settings: TuneSettings, clips: Sequence[LoadClip], ladders: Sequence[Ladder], fleet: FleetClient
) -> Experiment:
    base = fleet.settings()
    rungs = {ladder.name: " | ".join(map(str, ladder.rungs)) for ladder in ladders}
    running: dict[str, Any] = msgspec.to_builtins(base)
    return Experiment(
        question=f"Which settings suit {base.model.rsplit('/', 1)[-1]}",
        workload=Workload(
            clips=tuple(clip.digest for clip in clips),
            frame_policy={},
            prompt=prompt_text(settings.prompt),
            max_output_tokens=settings.max_tokens,
        ),
        arms=(
            Arm(name="today", settings={"fleet": msgspec.json.encode(running).decode()}),
            Arm(name="ladders", settings={**rungs}),
        ),
        metric="requests_per_s",
        smallest_effect=settings.smallest_effect,
        time_limit_s=settings.time_limit_s,
        versions={"framefleet": __version__},
    )


def _load(settings: TuneSettings, address: str) -> LoadSettings:
    if not address:
        raise ConfigError("the fleet has no address yet", remedy="framefleet fleet status")
    return LoadSettings(
        endpoint=address,
        inputs=settings.inputs,
        api_key=settings.api_key,
        prompt=settings.prompt,
        send=settings.send,
        max_tokens=settings.max_tokens,
        concurrency=min(16, settings.most_in_flight),
        duration_s=settings.trial_s,
    )
