"""The parent's side of one worker: start it, have a job done by its deadline, kill it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from framefleet.decode import wire
from framefleet.decode.child import ChildProcess, last_line
from framefleet.decode.messages import (
    Answer,
    Ask,
    Deny,
    Failure,
    FromWorker,
    Grant,
    Problem,
    Ready,
    Setup,
    Vitals,
    restored,
    sendable,
)
from framefleet.decode.tasks import Job
from framefleet.errors import BudgetError, DecoderLost, DecodeTimeout, DeviceError

_GRACE_S = 0.5
"""A worker that keeps the deadline by itself is spared."""


class WorkerProcess:
    """One worker, used by one thread, which must outlive it: the kernel ends a worker with the thread that started it.

    Only `kill` may come from another thread.
    """

    def __init__(self, setup: Setup, num_threads: int) -> None:
        self.num_jobs = 0
        self.is_idle = True
        """Ready for a job: the last one was answered."""
        self.vitals: Vitals | None = None
        """After the last job."""
        self._setup = setup
        self._child = ChildProcess("framefleet.decode.worker", num_threads=num_threads)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Return once its libraries are loaded. Raises DeviceError if it cannot start, and has then ended it."""
        try:
            self._child.link.settimeout(timeout_s)
            wire.send(self._child.link, self._setup)
            received = wire.receive(self._child.link)
            if received is not None and isinstance(received.decode(FromWorker), Ready):
                return
        except (OSError, DecoderLost):
            pass
        how, words = self._end()
        raise DeviceError(
            "a decode worker does not start",
            given=f"{how} ({last_line(words)})" if words else how,
            remedy="`framefleet doctor`, fewer workers, or a longer start_timeout_s",
        )

    def do(self, job: Job, ask: Callable[[int], None], kind: Any) -> tuple[Any, list[wire.SharedFile]]:
        """Have a job done within `job.options.timeout_s`, not counting the time spent in `ask`.

        Returns its result as `kind`, and the shared memory that its large arrays lie in.
        `ask` is called with the bytes of the frames to come; it returns when there is room, or raises BudgetError.
        Raises that, what the task raised, MemoryError when the worker met its own limit, DecodeTimeout or DecoderLost.
        `is_idle` says whether the worker can go on; if not, it must be closed.
        """
        deadline_s = time.monotonic() + job.options.timeout_s + _GRACE_S
        self.num_jobs += 1
        self.is_idle = False
        self._child.forget_words()
        self._send(sendable(job), job)
        while True:
            received = self._receive(deadline_s, job)
            message = self._decoded(received, FromWorker, job)
            if isinstance(message, Ask):
                asked_at_s = time.monotonic()
                self._send(_permission(message.nbytes, ask), job)
                deadline_s += time.monotonic() - asked_at_s
            elif isinstance(message, Answer):
                self.vitals, self.is_idle = message.vitals, True
                return restored(self._decoded(received, kind, job, message.result)), received.files
            elif isinstance(message, Failure):
                self.vitals, self.is_idle = message.vitals, True
                raise message.problem.error(job.source.name)
            else:
                self._lose(job, "it spoke out of turn")

    def kill(self) -> None:
        """End it now, with whatever it started. The thread that waits for it sees it gone."""
        self._child.kill()

    def close(self) -> None:
        """End it and wait for its end."""
        self.kill()
        self._end()

    def _send(self, message: Any, job: Job) -> None:
        try:
            wire.send(self._child.link, message)
        except ConnectionError:
            self._lose(job)

    def _receive(self, deadline_s: float, job: Job) -> wire.Received:
        try:
            self._child.link.settimeout(max(deadline_s - time.monotonic(), 0.001))
            received = wire.receive(self._child.link)
        except TimeoutError:
            raise DecodeTimeout(
                "the clip's deadline passed; its worker was killed",
                given=repr(job.source.name),
                allowed=f"{job.options.timeout_s:g} s",
                remedy="a longer timeout_s, or another backend",
            ) from None
        except ConnectionError:
            received = None
        except DecoderLost as error:
            self._lose(job, str(error))
        return received or self._lose(job)

    def _decoded(self, received: wire.Received, kind: Any, job: Job, part: Any = None) -> Any:
        try:
            return received.decode(kind, part)
        except DecoderLost as error:
            self._lose(job, str(error))

    def _lose(self, job: Job, why: str = "") -> NoReturn:
        if why:
            self.kill()  # else it is dying already
        how, words = self._end()
        detail = "; ".join(part for part in (why or how, last_line(words)) if part)
        error = DecoderLost(
            f"the decode worker died ({detail})",
            given=repr(job.source.name),
            remedy="another backend; the clip may be damaged, or need more memory than there is",
        )
        if words:
            error.add_note(words)
        raise error

    def _end(self) -> tuple[str, str]:
        self.is_idle = False
        return self._child.end()


def _permission(nbytes: int, ask: Callable[[int], None]) -> Grant | Deny:
    try:
        ask(nbytes)
        return Grant()
    except BudgetError as error:
        return Deny(Problem.of(error))
