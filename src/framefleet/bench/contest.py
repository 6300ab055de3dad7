"""Servers against each other on the same clips: an experiment whose arms are endpoints, and its report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from framefleet._version import __version__
from framefleet.bench.charts import Line, interval_bars, line_chart, short, stacked_bars
from framefleet.bench.clips import Send, load_clips
from framefleet.bench.compare import Compared, Recorded, compare, sentence
from framefleet.bench.diagnosis_report import interval_of, over_time, phase_parts, trials_table
from framefleet.bench.executor import TrialRunner
from framefleet.bench.experiment import Arm, Experiment, Metric, Trial, Workload, metric_value, trials_of
from framefleet.bench.load import LoadSettings
from framefleet.bench.report import Block, Report, Section, Tone, chart, facts, table
from framefleet.bench.scheduler import Slot, run_experiment
from framefleet.bench.stats import mean_interval
from framefleet.bench.trial_log import TrialLog
from framefleet.caption.inputs import Inputs
from framefleet.engine.prompts import prompt_text


class ContestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is compared, with what load, for how long."""

    inputs: tuple[str, ...]
    """Files, folders, patterns: the user's own clips."""
    arms: dict[str, str]
    """Name -> endpoint; the first is what others are held against."""
    prompt: str = "general"
    """A prompt's name or its text."""
    send: Send = "url"
    """`url` or `bytes`."""
    max_tokens: Annotated[int, Meta(ge=1)] = 64
    """Of every answer; all are exactly so long."""
    concurrency: tuple[Annotated[int, Meta(ge=1)], ...] = (16,)
    """Requests in flight; each arm at each of these."""
    trial_s: Annotated[float, Meta(gt=0)] = 20.0
    """Of one trial."""
    time_limit_s: Annotated[float, Meta(gt=0)] = 600.0
    """Of trials, in all."""
    metric: Metric = "requests_per_s"
    """By which they are compared."""
    smallest_effect: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """The least change that matters."""
    max_clips: Annotated[int, Meta(ge=1)] = 32
    """Of the inputs, the first so many."""
    captions_may_differ: bool = False
    """Compare speed also where the answers are not the same."""
    api_key: str = ""
    """Sent as a bearer token."""


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    settings: ContestSettings
    compared: tuple[Compared, ...]
    """Each further arm against the first."""
    trials: tuple[Trial, ...]
    stopped: str
    log: str
    versions: dict[str, str]


async def run_contest(
    settings: ContestSettings, folder: Path, on_step: Callable[[str], None] = lambda _: None
) -> Contest:
    """Go on with what is missing in `folder`. Raises EngineLost, SourceError, ConfigError, StoreError."""
    paths = [source.location for source in itertools.islice(Inputs(list(settings.inputs)), settings.max_clips)]
    clips = load_clips(paths, settings.send)
    experiment = Experiment(
        question=f"Which is faster, {' or '.join(settings.arms)}",
        workload=Workload(
            clips=tuple(clip.digest for clip in clips), frame_policy={}, prompt=prompt_text(settings.prompt),
            max_output_tokens=settings.max_tokens,
        ),
        arms=tuple(
            Arm(name=arm_name(settings, name, count), settings={"endpoint": url, "concurrency": count})
            for count in settings.concurrency
            for name, url in settings.arms.items()
        ),
        metric=settings.metric, smallest_effect=settings.smallest_effect, time_limit_s=settings.time_limit_s,
        versions={"framefleet": __version__},
    )  # fmt: skip
    load = LoadSettings(
        endpoint=next(iter(settings.arms.values())), inputs=tuple(paths), api_key=settings.api_key,
        prompt=settings.prompt, send=settings.send, max_tokens=settings.max_tokens,
        concurrency=settings.concurrency[0], duration_s=settings.trial_s,
    )  # fmt: skip
    runner = TrialRunner(load, {"as_is": clips})

    async def trial(arm: Arm, slot: Slot) -> Trial:
        on_step(f"{arm.name}: " + ("warm-up" if slot.block < 0 else f"block {slot.block + 1}"))
        return await runner(arm, slot)

    with TrialLog(folder, experiment) as log:
        stop = await run_experiment(experiment, log, trial)
        return Contest(
            settings=settings, compared=tuple(_compared(settings, experiment, log)), trials=log.trials,
            stopped=stop.reason, log=str(log.path), versions=experiment.versions,
        )  # fmt: skip


def arm_name(settings: ContestSettings, name: str, concurrency: int) -> str:
    """`ours`, or `ours at 32` where there are several numbers in flight. Pure."""
    return name if len(settings.concurrency) == 1 else f"{name} at {concurrency}"


def contest_report(found: Contest) -> Report:
    """Pure."""
    asked = found.settings
    arms = [arm_name(asked, name, count) for count in asked.concurrency for name in asked.arms]
    phases = {arm: phase_parts(trials_of(found.trials, arm)) for arm in arms}
    times = chart(stacked_bars(phases, unit="s"), "Mean seconds of a request, by phase.")
    last = [trials_of(found.trials, arm)[-1:] for arm in arms[-len(asked.arms) :]]
    return Report(
        title=" against ".join(asked.arms),
        verdict=" ".join(sentence(one) for one in found.compared),
        tone=_tone(found.compared),
        advice=(f"It ended because {found.stopped}.",),
        sections=(
            _gains(found, arms),
            Section(title="Where a request's time goes", blocks=(times,)),
            *(over_time(trials[0]) for trials in last if trials and trials[0].series is not None),
            Section(title="Trials", blocks=(trials_table(found.trials),)),
            Section(title="What was run", blocks=(facts(_about(found)),)),
        ),
        raw_files=(Path(found.log).name, "report.json"),
    )


def _gains(found: Contest, arms: Sequence[str]) -> Section:
    gains = {
        one.second.rsplit(":", 1)[-1]: (c.gain.estimate, c.gain.low, c.gain.high)
        for one in found.compared
        if (c := one.comparison) is not None
    }
    about = f"Against {next(iter(found.settings.arms))}, turned so that more is better; 95 % intervals."
    blocks = (chart(interval_bars(gains), about), *_against_concurrency(found), _arms_table(found, arms))
    return Section(title=found.settings.metric, blocks=blocks)


def _about(found: Contest) -> dict[str, object]:
    asked = found.settings
    return {
        **asked.arms, "clips": ", ".join(asked.inputs), "in flight": ", ".join(map(str, asked.concurrency)),
        "tokens per answer": asked.max_tokens, "sent as": asked.send, **found.versions,
    }  # fmt: skip


def _compared(settings: ContestSettings, experiment: Experiment, log: TrialLog) -> Iterator[Compared]:
    """Each further arm against the first, at the same number in flight."""
    for count in settings.concurrency:
        base, *others = [
            Recorded(log=str(log.path), arm=arm, experiment=experiment, trials=tuple(trials_of(log.trials, arm)))
            for arm in (arm_name(settings, name, count) for name in settings.arms)
        ]
        for other in others:
            yield compare(
                base, other, metric=settings.metric, smallest_effect=settings.smallest_effect,
                may_differ=settings.captions_may_differ,
            )  # fmt: skip


def _against_concurrency(found: Contest) -> list[Block]:
    """A line per arm, where there are several numbers in flight."""
    asked = found.settings
    if len(asked.concurrency) == 1:
        return []
    lines = []
    for name in asked.arms:
        points = [
            (count, interval_of(values))
            for count in asked.concurrency
            if (values := _values(found, arm_name(asked, name, count)))
        ]
        lines.append(
            Line(
                name=name, x=[count for count, _ in points], y=[i.estimate for _, i in points],
                low=[i.low for _, i in points], high=[i.high for _, i in points],
            )
        )  # fmt: skip
    drawn = line_chart(lines, x="requests in flight", y=asked.metric, is_log=True)
    return [chart(drawn, f"{asked.metric} against concurrency, with 95 % intervals.")]


def _values(found: Contest, arm: str) -> list[float]:
    trials = trials_of(found.trials, arm)
    return [v for trial in trials if (v := metric_value(trial, found.settings.metric)) is not None]


def _arms_table(found: Contest, arms: Sequence[str]) -> Block:
    rows = []
    for arm in arms:
        trials, values = trials_of(found.trials, arm), _values(found, arm)
        interval = mean_interval(values) if len(values) > 1 else None
        errors = sum(trial.error_share for trial in trials) / max(len(trials), 1)
        rows.append(
            [
                arm,
                short(sum(values) / len(values)) if values else "",
                f"{short(interval.low)} to {short(interval.high)}" if interval else "",
                str(len(trials)),
                f"{errors:.1%}" if errors else "none",
            ]
        )
    return table(("arm", found.settings.metric, "95 % interval", "trials", "errors"), rows)


def _tone(compared: Sequence[Compared]) -> Tone:
    claims = {one.comparison.claim if one.comparison else "none" for one in compared}
    if "none" in claims:
        return "bad"
    return "unclear" if "not clear" in claims else "clear"
