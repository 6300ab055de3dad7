"""`diagnose` on a real fleet: which loads to run in how long, and what they say together.

One request at a time first (what things take without waiting), then the load as it is and each ablation, forwards and
backwards (A B B A), each for the same time. Everything is written as trials before anything is judged.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from framefleet._version import __version__
from framefleet.bench.ablations import PreparedClips, policy_for, prepare_clips, why_invalid
from framefleet.bench.clips import LoadClip, Send, load_clips
from framefleet.bench.diagnose import Ablation, Evidence, NvdecAdvice, Verdict, diagnose, nvdec_advice
from framefleet.bench.evidence import Observed, Setup, evidence_of
from framefleet.bench.executor import TrialRunner
from framefleet.bench.experiment import WARM_UP, Arm, Experiment, Trial, Workload
from framefleet.bench.load import LoadSettings
from framefleet.bench.scheduler import Slot, block_order
from framefleet.bench.site import Site
from framefleet.bench.trial_log import TrialLog
from framefleet.caption.inputs import Inputs
from framefleet.decode.options import DecodeOptions
from framefleet.engine.prompts import prompt_text

Settings = dict[str, str | int | float | bool]
PLAIN, ALONE, ALONE_DECODED = "plain", "alone", "alone_decoded"
LOADED: dict[str, Settings] = {
    PLAIN: {},
    "decoded_before": {"clips": "decoded_before"},
    "one_token": {"max_tokens": 1},
    "half_frames": {"clips": "half_frames"},
}
ALONE_BLOCK = 1_000_000
"""Trials with one request at a time stand apart from those that are compared."""
ALONE_REQUESTS = 5
SHARE_ALONE = 0.15
"""Of the time, at most, for one request at a time."""
WARM_UP_TRIALS = 0.5
"""Length of the load that is not judged, in trials: the first under load was slower than its twin by 15 to 25 % on an
H200 (benchmarks/diagnose)."""
MOST_SPREAD = 0.25
"""Of a trial, for the first requests to begin, one after the other."""
OTHERS_CORES = 0.5
VLLM_MEDIA_THREADS = 8
"""Clips that one API server of vLLM reads and decodes at a time (VLLM_MEDIA_LOADING_THREAD_COUNT)."""


class DiagnoseSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is diagnosed, and how long it may take."""

    endpoint: str = "http://127.0.0.1:8080"
    """Base URL of the server or the proxy."""
    inputs: tuple[str, ...]
    """Files, folders, patterns: the user's own clips."""
    engines: tuple[str, ...] = ()
    """Where the engines are, behind a proxy that is not framefleet's."""
    model: str = ""
    """Name on the server; empty: the first it lists."""
    model_files: str = ""
    """Folder or hub id of the model, for its rule of choosing frames; empty: as the server says."""
    frames: dict[str, Any] = {}
    """What the server was told to change in that rule: fields of DecodeOptions, like `{"max_frames": 16}`."""
    extra_body: dict[str, Any] = {}
    """Further fields of each request."""
    api_key: str = ""
    """Sent as a bearer token."""
    prompt: str = "general"
    """A prompt's name or its text."""
    send: Send = "url"
    """`url` or `bytes`."""
    max_tokens: Annotated[int, Meta(ge=2)] = 64
    """Of every answer; all are exactly so long."""
    concurrency: Annotated[int, Meta(ge=2)] = 16
    """Requests in flight."""
    time_limit_s: Annotated[float, Meta(ge=1)] = 90.0
    """Of load; preparing the clips and letting the last requests end come on top."""
    max_clips: Annotated[int, Meta(ge=1)] = 16
    """Of the inputs, the first so many."""
    decode_lanes: Annotated[float, Meta(gt=0)] | None = None
    """Clips that the engines decode at a time; None: their decode processes, or vLLM's eight threads per API server."""
    smallest_effect: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """The least gain that would make anyone switch."""
    gpus: tuple[int, ...] | None = None
    """Whose gauges are read; None: all."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is to tell."""

    settings: DiagnoseSettings
    verdict: Verdict
    advice: NvdecAdvice | None
    evidence: Evidence
    site: Site
    log: str
    """Where the trials are."""
    invalid: dict[str, str]
    """Ablation -> why it says nothing here."""
    unread: tuple[str, ...]
    """What could not be read, in words."""
    notes: tuple[str, ...]
    """What the reader should know before believing it."""
    versions: dict[str, str]


OnStep = Callable[[str], None]


def run_diagnosis(settings: DiagnoseSettings, folder: Path, on_step: OnStep = lambda _: None) -> Diagnosis:
    """Raises EngineLost, SourceError, ConfigError, MissingLibrary, StoreError. Trials are in `folder` as they come."""
    paths = _paths(settings)
    load = _load(settings, paths)
    probe = TrialRunner(load, {}, settings.engines)
    site, _ = probe.site()
    on_step("preparing the clips")
    policy = policy_for(settings.model_files or site.model_root or settings.model, settings.frames)
    prepared = prepare_clips(paths, policy)
    runner = TrialRunner(load, _clip_sets(settings, paths, prepared), settings.engines, settings.gpus)
    experiment = _experiment(settings, runner.clip_sets["as_is"], policy)
    with TrialLog(folder, experiment) as log:
        asyncio.run(_run_trials(settings, experiment, runner, log, on_step))
        return _judged(settings, experiment, runner, log, prepared)


async def _run_trials(
    settings: DiagnoseSettings, experiment: Experiment, runner: TrialRunner, log: TrialLog, on_step: OnStep
) -> None:
    """What is not in the log yet."""
    done = {(trial.block, trial.arm, trial.position) for trial in log.trials}
    arms = {arm.name: arm for arm in experiment.arms}
    load = runner.load
    alone_s = settings.time_limit_s * SHARE_ALONE / 2
    for position, (name, clips) in enumerate({ALONE: "as_is", ALONE_DECODED: "decoded_before"}.items()):
        arm = Arm(name=name, settings={"concurrency": 1, "clips": clips})
        if (ALONE_BLOCK, name, position) not in done:
            on_step(f"{name}: one request at a time")
            runner.load = msgspec.structs.replace(load, num_requests=ALONE_REQUESTS + 1, duration_s=alone_s)
            log.append(await runner(arm, Slot(name, ALONE_BLOCK, position)))
    order = block_order(experiment, 0)
    duration_s = settings.time_limit_s * (1 - SHARE_ALONE) / (len(order) + WARM_UP_TRIALS)
    alone = [trial.phases_s["total"]["mean"] for trial in log.trials if trial.arm == ALONE]
    load = msgspec.structs.replace(load, spread_s=min([*alone, MOST_SPREAD * duration_s]))
    if (WARM_UP, PLAIN, 0) not in done:
        on_step(f"warming up: {settings.concurrency} in flight, {duration_s * WARM_UP_TRIALS:.0f} s")
        runner.load = msgspec.structs.replace(load, num_requests=None, duration_s=duration_s * WARM_UP_TRIALS)
        log.append(await runner(arms[PLAIN], Slot(PLAIN, WARM_UP, 0)))
    runner.load = msgspec.structs.replace(load, num_requests=None, duration_s=duration_s)
    for position, name in enumerate(order):
        if (0, name, position) not in done:
            on_step(f"{name}: {settings.concurrency} in flight, {duration_s:.0f} s ({position + 1} of {len(order)})")
            log.append(await runner(arms[name], Slot(name, 0, position)))


def _judged(
    settings: DiagnoseSettings, experiment: Experiment, runner: TrialRunner, log: TrialLog, prepared: PreparedClips
) -> Diagnosis:
    site, gauges = runner.site()
    observed, invalid = observed_of(log.trials)
    lanes = settings.decode_lanes or gauges.decode_workers or VLLM_MEDIA_THREADS * gauges.api_servers
    setup = Setup(
        cores=gauges.cores, decode_lanes=min(lanes, gauges.cores), is_gpu=gauges.is_gpu, has_proxy=site.has_proxy,
        clips_are_remote=settings.send == "url" and any("://" in clip for clip in settings.inputs),
    )  # fmt: skip
    evidence = evidence_of(observed, setup, smallest_effect=settings.smallest_effect)
    return Diagnosis(
        settings=settings,
        verdict=diagnose(evidence),
        advice=nvdec_advice(evidence, settings.smallest_effect),
        evidence=evidence,
        site=site,
        log=str(log.path),
        invalid=invalid,
        unread=gauges.unread,
        notes=tuple(notes_of(log.trials, prepared.left_out)),
        versions=experiment.versions,
    )


def observed_of(trials: Sequence[Trial]) -> tuple[Observed, dict[str, str]]:
    """Trials by what they are, and the ablations that say nothing, with the reason. Pure."""
    by_arm: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.block != WARM_UP:
            by_arm.setdefault(trial.arm, []).append(trial)
    plain = by_arm.get(PLAIN, [])
    invalid: dict[str, str] = {}
    found: dict[Ablation, tuple[Trial, ...]] = {}
    names: tuple[Ablation, ...] = ("decoded_before", "one_token", "half_frames", "more_in_flight")
    for name in names:
        ran = by_arm.get(name, [])
        reason = "" if name == "one_token" else why_invalid(plain, ran, is_shorter=name == "half_frames")
        if reason:
            invalid[name] = reason
        elif ran:
            found[name] = tuple(ran)
    return Observed(
        plain=tuple(plain),
        ablations=found,
        alone=tuple(by_arm.get(ALONE, [])),
        alone_decoded=tuple(by_arm.get(ALONE_DECODED, [])),
    ), invalid


def notes_of(trials: Sequence[Trial], left_out: Mapping[str, str]) -> list[str]:
    """Failures, caches that answered, a client at its end, other programs. Pure."""
    notes = [f"{len(left_out)} clips could not be decoded here and are in no ablation"] if left_out else []
    notes += [
        f"{trial.arm}: {len(failed)} requests failed ({', '.join(sorted(set(failed)))})"
        for trial in trials
        if (failed := [one.error for one in trial.measurements if one.error])
    ]
    if at_end := _arms(trials, "client/is_bottleneck", 0.5):
        notes.append(f"the load generator itself was at its end in {at_end}")
    if cached := _arms(trials, "cache/mm_hits", 0.02):
        notes.append(f"the server answered from its cache of clips in {cached}")
    others = sum(map(_cores_of_others, trials)) / max(len(trials), 1)
    if others > OTHERS_CORES:
        notes.append(f"other programs took {others:.1f} cores meanwhile, so the figures are theirs too")
    return notes


def _arms(trials: Sequence[Trial], gauge: str, least: float) -> str:
    return ", ".join(dict.fromkeys(trial.arm for trial in trials if trial.gauges.get(gauge, 0.0) > least))


def _cores_of_others(trial: Trial) -> float:
    ours = sum(value for name, value in trial.gauges.items() if name.startswith("cpu/") and name != "cpu/all")
    return trial.gauges.get("cpu/all", 0.0) - ours


def _experiment(settings: DiagnoseSettings, clips: Sequence[LoadClip], policy: DecodeOptions) -> Experiment:
    asked: Settings = {"concurrency": settings.concurrency, "send": settings.send}
    arms: dict[str, Settings] = {**LOADED, PLAIN: asked, "more_in_flight": {"concurrency": 2 * settings.concurrency}}
    return Experiment(
        question=f"What limits {settings.endpoint.split('://')[-1]}",
        workload=Workload(
            clips=tuple(clip.digest for clip in clips),
            frame_policy=_changed(policy),
            prompt=prompt_text(settings.prompt),
            max_output_tokens=settings.max_tokens,
        ),
        arms=tuple(Arm(name=name, settings=changes) for name, changes in arms.items()),
        metric="requests_per_s",
        smallest_effect=settings.smallest_effect,
        time_limit_s=settings.time_limit_s,
        versions={
            "framefleet": __version__,
            "python": sys.version.split()[0],
            **({"extra_body": json.dumps(settings.extra_body, sort_keys=True)} if settings.extra_body else {}),
        },
    )


def _changed(policy: DecodeOptions) -> dict[str, Any]:
    """What it asks beyond the defaults."""
    plain: dict[str, Any] = msgspec.to_builtins(DecodeOptions())
    mine: dict[str, Any] = msgspec.to_builtins(policy)
    return {name: value for name, value in mine.items() if value != plain[name]}


def _paths(settings: DiagnoseSettings) -> list[str]:
    return [
        source.location for source, _ in zip(Inputs(list(settings.inputs)), range(settings.max_clips), strict=False)
    ]


def _clip_sets(
    settings: DiagnoseSettings, paths: Sequence[str], prepared: PreparedClips
) -> dict[str, Sequence[LoadClip]]:
    return {
        "as_is": load_clips(paths, settings.send),
        "decoded_before": prepared.decoded_before,
        "half_frames": prepared.half_frames,
    }


def _load(settings: DiagnoseSettings, paths: Sequence[str]) -> LoadSettings:
    return LoadSettings(
        endpoint=settings.endpoint,
        inputs=tuple(paths),
        model=settings.model,
        api_key=settings.api_key,
        prompt=settings.prompt,
        send=settings.send,
        max_tokens=settings.max_tokens,
        concurrency=settings.concurrency,
        duration_s=settings.time_limit_s,
        extra_body=settings.extra_body,
    )
