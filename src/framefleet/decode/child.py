"""A process of ours that may be killed at any moment, with a socket to it and its last words kept."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

_REAP_S = 10.0
_LAST_WORDS_BYTES = 4000


class ChildProcess:
    """`python -m MODULE FD PARENT_PID`, which is to speak over the inherited socket FD.

    The thread that makes it must outlive it: the kernel ends such a process with the thread that started it (see
    `settle_in`). `kill` may come from any thread.
    """

    def __init__(self, module: str, *, num_threads: int, environment: Mapping[str, str] | None = None) -> None:
        self._ending = threading.Lock()
        self._stderr = os.memfd_create("framefleet-stderr", os.MFD_CLOEXEC)
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, os.O_APPEND)  # truncating it must not leave a hole
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                env={**_environment(num_threads), **(environment or {})},
                start_new_session=True,  # Ctrl-C goes to the terminal's group: to the parent alone
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def forget_words(self) -> None:
        """What it wrote so far is of no interest any more."""
        os.ftruncate(self._stderr, 0)

    def kill(self) -> None:
        """End it now, with whatever it started. The thread that waits for it sees it gone."""
        if self._ending.acquire(blocking=False):  # else it is being ended already
            try:
                self._signal_kill()
            finally:
                self._ending.release()

    def end(self) -> tuple[str, str]:
        """Wait for its end, and bring it about; how it ended, in words, and the last that it wrote. Again: nothing."""
        with self._ending:
            if self.link.fileno() < 0:
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
            self.link.close()
        return _how_it_ended(self._process.returncode), words.decode(errors="replace").strip()

    def _signal_kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def last_line(words: str) -> str:
    """The line of the last words that says most: Python's own on a fatal error, else the very last."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Fatal Python error")), lines[-1] if lines else "")


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
