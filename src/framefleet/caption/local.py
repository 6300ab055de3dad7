"""The local runner: list, take in, decode and caption, commit; each stage waits when the next one is behind.

    inputs -> [clips] -> intake -> [work] -> step (decode, wait for the engine, caption) -> [records] -> store

Bounds: the channels; windows in flight (the engine's places + the decode workers + a few ahead); and, in bytes, the
reader's own budget for frames. Records are committed in order of arrival, as many at once as have arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from framefleet.caption.answers import Answers
from framefleet.caption.breaker import Breaker
from framefleet.caption.channel import Channel
from framefleet.caption.inputs import Inputs
from framefleet.caption.intake import ClipIntake, Intake
from framefleet.caption.ledger import stamp_of
from framefleet.caption.progress import Progress, Standing, Summary, Tally
from framefleet.caption.reader import ClipReader
from framefleet.caption.step import DEFAULT_PATIENCE, Patience, Work, step
from framefleet.engine.captioner import Captioner, CaptionRecord
from framefleet.errors import FramefleetError
from framefleet.media.source import VideoSource
from framefleet.telemetry import Occupancy

_log = logging.getLogger(__name__)

_CLIPS_WAITING = 256
_CLIPS_AT_ONCE = 64
_RECORDS_AT_ONCE = 512
_TICK_S = 0.25
_COUNTED_AT_ONCE = 32
_COUNTING_PAUSE_S = 0.001

OnProgress = Callable[[Progress], None]
OnCommit = Callable[[list[CaptionRecord]], None]
Ready = Callable[[], Awaitable[object]]
Stage = Callable[[], Coroutine[None, None, None]]


class Keeps(Protocol):
    """What the runner needs of a store."""

    def append(self, *records: CaptionRecord) -> int:
        """Durable when it returns."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be under way."""

    engine_slots: int
    decode_slots: int
    drain_s: float = 30.0
    """After `stop`, how long windows in flight may take."""

    @property
    def windows(self) -> int:
        """In flight: at the engine, in the decoders, and decoded ahead."""
        return self.engine_slots + 2 * self.decode_slots

    @property
    def streak(self) -> int:
        """So many windows in a row that fail by the engine's fault end the run."""
        return max(16, 2 * self.engine_slots)


class LocalRun:
    """One run: make it, `run` it once. `stop` asks it to end soon, `abort` now; a later run goes on from there."""

    def __init__(
        self,
        *,
        inputs: Inputs,
        intake: Intake,
        reader: ClipReader,
        engine: Captioner,
        engine_ready: Ready,
        store: Keeps,
        answers: Answers,
        limits: Limits,
        patience: Patience = DEFAULT_PATIENCE,
        on_progress: OnProgress | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        self.inputs, self.intake, self.reader, self.engine = inputs, intake, reader, engine
        self.engine_ready, self.store, self.answers = engine_ready, store, answers
        self.limits, self.patience = limits, patience
        self.on_progress, self.on_commit = on_progress, on_commit
        self.tally = Tally(time.monotonic())
        self.interrupted = False
        self._occupancy = Occupancy()
        self._standing = Standing(limits.engine_slots)
        self._clips: Channel[tuple[VideoSource, str]] = Channel(_CLIPS_WAITING)
        self._work: Channel[Work] = Channel(limits.windows)
        self._records: Channel[CaptionRecord] = Channel(max(64, limits.windows))
        self._engine_places = asyncio.Semaphore(limits.engine_slots)
        self._engine_is_up = asyncio.Event()
        self._has_work = asyncio.Event()
        self._breaker = Breaker(limits.streak)
        self._windows_left: dict[str, int] = {}
        self._body: asyncio.Task[None] | None = None
        self._drain: asyncio.TimerHandle | None = None

    async def run(self) -> Summary:
        """Until the inputs are done or the run is stopped.

        Raises what the inputs or the store raise, and the engine's error when nothing else comes from it; what was
        captioned by then is committed first.
        """
        is_over = threading.Event()
        counting = asyncio.create_task(asyncio.to_thread(self._count, is_over))
        telling = asyncio.create_task(self._tell_now_and_then())
        try:
            await self._run()
        finally:
            is_over.set()
            telling.cancel()
            await asyncio.gather(counting, telling, return_exceptions=True)
        self._tell()
        over = self.inputs.passed_over
        return self.tally.summary(time.monotonic(), interrupted=self.interrupted, passed_over=over)

    def stop(self) -> None:
        """First call: take nothing more in, let windows in flight end, for `drain_s` at most. Second: `abort`.

        While the engine is still starting nothing in flight is near its end: then the first call aborts too.
        """
        if self.interrupted or not self._engine_is_up.is_set():
            self.abort()
            return
        self.interrupted = True
        loop = asyncio.get_running_loop()
        self._drain = loop.call_later(self.limits.drain_s, self.abort)
        self._closing = loop.create_task(self._close_intake())

    def abort(self) -> None:
        """Drop windows in flight. What is captioned is still committed."""
        self.interrupted = True
        if self._body is not None:
            self._body.cancel()

    async def _run(self) -> None:
        body = self._body = asyncio.create_task(self._produce())
        committing = asyncio.create_task(self._commit_all())
        try:
            await asyncio.wait({body, committing}, return_when=asyncio.FIRST_COMPLETED)
        finally:  # the body is done, or the store has failed, or somebody cancels us
            body.cancel()
            await asyncio.wait({body})
            await self._records.close()
            await asyncio.wait({committing})
            if self._drain is not None:
                self._drain.cancel()
        committing.result()
        with contextlib.suppress(asyncio.CancelledError):  # by `abort`
            body.result()
        await self._settle_held()

    async def _close_intake(self) -> None:
        await self._clips.close(discard=True)
        await self._work.close(discard=True)

    # The stages

    async def _produce(self) -> None:
        try:
            async with asyncio.TaskGroup() as stages:
                stages.create_task(self._list())
                stages.create_task(self._side_by_side(self.limits.windows, self._describe_all))
                starting = stages.create_task(self._start_engine())
                await self._side_by_side(2 * self.limits.decode_slots, self._take_in)
                await self._work.close()
                if not self._has_work.is_set():
                    starting.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from None

    async def _list(self) -> None:
        clips = iter(self.inputs)
        while chunk := await asyncio.to_thread(_take, clips):
            for clip in chunk:
                if not await self._clips.put(clip):
                    return
        await self._clips.close()

    async def _take_in(self) -> None:
        async for source, stamp in self._clips:
            with self._occupancy.at("open"):
                taken = await self.intake.take(source, stamp)
            await self._hand_on(taken)

    async def _hand_on(self, taken: ClipIntake) -> None:
        self.tally.clips_seen += 1
        self.tally.skipped.update(taken.skipped)
        if taken.failed is not None:
            self._windows_left[taken.clip] = 1
            await self._records.put(taken.failed)
        elif taken.work:
            self._has_work.set()
            self._windows_left[taken.clip] = len(taken.work)
            for work in taken.work:
                await self._work.put(work)
        else:
            self.tally.clips_done += 1

    async def _describe_all(self) -> None:
        async for work in self._work:
            record = await self.answers.get(work.request, lambda work=work: self._step(work))  # type: ignore[misc]
            with self._occupancy.at("commit"):
                await self._records.put(record)

    async def _step(self, work: Work) -> CaptionRecord:
        return await step(
            work,
            reader=self.reader,
            engine=self.engine,
            patience=self.patience,
            engine_slot=self._engine_place,
            occupancy=self._occupancy,
        )

    async def _start_engine(self) -> None:
        """Once there is work for it; clips are decoded meanwhile. What goes wrong here ends the run."""
        await self._has_work.wait()
        await self.engine_ready()
        self._engine_is_up.set()

    @contextlib.asynccontextmanager
    async def _engine_place(self) -> AsyncIterator[None]:
        await self._engine_is_up.wait()
        async with self._engine_places:
            yield

    async def _side_by_side(self, count: int, act: Stage) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(act())

    # Committing

    async def _commit_all(self) -> None:
        while batch := await self._records.take(_RECORDS_AT_ONCE):
            await self._commit(self._breaker.sift(batch))
            self._breaker.check()

    async def _settle_held(self) -> None:
        """At the end: what was held back is kept if the engine answered at all in this run."""
        if not self.interrupted:
            await self._commit(self._breaker.release())

    async def _commit(self, records: list[CaptionRecord]) -> None:
        if not records:
            return
        await asyncio.to_thread(self.store.append, *records)
        for record in records:
            self.intake.note(record)
            self.tally.add(record)
            self._windows_left[record.clip] -= 1
            if not self._windows_left[record.clip]:
                del self._windows_left[record.clip]
                self.intake.done(record.clip)
                self.tally.clips_done += 1
        if self.on_commit is not None:
            self.on_commit(records)

    # Telling

    async def _tell_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._standing.look(self._occupancy.averages())
            self._tell()

    def _tell(self) -> None:
        if self.on_progress is None:
            return
        in_flight = sum(self._windows_left.values())
        look = self.tally.progress(time.monotonic(), in_flight=in_flight, bottleneck=self._standing.bottleneck)
        try:
            self.on_progress(look)
        except Exception:  # noqa: BLE001  # showing progress must not end a run
            _log.exception("progress could not be shown")
            self.on_progress = None

    def _count(self, is_over: threading.Event) -> None:
        """The number of clips, by listing the inputs a second time; not where listing costs requests."""
        if any("://" in one for one in self.inputs.inputs):
            return
        clips = iter(Inputs(self.inputs.inputs, column=self.inputs.column))
        total = 0
        with contextlib.suppress(FramefleetError):  # the listing that matters raises it too
            while num := sum(1 for _ in islice(clips, _COUNTED_AT_ONCE)):
                total += num
                if is_over.wait(_COUNTING_PAUSE_S):  # and lets the event loop have the interpreter
                    return
            self.tally.clips_total = total


def _take(clips: Iterator[VideoSource]) -> list[tuple[VideoSource, str]]:
    """The next clips with their stamps (none where there is no such file): one thread for many stats."""
    return [(source, _stamp_or_none(source)) for source in islice(clips, _CLIPS_AT_ONCE)]


def _stamp_or_none(source: VideoSource) -> str:
    try:
        return stamp_of(source.location) if source.kind == "file" else ""
    except (OSError, ValueError):
        return ""


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
