"""A decode worker: a process that does one job at a time and may be killed at any moment.

`python -m framefleet.decode.worker FD PARENT_PID` speaks `messages` over the inherited socket FD: it takes a `Setup`,
says `Ready`, then answers each `Job` with `Answer` or `Failure`, asking for room in between (`Ask`, then `Grant` or
`Deny`). It ends when the socket closes, and the kernel ends it when its parent dies. It ignores Ctrl-C, which is the
parent's to decide on.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from framefleet.decode import wire
from framefleet.decode.messages import Answer, Ask, Deny, Failure, Problem, Ready, ToWorker, Vitals, restored, sendable
from framefleet.decode.tasks import Job
from framefleet.units import KIB

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
_ROOM_PER_OUTPUT_BYTE = 2
"""Frames while they are made, and once more while missing ones are closed up."""


def main(descriptor: int, parent_pid: int) -> None:
    """Serve jobs until the parent closes the socket."""
    settle_in(parent_pid)
    with suppress(ConnectionError):
        _Worker(socket.socket(fileno=descriptor)).serve()


class _Worker:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._memory_bytes: int | None = None

    def serve(self) -> None:
        setup = self._receive()
        self._memory_bytes = setup.memory_bytes
        os.nice(setup.niceness)
        tasks = import_module(setup.tasks)
        tasks.warm_up()
        gc.freeze()
        wire.send(self._link, Ready())
        while True:
            self._limit_memory(0)
            job = self._receive()
            _forget_peak()
            self._do(tasks, job)

    def _do(self, tasks: ModuleType, job: Job) -> None:
        try:
            result = getattr(tasks, job.task)(job, self._ask)
            vitals, files = _vitals(), list[int]()
            packed = msgspec.Raw(wire.encode(sendable(result), files))
            wire.send(self._link, Answer(packed, vitals), files)
        except (SystemExit, ConnectionError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
            wire.send(self._link, Failure(Problem.of(error), _vitals()))

    def _ask(self, nbytes: int) -> None:
        wire.send(self._link, Ask(nbytes))
        reply = self._receive()
        if isinstance(reply, Deny):
            raise reply.problem.error("")
        self._limit_memory(nbytes)

    def _receive(self) -> Any:
        received = wire.receive(self._link)
        if received is None:
            raise SystemExit
        return restored(received.decode(ToWorker))

    def _limit_memory(self, granted_bytes: int) -> None:
        if self._memory_bytes is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            limit = self._memory_bytes + _ROOM_PER_OUTPUT_BYTE * granted_bytes
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _vitals() -> Vitals:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Vitals(
        rss_bytes=_kib(status["VmRSS"]),
        peak_rss_bytes=_kib(status["VmHWM"]),
        num_files=len(os.listdir("/proc/self/fd")) - 1,  # noqa: PTH208 - without the one that lists
        num_threads=int(status["Threads"]),
    )


def _kib(text: str) -> int:
    return int(text.split()[0]) * KIB


def _forget_peak() -> None:
    with suppress(OSError):  # some containers forbid it: then the peak is that of the worker's life
        Path("/proc/self/clear_refs").write_text("5")


def settle_in(parent_pid: int) -> None:
    """Die with the parent, leave Ctrl-C to it, be the first to go when memory runs out, leave no core file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        raise SystemExit
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    faulthandler.enable()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
