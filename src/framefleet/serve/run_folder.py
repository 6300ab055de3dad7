"""The folder of one fleet: who runs it, its sockets, logs and revisions; what an earlier run left alive is ended.

lock        held while the fleet runs        logs/r0.log        output of every process
control     Unix socket                      revisions/1.json   each applied setting
mps, decode0.sock                            (in a folder of /tmp where this path is too long for a socket)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from framefleet.config import PREFIX
from framefleet.errors import ConfigError, ReplicaError, StoreLocked
from framefleet.store.lock import Lock

VARIABLE = PREFIX + "RUN"
"""In the environment of every process of a fleet: the folder. By it orphans are known."""
FOLDER_VARIABLE = PREFIX + "FOLDER"
_MAX_SOCKET_PATH = 80
"""Of 107; names inside come on top."""
_MAX_LOG_BYTES = 64 * 1024**2
_SWEEP_S = 10.0


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """FRAMEFLEET_FOLDER, else where this user's programs keep their state."""
    if given := environ.get(FOLDER_VARIABLE):
        return Path(given)
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "framefleet" / "fleet"


class RunFolder:
    """`with RunFolder(path) as folder:` only one fleet at a time has it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.revisions = self.path / "revisions"
        self.control = self.path / "control"
        self._sockets: Path | None = None

    def __enter__(self) -> RunFolder:
        try:
            for place in (self.path, self.path / "logs", self.revisions):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = Lock(self.path / "lock")
        except StoreLocked as error:
            remedy = "framefleet fleet status; or another --folder"
            raise ReplicaError("a fleet runs from this folder already", given=error.given, remedy=remedy) from error
        except OSError as error:
            given = f"{str(self.path)!r} ({error.strerror})"
            raise ConfigError("cannot use the fleet's folder", given=given, remedy="--folder DIR") from error
        self.swept = sweep(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self.control.unlink(missing_ok=True)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        self._lock.close()

    @property
    def sockets(self) -> Path:
        """A private folder whose path is short enough for sockets."""
        if self._sockets is None:
            if len(str(self.path)) < _MAX_SOCKET_PATH:
                self._sockets = self.path / "sockets"
                shutil.rmtree(self._sockets, ignore_errors=True)
                self._sockets.mkdir(mode=0o700)
            else:
                self._sockets = Path(tempfile.mkdtemp(prefix="framefleet-"))
        return self._sockets

    def log_of(self, name: str) -> Path:
        """The log of a process; a large one is put aside first."""
        log = self.path / "logs" / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            if log.stat().st_size > _MAX_LOG_BYTES:
                log.replace(log.with_suffix(".log.1"))
        return log


def sweep(folder: Path) -> list[int]:
    """Kill every process of this user that a fleet in `folder` started, and wait until they are gone. The pids.

    The caller holds the folder's lock, so none of them has an owner any more.
    """
    found: dict[int, None] = {}
    until_s = time.monotonic() + _SWEEP_S
    while (left := list(_of_folder(folder))) and time.monotonic() < until_s:
        for pid in left:
            found[pid] = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return list(found)


def _of_folder(folder: Path) -> Iterator[int]:
    mark = f"{VARIABLE}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone, or another user's
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
