"""The thread behind one worker of a pool: takes tickets, has them done, replaces the worker when it is lost or worn."""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from framefleet.decode import wire
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.messages import Setup
from framefleet.decode.pool_settings import PoolSettings
from framefleet.decode.quarantine import Quarantine
from framefleet.decode.tasks import Job
from framefleet.decode.worker_process import WorkerProcess
from framefleet.errors import DecoderLost, DecodeTimeout, DeviceError, FramefleetError, SourceTooLarge
from framefleet.units import format_bytes
from framefleet.vram.budget import Lease, LeaseRequest, MemoryBudget

_LOG = logging.getLogger(__name__)


class Ticket:
    """A job on its way: where its result goes, and how to stop it wherever it stands."""

    def __init__(self, job: Job, kind: Any) -> None:
        self.job = job
        self.kind = kind
        """Type of the result."""
        self.done: Future[None] = Future()
        self.queued_at_s = time.monotonic()
        self._changing = threading.Lock()
        self._stopped_by: BaseException | None = None
        self._worker: WorkerProcess | None = None
        self._request: LeaseRequest | None = None
        self.result: Any = None
        """Beside the future, which asyncio ties into a cycle: that would keep the frames."""

    def take(self) -> Any:
        """The result, once, after `done`."""
        result, self.result = self.result, None
        return result

    def stop(self, reason: BaseException | None = None) -> None:
        """End the job with `reason` (CancelledError): kill its worker, leave the budget's queue. Does not wait."""
        with self._changing:
            self._stopped_by = self._stopped_by or reason or CancelledError()
            if self._worker is not None:
                self._worker.kill()
            if self._request is not None:
                self._request.withdraw()
        self.done.cancel()  # if no attendant has it yet
        self.result = None

    @property
    def is_stopped(self) -> bool:
        """Its result is not wanted any more, and its worker is killed."""
        return self._stopped_by is not None

    def stands_at(self, worker: WorkerProcess | None, request: LeaseRequest | None = None) -> None:
        """What `stop` would have to end. Raises its reason if it came first."""
        with self._changing:
            self._worker, self._request = worker, request
            if self._stopped_by is None:
                return
            if request is not None:
                request.withdraw()
        raise self._stopped_by

    def leaves(self) -> None:
        """The worker goes on to other jobs. Raises the reason if the job was stopped."""
        self.stands_at(None)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the attendants of one pool have in common."""

    settings: PoolSettings
    tickets: queue.SimpleQueue[Ticket | None]
    """None: go home."""
    budget: MemoryBudget
    quarantine: Quarantine
    closing: threading.Event = field(default_factory=threading.Event)


class Attendant(threading.Thread):
    """Drives one worker. Its counts may be read from anywhere."""

    def __init__(self, shared: Shared, name: str) -> None:
        super().__init__(name=name, daemon=True)  # a pool that nobody closed must not keep the interpreter
        self.current: Ticket | None = None
        self.is_waiting_for_room = False
        self.jobs_done = self.workers_lost = self.workers_recycled = 0
        self.busy_s = 0.0
        self.worker: WorkerProcess | None = None
        self._shared = shared
        self._settings = shared.settings

    def run(self) -> None:
        """Until a None comes."""
        try:
            self._prepare()
            while (ticket := self._shared.tickets.get()) is not None:
                self._serve(ticket)
                del ticket  # it holds the frames: kept, they would count as in flight until the next job
                self._prepare()
        finally:
            if self.worker is not None:
                self.worker.close()

    def _prepare(self) -> None:
        """Have a worker ready before the next job comes; one that does not start is reported to that job."""
        self._dismiss_worn()
        try:
            self._ready_worker()
        except DeviceError as error:
            _LOG.warning("%s", error)

    def _serve(self, ticket: Ticket) -> None:
        if not ticket.done.set_running_or_notify_cancel():
            return
        self.current = ticket
        started_s = time.monotonic()
        if self._shared.closing.is_set():  # who closes the pool may have looked before the line above
            ticket.stop(pool_closed())
        try:
            ticket.result = self._attempt(ticket)  # kept nowhere else: whoever asked decides how long it lives
        except FramefleetError as error:
            ticket.done.set_exception(error.with_traceback(None))  # else it holds this ticket, which holds it
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            ticket.done.set_exception(error)
        else:
            ticket.done.set_result(None)
        finally:
            self.current = None
            self.jobs_done += 1
            self.busy_s += time.monotonic() - started_s

    def _attempt(self, ticket: Ticket) -> Any:
        """Do the job; once more on a fresh worker if the first one may have been at fault itself."""
        job, quarantine = ticket.job, self._shared.quarantine
        queued_s = time.monotonic() - ticket.queued_at_s
        is_second_try = False
        while True:
            quarantine.check(job)
            worker = self._ready_worker()
            try:
                result = self._do(ticket, worker)
            except (DecoderLost, DecodeTimeout) as error:
                error.__traceback__ = None  # it holds this frame, and so would keep the frames of the second try
                if worker is self.worker:  # which raised it itself, and lives
                    raise
                quarantine.record(job, error)
                if is_second_try or isinstance(error, DecodeTimeout):
                    raise
                is_second_try = True
            except MemoryError as error:
                self._lose(worker)  # its memory may be in pieces
                if worker.num_jobs == 1:
                    raise self._too_large(job) from error
            else:
                quarantine.clear(job)
                if isinstance(result, DecodedFrames):
                    result.stats.seconds["queue"] = queued_s
                return result

    def _do(self, ticket: Ticket, worker: WorkerProcess) -> Any:
        lease: Lease | None = None

        def ask(nbytes: int) -> None:
            nonlocal lease
            lease = self._room(ticket, worker, nbytes)

        try:
            ticket.stands_at(worker)
            try:
                result, files = worker.do(ticket.job, ask, ticket.kind)
            finally:
                ticket.leaves()
        except BaseException:
            if lease is not None:
                lease.release()
            if ticket.is_stopped or not worker.is_idle:
                self._lose(worker)
            raise
        if isinstance(result, DecodedFrames):
            _note_cost(result, worker, lease)
        if lease is not None:
            lease.settle(sum(map(len, files)))
            wire.when_dropped(files, lease.release)
        return result

    def _room(self, ticket: Ticket, worker: WorkerProcess, nbytes: int) -> Lease:
        request = self._shared.budget.request(nbytes)
        ticket.stands_at(worker, request)
        self.is_waiting_for_room = True
        try:
            return request.wait(self._settings.lease_timeout_s)
        finally:
            self.is_waiting_for_room = False

    def _ready_worker(self) -> WorkerProcess:
        """The worker, or a new one. Raises DeviceError when none starts."""
        if self.worker is None:
            worker = WorkerProcess(
                Setup(self._settings.tasks, self._settings.worker_bytes, self._settings.niceness),
                num_threads=self._settings.threads,
            )
            worker.wait_ready(self._settings.start_timeout_s)
            self.worker = worker
        return self.worker

    def _lose(self, worker: WorkerProcess) -> None:
        worker.close()
        self.worker = None
        self.workers_lost += 1

    def _dismiss_worn(self) -> None:
        worker, settings = self.worker, self._settings
        if worker is None or worker.vitals is None:
            return
        is_fat = worker.vitals.rss_bytes > settings.recycle_above_bytes
        if is_fat or worker.num_jobs >= settings.recycle_after_jobs:
            worker.close()
            self.worker = None
            self.workers_recycled += 1

    def _too_large(self, job: Job) -> SourceTooLarge:
        limit = self._settings.worker_bytes
        return SourceTooLarge(
            "the clip needs more memory than a decode worker may take",
            given=repr(job.source.name),
            allowed=f"{format_bytes(limit)} besides its output" if limit else "",
            remedy="a larger worker_bytes",
        )


def pool_closed() -> DeviceError:
    """For jobs that the pool's end cuts off."""
    return DeviceError("the decode pool was closed before the clip's turn was over", remedy="open another one")


def _note_cost(frames: DecodedFrames, worker: WorkerProcess, lease: Lease | None) -> None:
    frames.stats.seconds["wait"] = lease.waited_s if lease else 0.0
    if worker.vitals is not None:
        frames.stats.peak_bytes = worker.vitals.peak_rss_bytes
