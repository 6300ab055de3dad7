"""The model process as its parent holds it: started, spoken to, and surely ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from framefleet.engine.embedded.wire import Channel, FromProcess, Load, ToProcess

END_WAIT_S = 5.0


class ModelProcess:
    """One child process with its socket.

    `on_message` and `on_end` are called from a thread of this object; `on_end` once, when nothing more will come.
    A plain child of `sys.executable`, not multiprocessing: that would import the caller's main module again.
    """

    def __init__(
        self, load: Load, on_message: Callable[[FromProcess], None], on_end: Callable[[ModelProcess], None]
    ) -> None:
        self._on_message = on_message
        self._on_end = on_end
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours, FromProcess)
        with theirs:
            self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "framefleet.engine.embedded.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_fileno() else subprocess.DEVNULL,
                env=_environment(load.num_threads),
            )
        self._reader = threading.Thread(target=self._read, name="model-process-reader", daemon=True)
        self._reader.start()
        self.send(load)

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._child.pid

    def send(self, message: ToProcess) -> None:
        """Raises OSError when the child is gone."""
        self._channel.send(message)

    def fate(self) -> str:
        """How it ended, for a message: `exit code 1`, `signal 9`."""
        code = self._child.poll()
        if code is None:
            return "closed its connection"
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """End it at once; `on_end` follows."""
        self._child.kill()

    def close(self) -> None:
        """End it and wait until it is gone (blocks; at most END_WAIT_S before it is killed)."""
        self._channel.close()
        try:
            self._child.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _read(self) -> None:
        try:
            while True:
                self._on_message(self._channel.receive())
        except (EOFError, OSError):
            pass
        try:
            self._child.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._channel.close()
        self._on_end(self)


def _environment(num_threads: int) -> dict[str, str]:
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return os.environ | threads | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
