"""A request's body: passed on while it arrives, looked at from its head, kept for another attempt while there is room.

One feeds (`feed`, `finish`, `fail`), one at a time reads (`chunks`). Little is held that no replica has taken yet, so a
slow replica slows the client down instead of filling the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from typing import IO

from framefleet.errors import FramefleetError
from framefleet.serve.cost import HEAD_BYTES
from framefleet.units import MIB

SMALL_BYTES = MIB
"""Bodies up to here are read whole before anything is decided."""
AHEAD_BYTES = MIB
"""What may have arrived and not been taken by a replica."""
_READ_BYTES = 256 * 1024


class DiskRoom:
    """Bytes that the temporary files of all uploads may take together."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes

    def take(self, num_bytes: int) -> bool:
        """False: there is no room, and none is taken."""
        if num_bytes > self.free_bytes:
            return False
        self.free_bytes -= num_bytes
        return True


class Spool:
    """The bytes fed so far: in memory, then in a temporary file."""

    def __init__(self, memory_bytes: int, room: DiskRoom, folder: str = "") -> None:
        self._memory_left, self._room, self._folder = memory_bytes, room, folder or None
        self._parts: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._file_bytes = 0
        self.is_whole = True

    def keep(self, chunk: bytes) -> None:
        """Where neither memory nor disk has room the spool is dropped: `is_whole` is then False."""
        if not self.is_whole:
            return
        if self._file is None and len(chunk) <= self._memory_left:
            self._memory_left -= len(chunk)
            self._parts.append(chunk)
        elif not self._write(chunk):
            self.drop()

    def read(self, num_bytes: int) -> AsyncIterator[bytes]:
        """The first bytes, up to a boundary between chunks."""
        return self._read(num_bytes)

    def drop(self) -> None:
        """Give memory and disk back. Idempotent."""
        self.is_whole = False
        self._parts = []
        if self._file is not None:
            self._file.close()
            self._file = None
        self._room.free_bytes += self._file_bytes
        self._file_bytes = 0

    def _write(self, chunk: bytes) -> bool:
        if not self._room.take(len(chunk)):
            return False
        self._file_bytes += len(chunk)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed by drop
            return self._file.write(chunk) == len(chunk)
        except OSError:
            return False

    async def _read(self, num_bytes: int) -> AsyncIterator[bytes]:
        for part in self._parts:
            if num_bytes <= 0:
                return
            num_bytes -= len(part)
            yield part
        offset = 0
        while num_bytes > 0 and self._file is not None:
            wanted = min(_READ_BYTES, num_bytes)
            part = await asyncio.to_thread(os.pread, self._file.fileno(), wanted, offset)
            offset += len(part)
            num_bytes -= len(part)
            yield part


class Upload:
    """One body."""

    def __init__(self, spool: Spool, *, declared_bytes: int | None = None) -> None:
        self.declared_bytes = declared_bytes
        self.num_bytes = 0
        self.is_complete = False
        self.failure: FramefleetError | None = None
        self._is_unwanted = False
        self._spool = spool
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._reader = 0
        self._tail = b""
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()

    async def feed(self, chunk: bytes) -> None:
        """A piece has arrived. Returns when there is room for the next."""
        if self._is_unwanted:
            return
        self._spool.keep(chunk)
        self._tail = chunk if len(chunk) >= HEAD_BYTES else (self._tail + chunk)[-HEAD_BYTES:]
        self.num_bytes += len(chunk)
        self._pending.append(chunk)
        self._pending_bytes += len(chunk)
        self._arrived.set()
        while self._pending_bytes > AHEAD_BYTES and not self._is_unwanted:
            self._taken.clear()
            await self._taken.wait()

    def finish(self) -> None:
        """All of it has arrived."""
        self.is_complete = True
        self._arrived.set()

    def fail(self, failure: FramefleetError) -> None:
        """No more will come. Whoever reads is told."""
        self.failure = failure
        self._arrived.set()

    async def head(self) -> bytes:
        """The whole of a small body, else the first HEAD_BYTES or more. Raises what it failed by."""
        wanted = SMALL_BYTES if (self.declared_bytes or 0) <= SMALL_BYTES else HEAD_BYTES
        while not self.is_complete and self._pending_bytes <= wanted:
            self._raise_failure()
            self._arrived.clear()
            await self._arrived.wait()
        self._raise_failure()
        return b"".join(self._pending) if self.is_small else _first(self._pending, HEAD_BYTES)

    @property
    def is_small(self) -> bool:
        """Whether `head` was the whole."""
        return self.is_complete and self.num_bytes <= SMALL_BYTES

    @property
    def tail(self) -> bytes:
        """The last HEAD_BYTES that have arrived."""
        return self._tail[-HEAD_BYTES:]

    @property
    def may_be_read_again(self) -> bool:
        """Whether `chunks` can start over."""
        return self.num_bytes == self._pending_bytes or self._spool.is_whole

    async def chunks(self) -> AsyncIterator[bytes]:
        """From the start. A new reader ends the one before it. Raises what the upload failed by."""
        self._reader += 1
        me = self._reader
        async for chunk in self._spool.read(self.num_bytes - self._pending_bytes):
            yield chunk
        while me == self._reader:
            if self._pending:
                yield self._take()
            elif self.failure is not None or self.is_complete:
                self._raise_failure()
                return
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def forget(self) -> None:
        """It will not be read again."""
        self._spool.drop()

    async def discard(self, limit_s: float) -> None:
        """Throw away what still comes. Returns when all has come, or after so many seconds."""
        self.forget()
        self._is_unwanted = True
        self._taken.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not self.is_complete:
                    self._arrived.clear()
                    await self._arrived.wait()

    def _take(self) -> bytes:
        chunk = self._pending.popleft()
        self._pending_bytes -= len(chunk)
        self._taken.set()
        return chunk

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def _first(parts: deque[bytes], num_bytes: int) -> bytes:
    head = b""
    for part in parts:
        if len(head) >= num_bytes:
            break
        head += part[:num_bytes]
    return head[:num_bytes]
