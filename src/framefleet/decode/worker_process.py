"""The parent's side of one worker: start it, have a job done by its deadline, kill it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from framefleet.decode import wire
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
_REAP_S = 10.0
_LAST_WORDS_BYTES = 4000


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
        self._ending = threading.Lock()
        self._stderr = os.memfd_create("framefleet-stderr", os.MFD_CLOEXEC)
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, os.O_APPEND)  # truncating it must not leave a hole
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", "framefleet.decode.worker", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                env=_environment(num_threads),
                start_new_session=True,  # Ctrl-C goes to the terminal's group: to the parent alone
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Return once its libraries are loaded. Raises DeviceError if it cannot start, and has then ended it."""
        try:
            self._link.settimeout(timeout_s)
            wire.send(self._link, self._setup)
            received = wire.receive(self._link)
            if received is not None and isinstance(received.decode(FromWorker), Ready):
                return
        except (OSError, DecoderLost):
            pass
        how, words = self._end()
        raise DeviceError(
            "a decode worker does not start",
            given=f"{how} ({_last_line(words)})" if words else how,
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
        os.ftruncate(self._stderr, 0)
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
        if self._ending.acquire(blocking=False):  # else it is being ended already
            try:
                self._signal_kill()
            finally:
                self._ending.release()

    def close(self) -> None:
        """End it and wait for its end."""
        self.kill()
        self._end()

    def _send(self, message: Any, job: Job) -> None:
        try:
            wire.send(self._link, message)
        except ConnectionError:
            self._lose(job)

    def _receive(self, deadline_s: float, job: Job) -> wire.Received:
        try:
            self._link.settimeout(max(deadline_s - time.monotonic(), 0.001))
            received = wire.receive(self._link)
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
        detail = "; ".join(part for part in (why or how, _last_line(words)) if part)
        error = DecoderLost(
            f"the decode worker died ({detail})",
            given=repr(job.source.name),
            remedy="another backend; the clip may be damaged, or need more memory than there is",
        )
        if words:
            error.add_note(words)
        raise error

    def _end(self) -> tuple[str, str]:
        """End it; how it ended, in words, and the last that it wrote. Again: nothing."""
        self.is_idle = False
        with self._ending:
            if self._link.fileno() < 0:
                return "", ""
            try:
                self._process.wait(1.0)  # it is dying already, and of what is worth knowing
            except subprocess.TimeoutExpired:
                self._signal_kill()
                with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing more can be done
                    self._process.wait(_REAP_S)
            size = os.fstat(self._stderr).st_size
            words = os.pread(self._stderr, _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
            os.close(self._stderr)
            self._link.close()
        return _how_it_ended(self._process.returncode), words.decode(errors="replace").strip()

    def _signal_kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _permission(nbytes: int, ask: Callable[[int], None]) -> Grant | Deny:
    try:
        ask(nbytes)
        return Grant()
    except BudgetError as error:
        return Deny(Problem.of(error))


def _environment(num_threads: int) -> dict[str, str]:
    """This process's, with its module path, and with thread pools no larger than a decode may have threads."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(num_threads))
    return {**os.environ, **pools, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _how_it_ended(returncode: int | None) -> str:
    if returncode is None:
        return "it cannot be killed"
    if returncode == -signal.SIGKILL:
        return "SIGKILL: the kernel's out-of-memory killer, or somebody"
    if returncode < 0:
        return {s.value: s.name for s in signal.Signals}.get(-returncode, f"signal {-returncode}")
    return f"exit status {returncode}"


def _last_line(words: str) -> str:
    """The line of the last words that says most: Python's own on a fatal error, else the very last."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Fatal Python error")), lines[-1] if lines else "")
