"""`--plan`: what a job would take, before any of it is done.

The inputs are listed to their end; of the clips that the ledger does not know, a few are read, cut and captioned as a
sample (nothing is stored). Everything else is arithmetic, in `estimate`, and each figure says what it rests on.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from framefleet.caption.copies import LocalCopies
from framefleet.caption.inputs import Inputs
from framefleet.caption.intake import Intake
from framefleet.caption.job import CaptionJob, Once, engine_for, pool_for, question_for
from framefleet.caption.ledger import Ledger, RunRates, ledger_path
from framefleet.caption.reader import ClipReader
from framefleet.caption.step import Patience, step
from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import StoreLocked, StoreUnreadable
from framefleet.media.source import VideoSource
from framefleet.store.sink import Sink, open_store
from framefleet.store.statuses import Statuses

if TYPE_CHECKING:
    from framefleet.engine.asking import AskingCaptioner

RECORD_BYTES = 2048
"""A record on disk, where no store tells better: caption and prompt of some hundred characters, times, versions."""


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job would take. A figure that cannot be told is None; every `*_basis` says what its figure rests on."""

    clips: int
    clip_bytes: int
    """Of the local ones."""
    windows: int
    windows_done: int
    """With a record already; these cost nothing."""
    windows_basis: str
    prompt_tokens: int | None
    completion_tokens: int | None
    tokens_basis: str
    seconds: float | None
    seconds_basis: str
    disk_bytes: int
    disk_basis: str
    sample_failed: dict[str, int]
    """Error class -> how many of the sampled clips will fail so."""
    sampled: int


@dataclass(slots=True)
class Survey:
    """What listing and sampling found."""

    clips: int = 0
    clip_bytes: int = 0
    known_clips: int = 0
    """The ledger knows their content and windows."""
    known_windows: int = 0
    known_done: int = 0
    sampled: int = 0
    sampled_windows: list[int] = field(default_factory=list)
    """Windows of each sampled clip that could be read."""
    sample_failed: dict[str, int] = field(default_factory=dict)
    records: list[CaptionRecord] = field(default_factory=list)
    """Of the sampled windows."""
    sample_s: float = 0.0
    """What captioning the sample took, all at once."""
    earlier: RunRates | None = None
    store_rows: int = 0
    store_bytes: int = 0


def estimate(survey: Survey, *, windows_per_clip_is_one: bool) -> JobPlan:
    """The plan from what was found. Pure."""
    unknown = survey.clips - survey.known_clips
    mean = _mean(survey.sampled_windows)
    windows = survey.known_windows + (unknown if windows_per_clip_is_one else round(unknown * (mean or 1.0)))
    left = windows - survey.known_done
    prompt, completion, tokens_basis = _tokens(survey)
    rate, seconds_basis = _rate(survey)
    row_bytes = survey.store_bytes / survey.store_rows if survey.store_rows else RECORD_BYTES
    return JobPlan(
        clips=survey.clips,
        clip_bytes=survey.clip_bytes,
        windows=windows,
        windows_done=survey.known_done,
        windows_basis=_windows_basis(survey, unknown, windows_per_clip_is_one=windows_per_clip_is_one),
        prompt_tokens=None if prompt is None else round(left * prompt),
        completion_tokens=None if completion is None else round(left * completion),
        tokens_basis=tokens_basis,
        seconds=None if rate is None else left / rate,
        seconds_basis=seconds_basis,
        disk_bytes=round(left * row_bytes),
        disk_basis=f"{survey.store_rows} records of this store" if survey.store_rows else f"{RECORD_BYTES} B a record",
        sample_failed=survey.sample_failed,
        sampled=survey.sampled,
    )


async def plan_job(
    job: CaptionJob,
    *,
    sample: int = 8,
    engine: AskingCaptioner | None = None,
    reader: ClipReader | None = None,
) -> JobPlan:
    """Survey and estimate. With `sample=0` no clip is read and no engine started.

    Raises what `caption_job` raises before its work.
    """
    settings = job.settings
    inputs = Inputs(job.inputs, column=settings.column)
    inputs.check()
    survey = Survey()
    async with AsyncExitStack() as opened:
        engine = engine or engine_for(settings)
        start = Once(opened, engine)
        if not engine.model:
            await start()
        question, rule = question_for(settings, engine), settings.window_rule()
        ledger = opened.enter_context(_ledger(job.output))
        if reader is None:
            reader = await opened.enter_async_context(pool_for(settings, question.frames))
        survey.earlier = next((r for r in ledger.runs() if (r.engine, r.model) == (engine.name, engine.model)), None)
        intake = Intake(
            reader=reader,
            ledger=ledger,
            copies=LocalCopies(opened.enter_context(TemporaryDirectory(prefix="framefleet-"))),
            statuses=_store_facts(job.output, survey),
            question=question,
            rule=rule,
            engine=engine.name,
            patience=Patience(attempts=1),
            retry_failed=settings.retry_failed,
        )
        chosen = _list(inputs, intake, survey, sample)
        if chosen:
            await start()
            await _try(chosen, intake, engine, survey)
    return estimate(survey, windows_per_clip_is_one=rule is None)


def _list(inputs: Inputs, intake: Intake, survey: Survey, sample: int) -> list[VideoSource]:
    """Counts every clip; gives a fair sample (the same for the same inputs) of those that must be read to be known."""
    chance = random.Random(0)
    chosen: list[VideoSource] = []
    unknown = 0
    for source in inputs:
        survey.clips += 1
        with suppress(OSError, ValueError):
            survey.clip_bytes += Path(source.location).stat().st_size if source.kind == "file" else 0
        if (known := intake.glance(source)) is not None:
            survey.known_clips += 1
            survey.known_windows += len(known.work) + known.skipped.total()
            survey.known_done += known.skipped.total()
            continue
        unknown += 1
        if len(chosen) < sample:
            chosen.append(source)
        elif sample and (place := chance.randrange(unknown)) < sample:
            chosen[place] = source
    return chosen


async def _try(chosen: Sequence[VideoSource], intake: Intake, engine: AskingCaptioner, survey: Survey) -> None:
    """Take the sample in, and caption the first window of each clip, all at once."""
    survey.sampled = len(chosen)
    first_windows = []
    for taken in await asyncio.gather(*map(intake.take, chosen)):
        if taken.failed is not None:
            survey.sample_failed[taken.failed.reason] = survey.sample_failed.get(taken.failed.reason, 0) + 1
            continue
        survey.sampled_windows.append(len(taken.work) + taken.skipped.total())
        first_windows += taken.work[:1]
    started_s = time.perf_counter()
    tried = await asyncio.gather(*(step(work, reader=intake.reader, engine=engine) for work in first_windows))
    survey.sample_s = time.perf_counter() - started_s
    for record in tried:
        if record.status == "failed":
            survey.sample_failed[record.reason] = survey.sample_failed.get(record.reason, 0) + 1
    survey.records = [record for record in tried if record.status != "failed"]


def _store_facts(output: str, survey: Survey) -> Statuses:
    """What the store has; nothing where there is none yet."""
    try:
        store: Sink = open_store(output)
        with store:
            statuses = store.statuses()
    except StoreUnreadable:
        return Statuses()
    survey.store_rows, survey.store_bytes = len(statuses), _bytes_under(Path(output))
    return statuses


def _bytes_under(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _ledger(output: str) -> Ledger:
    """The store's ledger; an empty one where there is none, or while a run has it."""
    if not Path(ledger_path(output)).exists():
        return Ledger(":memory:")
    try:
        return Ledger.beside(output)
    except StoreLocked:
        return Ledger(":memory:")


def _mean(numbers: Iterable[float]) -> float | None:
    listed = list(numbers)
    return sum(listed) / len(listed) if listed else None


def _windows_basis(survey: Survey, unknown: int, *, windows_per_clip_is_one: bool) -> str:
    if windows_per_clip_is_one:
        return "one a clip"
    if not unknown:
        return "known from earlier runs"
    if not survey.sampled_windows:
        return "one a clip assumed: no clip was sampled"
    return f"{len(survey.sampled_windows)} sampled clips"


def _tokens(survey: Survey) -> tuple[float | None, float | None, str]:
    """Prompt and completion tokens a window, and where that is from."""
    if (run := survey.earlier) is not None:
        basis = f"{run.windows} windows of an earlier run"
        return run.prompt_tokens / run.windows, run.completion_tokens / run.windows, basis
    if survey.records:
        prompt = _mean(record.prompt_tokens for record in survey.records)
        completion = _mean(record.completion_tokens for record in survey.records)
        return prompt, completion, f"{len(survey.records)} windows captioned as a sample"
    return None, None, "nothing was captioned yet"


def _rate(survey: Survey) -> tuple[float | None, str]:
    """Windows a second, and where that is from."""
    if (run := survey.earlier) is not None and run.seconds > 0:
        return run.windows / run.seconds, f"{run.windows / run.seconds:.3g} windows/s of an earlier run"
    if survey.records and survey.sample_s > 0:
        rate = len(survey.records) / survey.sample_s
        return rate, f"{rate:.3g} windows/s of a sample of {len(survey.records)}, all at once; a longer run is faster"
    return None, "nothing was captioned yet"
