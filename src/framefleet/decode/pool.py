"""DecodePool: decoding in worker processes that can be killed, with a deadline per clip and a bound on bytes in flight.

    async with DecodePool(workers=2, max_bytes_in_flight=2 * GIB) as pool:
        frames = await pool.decode(source, options)

Whatever a file does to its decoder (a native crash, a hang with the interpreter's lock held, a bomb), it costs its own
clip: the worker is replaced and the clip remembered (`quarantine`). Frames arrive as shared memory and count against
`max_bytes_in_flight` until the last array that views them is gone; a worker that has planned a clip waits for room
before it decodes, so a slow consumer slows the workers down instead of filling the memory.

Each worker is driven by one thread of its own, so deadlines hold whatever an event loop is busy with, and the pool
serves threads (`run`) as well as event loops (`decode`, `scan`, `digest`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import queue
import threading
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from framefleet.decode.attendant import Attendant, Shared, Ticket, pool_closed
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool_settings import PoolSettings
from framefleet.decode.quarantine import Offence, Quarantine
from framefleet.decode.tasks import Job
from framefleet.errors import ConfigError
from framefleet.media.clip import ScannedClip
from framefleet.media.source import VideoSource
from framefleet.vram.budget import MemoryBudget

_CLOSE_S = 15.0
Source = str | os.PathLike[str] | bytes | BinaryIO | VideoSource


@dataclasses.dataclass(frozen=True, slots=True)
class PoolLoad:
    """What the pool is doing now, and what it has been through."""

    workers: int
    queued: int
    """Jobs that no worker has taken yet."""
    running: int
    waiting_for_room: int
    """Running jobs that wait for bytes in flight to come free."""
    bytes_in_flight: int
    jobs_done: int
    """With a result or an error."""
    busy_s: float
    """Seconds that all workers together spent on these, waiting for room included."""
    workers_lost: int
    """Died, or were killed at a deadline or by a cancellation."""
    workers_recycled: int


class DecodePool:
    """Workers, the queue before them, the budget of frames in flight and the quarantine.

    `DecodePool(PoolSettings(...))`, or the fields of PoolSettings by name. `known_offences` are those of an earlier
    pool: clips that need not prove again what they do to a worker. Raises ConfigError for wrong settings.
    """

    def __init__(
        self, settings: PoolSettings | None = None, *, known_offences: Iterable[Offence] = (), **changes: Any
    ) -> None:
        self.settings = _settle(settings or PoolSettings(), changes)
        self.budget = MemoryBudget(self.settings.max_bytes_in_flight, name="room for frames in flight")
        self._quarantine = Quarantine(self.settings.max_kills, tuple(known_offences))
        self._results: dict[str, Any] = import_module(self.settings.tasks).RESULTS
        self._shared = Shared(self.settings, queue.SimpleQueue(), self.budget, self._quarantine)
        self._attendants = [Attendant(self._shared, f"decode-{n}") for n in range(self.settings.num_workers)]
        self._opening = threading.Lock()
        self._is_open = False

    async def decode(self, source: Source | ScannedClip, options: DecodeOptions | None = None) -> DecodedFrames:
        """The frames. A clip that was scanned before is not scanned again.

        Raises what `session.decode` raises, DecodeTimeout at the deadline (waiting in the queue or for room does not
        count), DecoderLost when the clip kills its workers, BudgetTooLarge, BudgetTimeout, DecoderBug. Cancelling
        kills the work. The frames count as in flight until the last array that views them is gone.
        """
        frames: DecodedFrames = await self.call("decode", source, options)
        return frames

    async def scan(self, source: Source, options: DecodeOptions | None = None) -> ScannedClip:
        """What the header claims and the packets say. Raises as `decode` does."""
        whole = VideoSource.of(source)
        clip: ScannedClip = await self.call("scan", whole, options)
        return dataclasses.replace(clip, source=whole)  # a clip in memory left its bytes behind

    async def digest(self, source: Source) -> str:
        """blake2b of the clip's bytes (32 hex digits). Raises as `decode` does."""
        text: str = await self.call("digest", source, DecodeOptions(timeout_s=self.settings.digest_timeout_s))
        return text

    async def call(self, task: str, source: Source | ScannedClip, options: DecodeOptions | None = None) -> Any:
        """Any task of the workers, by name."""
        ticket = self._submit(self._job(task, source, options))
        try:
            await asyncio.wrap_future(ticket.done)
            return ticket.take()
        except asyncio.CancelledError:
            ticket.stop()
            raise

    def run(self, task: str, source: Source | ScannedClip, options: DecodeOptions | None = None) -> Any:
        """As `call`, for threads: returns the result."""
        ticket = self._submit(self._job(task, source, options))
        try:
            ticket.done.result()
            return ticket.take()
        except KeyboardInterrupt:
            ticket.stop()
            raise

    @property
    def quarantined(self) -> tuple[Offence, ...]:
        """The clips refused now, with their reasons."""
        return self._quarantine.clips

    @property
    def load(self) -> PoolLoad:
        """A look at the pool."""
        each = self._attendants
        return PoolLoad(
            workers=len(each),
            queued=self._shared.tickets.qsize(),
            running=sum(a.current is not None for a in each),
            waiting_for_room=sum(a.is_waiting_for_room for a in each),
            bytes_in_flight=self.budget.held_bytes,
            jobs_done=sum(a.jobs_done for a in each),
            busy_s=sum(a.busy_s for a in each),
            workers_lost=sum(a.workers_lost for a in each),
            workers_recycled=sum(a.workers_recycled for a in each),
        )

    def open(self) -> None:
        """Start the workers."""
        with self._opening:
            if self._is_open:
                raise ConfigError("the decode pool is open already")
            self._is_open = True
            for attendant in self._attendants:
                attendant.start()

    def close(self) -> None:
        """Kill the workers, fail what they were at. Frames already given stay valid. Bounded in time."""
        with self._opening:
            if not self._is_open:
                return
            self._is_open = False
        self._shared.closing.set()
        with suppress(queue.Empty):
            while True:
                ticket = self._shared.tickets.get_nowait()
                if ticket is not None and ticket.done.set_running_or_notify_cancel():
                    ticket.done.set_exception(pool_closed())
        for attendant in self._attendants:
            self._shared.tickets.put(None)
            if (current := attendant.current) is not None:
                current.stop(pool_closed())
        for attendant in self._attendants:
            attendant.join(_CLOSE_S)

    def __enter__(self) -> DecodePool:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> DecodePool:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _submit(self, job: Job) -> Ticket:
        ticket = Ticket(job, _kind(self._results[job.task]))
        with self._opening:
            if not self._is_open:
                raise ConfigError("the decode pool is not open", remedy="`async with DecodePool(...) as pool:`")
            self._shared.tickets.put(ticket)
        return ticket

    def _job(self, task: str, source: Source | ScannedClip, options: DecodeOptions | None) -> Job:
        options = options or DecodeOptions()
        if task not in self._results:
            raise ConfigError("no such decode task", given=repr(task), allowed=", ".join(self._results))
        if not 1 <= options.num_ffmpeg_threads <= self.settings.threads:
            raise ConfigError(
                "the decode does not fit the pool",
                given=f"num_ffmpeg_threads={options.num_ffmpeg_threads}",
                allowed=f"1 to {self.settings.threads}",
                remedy="a pool with more threads (and fewer workers)",
            )
        if options.device != "cpu":
            raise ConfigError("a pool's frames end in host memory", given=f"device={options.device!r}", allowed="cpu")
        if not isinstance(source, ScannedClip):
            return Job(task, VideoSource.of(source), options)
        bare = dataclasses.replace(source, source=dataclasses.replace(source.source, content=None))
        return Job(task, source.source, options, scanned=bare)


def decode_isolated(source: Source, options: DecodeOptions | None = None) -> DecodedFrames:
    """As `session.decode`, in a worker process of its own. For a single clip; a DecodePool keeps its workers."""
    options = options or DecodeOptions()
    with DecodePool(
        workers=1, threads=max(1, options.num_ffmpeg_threads), max_bytes_in_flight=options.max_output_bytes
    ) as pool:
        frames: DecodedFrames = pool.run("decode", source, options)
        return frames


def _settle(settings: PoolSettings, changes: dict[str, Any]) -> PoolSettings:
    try:
        return msgspec.convert(msgspec.structs.asdict(settings) | changes, PoolSettings)
    except msgspec.ValidationError as error:
        raise ConfigError("wrong decode pool setting", given=str(error)) from error


def _kind(named: Any) -> Any:
    if not isinstance(named, str):
        return named
    module, _, attribute = named.partition(":")
    return getattr(import_module(module), attribute)
