"""One writer at a time: a lock that ends with its process, however that ends, and that can name its holder."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from framefleet.errors import StoreError, StoreLocked

_GRACE_S = 2.0
"""A holder that is no more lets go as soon as the kernel has reaped it and its forked children."""


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock, as written in its file."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class Lock:
    """Held from `Lock(path)` until `close`. Raises StoreLocked, naming the holder, and StoreError where the file
    system cannot lock."""

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self.path = path
        self._descriptor: int | None = _acquire(path, wait_s)
        holder = Holder(os.getpid(), socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"))
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(holder), 0)

    def close(self) -> None:
        """Let go; the file goes too."""
        if self._descriptor is None:
            return
        self.path.unlink(missing_ok=True)  # while still held, so that nobody's later lock is unlinked
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Presence:
    """A reader's mark, shared by any number: the writer removes old versions only when there is none."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # waits only while a writer looks
        except OSError:
            self.close()  # a read-only place has no writer to mind

    def close(self) -> None:
        """Take the mark away."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def is_nobody_present(path: Path) -> bool:
    """Whether no Presence is held on `path` now."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _acquire(path: Path, wait_s: float) -> int:
    deadline_s = time.monotonic() + wait_s
    forgiven_s = time.monotonic() + _GRACE_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
            os.close(descriptor)  # its holder unlinked it between our open and our lock
            continue
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(
                "the file system cannot lock", given=f"{str(path)!r} ({error.strerror})", remedy="a local disk"
            ) from error
        if time.monotonic() >= (deadline_s if _is_alive(holder) else max(deadline_s, forgiven_s)):
            raise StoreLocked(
                "another writer has the store open",
                given=f"{str(path.parent)!r}, held by {holder or 'a process that has not said which'}",
                remedy="wait for it, stop it, or write elsewhere; reading needs no lock",
            )
        time.sleep(0.05)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    except msgspec.DecodeError:
        return None


def _is_alive(holder: Holder | None) -> bool:
    """On this host; of another's process nothing is known, so it counts as alive."""
    if holder is None:
        return False  # between locking and writing its name: look again
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
