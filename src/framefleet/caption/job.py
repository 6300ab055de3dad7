"""A caption job: inputs, a store and settings; opens what it needs and runs it here.

    summary = run_caption_job(CaptionJob(["clips/"], "captions.lance", CaptionSettings(prompt="av")))

Resume: the key of a record is `CaptionRequest.digest` (place of the clip, its content, window, prompt, schema, model
and its revision, frame policy, generation settings). What the store has with a caption, or as `rejected`, is done;
what it has as `failed` is done too unless `retry_failed`. So a second run does nothing, other settings do everything
again, and a file that changes is new.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from framefleet.caption.answers import Answers
from framefleet.caption.copies import LocalCopies
from framefleet.caption.inputs import Inputs
from framefleet.caption.intake import Intake, Question
from framefleet.caption.ledger import Ledger, RunRates
from framefleet.caption.local import Limits, LocalRun, OnCommit, OnProgress
from framefleet.caption.progress import Summary
from framefleet.caption.reader import ClipReader
from framefleet.caption.settings import CaptionSettings, overlay
from framefleet.caption.step import Patience, utc_now
from framefleet.config import resolve
from framefleet.decode.backends import BACKENDS
from framefleet.decode.choose import NVDEC, nvdec_is_here
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.engine import open_engine
from framefleet.engine.captioner import CaptionRecord, CaptionRequest
from framefleet.engine.judging import check_schema
from framefleet.engine.prompts import prompt_text
from framefleet.store.sink import Sink, open_store
from framefleet.store.where import Where
from framefleet.units import parse_bytes

if TYPE_CHECKING:
    from framefleet.engine.asking import AskingCaptioner

DEFAULT_CONCURRENCY = {"openai_http": 64, "fleet": 256}
"""Requests at an engine at once; 16 (two batches of the embedded one) elsewhere."""


class CaptionJob(msgspec.Struct, frozen=True, kw_only=False):
    """What to caption, where to keep it, and how."""

    inputs: Sequence[str]
    """Files, folders, patterns, URLs, manifests (see `caption.inputs`)."""
    output: str
    """Path of the store; its suffix names the kind."""
    settings: CaptionSettings = CaptionSettings()


def caption(
    inputs: str | os.PathLike[str] | Sequence[str],
    output: str | os.PathLike[str],
    *,
    on_progress: OnProgress | None = None,
    on_commit: OnCommit | None = None,
    **settings: Any,
) -> Summary:
    """Caption every clip of the inputs into the store `output`; called again it does only what is left.

        framefleet.caption("clips/", "captions.lance", prompt="av", frames={"num_frames": 8})

    `settings` are the fields of CaptionSettings; what is not given comes from `FRAMEFLEET_CAPTION_*`, as on the command
    line. Otherwise as `run_caption_job`. Where an event loop runs already (a notebook), the run gets its own thread.
    """
    given = [os.fspath(inputs)] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    job = CaptionJob(given, os.fspath(output), resolve(CaptionSettings, "caption", flags=settings).value)
    run = partial(run_caption_job, job, on_progress=on_progress, on_commit=on_commit)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1, thread_name_prefix="caption") as thread:
        return thread.submit(run).result()


def run_caption_job(
    job: CaptionJob, *, on_progress: OnProgress | None = None, on_commit: OnCommit | None = None
) -> Summary:
    """Run the job to its end. Ctrl-C (or SIGTERM) once: windows in flight end, nothing new begins; twice: at once.

    `on_progress` is called about four times a second, `on_commit` with each group of records once they are durable;
    both in this thread, so they should be quick.

    Raises ConfigError and SourceNotFound before any work; CaptionError, DeviceError and the like when the engine does
    not come up or ceases to answer; StoreError when records cannot be kept. What was committed stays.
    """
    return asyncio.run(caption_job(job, on_progress=on_progress, on_commit=on_commit, catch_signals=True))


async def caption_job(
    job: CaptionJob,
    *,
    on_progress: OnProgress | None = None,
    on_commit: OnCommit | None = None,
    engine: AskingCaptioner | None = None,
    reader: ClipReader | None = None,
    catch_signals: bool = False,
) -> Summary:
    """As `run_caption_job`, inside a running event loop. `engine` and `reader` stand in for the job's own: the engine
    is entered and left here all the same, the reader must be open."""
    settings = job.settings
    inputs = Inputs(job.inputs, column=settings.column)
    inputs.check()
    async with AsyncExitStack() as opened:
        engine = engine or engine_for(settings)
        start = Once(opened, engine)
        if not engine.model:  # the server must be asked for it: it is part of the resume key
            await start()
        question = question_for(settings, engine)
        rule = settings.window_rule()
        store: Sink = opened.enter_context(open_store(job.output, "w"))
        ledger = opened.enter_context(Ledger.beside(job.output))
        decode_slots = settings.decode_workers or 2
        if reader is None:
            pool = await opened.enter_async_context(pool_for(settings, question.frames))
            reader, decode_slots = reader_over(pool, question.frames.backend, opened), pool.settings.num_workers
        patience = Patience(attempts=settings.attempts)
        statuses = store.statuses()
        run = LocalRun(
            inputs=inputs,
            intake=Intake(
                reader=reader,
                ledger=ledger,
                copies=LocalCopies(opened.enter_context(TemporaryDirectory(prefix="framefleet-"))),
                statuses=statuses,
                question=question,
                rule=rule,
                engine=engine.name,
                patience=patience,
                retry_failed=settings.retry_failed,
            ),
            reader=reader,
            engine=engine,
            engine_ready=start,
            store=store,
            answers=Answers(ledger=ledger, statuses=statuses, fetch=lambda request: fetch(store, request)),
            limits=limits_for(settings, engine.name, decode_slots=decode_slots),
            patience=patience,
            on_progress=on_progress,
            on_commit=on_commit,
        )
        started_at = utc_now()
        with _signals(run) if catch_signals else contextlib.nullcontext():
            summary = await run.run()
        _remember(ledger, started_at, summary, engine)
        return summary


def engine_for(settings: CaptionSettings) -> AskingCaptioner:
    """The engine the settings name, not yet started. Raises ConfigError, MissingLibrary."""
    name = settings.engine or ("openai_http" if settings.endpoint else "embedded")
    named = {"endpoint": settings.endpoint, "model": settings.model}
    return open_engine(name, **{k: v for k, v in named.items() if v is not None} | settings.engine_options)


def question_for(settings: CaptionSettings, engine: AskingCaptioner) -> Question:
    """What every window is asked. Raises ConfigError for a schema that is none."""
    policy: DecodeOptions = getattr(engine, "frame_policy", None) or DecodeOptions()
    return Question(
        prompt=prompt_text(settings.prompt),
        schema=None if settings.schema is None else check_schema(settings.schema),
        model=engine.model,
        revision=getattr(engine, "revision", ""),
        frames=overlay(settings.frames, policy),
        generation=settings.generation,
    )


def pool_for(settings: CaptionSettings, frames: DecodeOptions) -> DecodePool:
    """The decode pool the settings ask for, not yet open."""
    wanted: dict[str, Any] = {"workers": settings.decode_workers, "threads": frames.num_ffmpeg_threads}
    if settings.frame_budget is not None:
        wanted["max_bytes_in_flight"] = parse_bytes(settings.frame_budget)
    return DecodePool(**{name: value for name, value in wanted.items() if value is not None})


def reader_over(pool: DecodePool, backend: str, opened: AsyncExitStack) -> ClipReader:
    """The pool; or both kinds of silicon, where this machine has NVDEC or DeepStream was asked for by name (of which
    there is to be one process, not one a worker).
    """
    if backend != "deepstream" and not nvdec_is_here():
        return pool
    from framefleet.decode.silicon import SiliconReader, leftover_pool

    owner = BACKENDS.load("deepstream" if backend == "deepstream" else NVDEC)()
    cpu_pool = pool if owner.name == backend else opened.enter_context(leftover_pool(pool))
    reader = SiliconReader(pool, owner, cpu_pool)
    opened.callback(reader.close)
    return reader


def limits_for(settings: CaptionSettings, engine: str, *, decode_slots: int) -> Limits:
    """How much may be under way."""
    concurrency = settings.concurrency or DEFAULT_CONCURRENCY.get(engine, 16)
    return Limits(engine_slots=concurrency, decode_slots=decode_slots, drain_s=settings.drain_s)


def fetch(store: Sink, request: CaptionRequest) -> CaptionRecord | None:
    """The record of a request, from the store."""
    where = Where(clip=glob.escape(request.clip), model=request.model, prompt=request.prompt)
    digest = request.digest
    return next((record for record in store.records(where) if record.digest == digest), None)


class Once:
    """Starts the engine when it is first needed: a run that has nothing to do loads no model."""

    def __init__(self, opened: AsyncExitStack, engine: AskingCaptioner) -> None:
        self._opened, self._engine = opened, engine
        self._is_started = False
        self._starting = asyncio.Lock()

    async def __call__(self) -> None:
        async with self._starting:
            if not self._is_started:
                await self._opened.enter_async_context(self._engine)
                self._is_started = True


@contextlib.contextmanager
def _signals(run: LocalRun) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the run instead of the program; outside the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, run.stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _remember(ledger: Ledger, started_at: str, summary: Summary, engine: AskingCaptioner) -> None:
    done = summary.ok + summary.truncated - summary.copied
    if done <= 0:
        return
    phases = summary.seconds_by_phase
    rates = RunRates(
        model=engine.model,
        engine=engine.name,
        windows=done,
        seconds=summary.seconds,
        prompt_tokens=summary.prompt_tokens,
        completion_tokens=summary.completion_tokens,
        decode_s=phases.get("read", 0.0),
        caption_s=phases.get("caption", 0.0),
    )
    ledger.remember_run(started_at, rates)
