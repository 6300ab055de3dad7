"""DecodeServiceProcess: a service as a child of whoever needs one; started, watched, restarted, surely ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from framefleet.decode.service.client import ServiceClient
from framefleet.decode.service.protocol import ServiceStats
from framefleet.errors import ConfigError, DeviceError, ServiceUnreachable

_POLL_S = 0.05
_FIRST_BACK_OFF_S, _LAST_BACK_OFF_S = 0.5, 30.0
_STEADY_S = 60.0
"""A service that stayed up so long begins its back-off anew."""
_LAST_WORDS_BYTES = 4000


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As the command line has them."""

    socket: Path
    gpu: str | None = None
    """Index or UUID; None: the CPU alone."""
    cpu_workers: int | None = None
    """None: usable cores."""
    budget_bytes: int | None = None
    """For finished frames."""
    gpu_budget_bytes: int | None = None
    """Of the GPU's memory, for its decoders."""

    def arguments(self) -> list[str]:
        """Of the command."""
        named = {"gpu": self.gpu, "cpu-workers": self.cpu_workers, "budget": self.budget_bytes}
        named["gpu-budget"] = self.gpu_budget_bytes
        given = [f"--{name}={value}" for name, value in named.items() if value is not None]
        return [f"--socket={self.socket}", *given]


class DecodeServiceProcess:
    """One service in its own process group. Not thread-safe; its end comes with this process's, however that ends.

    `log` takes what it writes (None: this process's stderr). `environ` replaces this process's.
    """

    def __init__(
        self, settings: ServiceSettings, *, log: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.settings = settings
        self.restarts = 0
        self._log = log
        self._environ = os.environ if environ is None else environ
        self._child: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._back_off_s = _FIRST_BACK_OFF_S
        self._client = ServiceClient(settings.socket)

    @property
    def pid(self) -> int | None:
        """Of the service; None when none was started."""
        return self._child.pid if self._child else None

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it; does not wait. Raises ConfigError when it runs already."""
        if self.is_running:
            raise ConfigError("the decode service runs already", given=f"process {self.pid}")
        self.stop()
        paths = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-P", "-m", "framefleet.decode.service", *self.settings.arguments()]
        with self._open_log() as log:
            self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, "--until-stdin-closes"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**self._environ, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C goes to the terminal's group: to the parent alone
            )
        self._started_s = time.monotonic()

    def wait_ready(self, timeout_s: float = 120.0) -> ServiceStats:
        """Its first answer. Raises DeviceError when it ends before, or is late."""
        deadline_s = time.monotonic() + timeout_s
        while self.is_running and time.monotonic() < deadline_s:
            with suppress(ServiceUnreachable):
                stats = self._client.stats()
                if stats.pid == self.pid:
                    return stats
            time.sleep(_POLL_S)
        how = f"still starting after {timeout_s:g} s" if self.is_running else self._fate()
        raise DeviceError(
            "the decode service is not ready",
            given=f"{how} ({self._last_line()})",
            remedy="`framefleet doctor`, or a longer wait",
        )

    def ensure_running(self) -> bool:
        """Start it again if it ended and its back-off is over; whether that was done. Call it every second or so."""
        if self.is_running:
            if time.monotonic() - self._started_s > _STEADY_S:
                self._back_off_s = _FIRST_BACK_OFF_S
            return False
        if time.monotonic() - self._started_s < self._back_off_s:
            return False
        self._back_off_s = min(2 * self._back_off_s, _LAST_BACK_OFF_S)
        self.restarts += 1
        self.start()
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """End it and wait for its end: SIGTERM, then SIGKILL after `grace_s`. Again: nothing."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        child.stdin.close()

    def __enter__(self) -> DecodeServiceProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _open_log(self) -> IO[bytes]:
        if self._log is None:
            return os.fdopen(os.dup(2), "wb")
        return self._log.open("ab")

    def _fate(self) -> str:
        code = self._child.returncode if self._child else None
        if code is None:
            return "never started"
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _last_line(self) -> str:
        if self._log is None:
            return "see its stderr"
        lines = self._log.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
