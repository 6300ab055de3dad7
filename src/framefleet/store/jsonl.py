"""The JSON Lines store: one record a line, synced at each append. For small runs and for pipes to other tools.

A failed record whose digest comes again stays as a line until the store is closed, when the file is rewritten without
it; readers pass it over.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import ConfigError, StoreUnreadable
from framefleet.store.disk import store_errors, sync_directory, whole_file
from framefleet.store.lock import Lock
from framefleet.store.schema import storable
from framefleet.store.sink import Mode, fresh
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CaptionRecord).decode


class JsonlSink:
    """The Sink over one file."""

    def __init__(self, path: Path, held: ExitStack, *, writable: bool) -> None:
        self.path = path
        self._held = held
        self._mutex = threading.RLock()
        self._known = Statuses()
        self._num_bytes = 0
        self._stale_lines: set[int] = set()
        """Numbers of lines with a failed record whose digest came again."""
        self._failed_lines: dict[str, int] = {}
        self._num_lines = 0
        self._descriptor: int | None = None
        try:
            for record, self._num_bytes in _lines(path, None):
                self._note(record)
            if writable:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
                os.ftruncate(self._descriptor, self._num_bytes)  # the torn tail of a killed writer
        except BaseException:
            held.close()
            raise

    def append(self, *records: CaptionRecord) -> int:
        """See Sink."""
        kept = [storable(record) for record in records]
        with self._mutex:
            if self._descriptor is None:
                raise ConfigError("the store is not open for writing", remedy="open_store(path, 'w')")
            new = list(fresh(kept, self._known))
            if new:
                self._write(self._descriptor, b"".join(_encode(record) + b"\n" for record in new))
            for record in new:
                self._note(record)
            return len(new)

    def statuses(self) -> Statuses:
        """See Sink."""
        with self._mutex:
            return self._known.copy()

    def records(self, where: Where | None = None) -> Iterator[CaptionRecord]:
        """See Sink. As of the moment of the call."""
        with self._mutex:
            lines, stale = _lines(self.path, self._num_bytes), frozenset(self._stale_lines)
        numbered = enumerate(record for record, _ in lines)
        return (r for number, r in numbered if number not in stale and (where is None or where(r)))

    def close(self) -> None:
        """See Sink."""
        with self._mutex:
            if self._descriptor is None:
                self._held.close()
                return
            os.close(self._descriptor)
            self._descriptor = None
            try:
                if self._stale_lines:
                    self._rewrite()
            finally:
                self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, record: CaptionRecord) -> None:
        if (before := self._failed_lines.pop(record.digest, None)) is not None:
            self._stale_lines.add(before)
        if record.status == "failed":
            self._failed_lines[record.digest] = self._num_lines
        self._known.put(record.digest, record.status)
        self._num_lines += 1

    def _write(self, descriptor: int, content: bytes) -> None:
        with store_errors(self.path):
            try:
                view, offset = memoryview(content), self._num_bytes
                while view:
                    num_written = os.pwrite(descriptor, view, offset)
                    view, offset = view[num_written:], offset + num_written
                os.fdatasync(descriptor)
                self._num_bytes = offset
            except BaseException:
                os.ftruncate(descriptor, self._num_bytes)
                raise

    def _rewrite(self) -> None:
        with store_errors(self.path), whole_file(self.path) as temporary, temporary.open("wb") as out:
            for record in self.records():
                out.write(_encode(record) + b"\n")


def open_jsonl(path: str, mode: Mode) -> JsonlSink:
    """See `open_store`."""
    file = Path(path)
    with ExitStack() as opening:
        if mode == "w":
            with store_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
            opening.enter_context(Lock(file.with_name(file.name + ".lock")))
        elif not file.is_file():
            raise StoreUnreadable("no store here", given=repr(path), remedy="the path that `caption` wrote to")
        if file.exists() and not file.is_file():
            raise StoreUnreadable("something else is there", given=repr(path), remedy="another --output")
        sink = JsonlSink(file, opening.pop_all(), writable=mode == "w")
        if mode == "w":
            sync_directory(file.parent)
        return sink


def _lines(path: Path, num_bytes: int | None) -> Iterator[tuple[CaptionRecord, int]]:
    """Each whole line's record, and where the line ends; up to byte `num_bytes`. The file is opened at once, so a later
    rewriting does not reach the reader."""
    stream = path.open("rb") if path.exists() else io.BytesIO()
    return _read_lines(stream, str(path), num_bytes)


def _read_lines(stream: BinaryIO, name: str, num_bytes: int | None) -> Iterator[tuple[CaptionRecord, int]]:
    at = 0
    with stream:
        for number, line in enumerate(stream, start=1):
            at += len(line)
            if not line.endswith(b"\n") or (num_bytes is not None and at > num_bytes):
                return
            try:
                yield _decode(line), at
            except msgspec.DecodeError as error:
                raise StoreUnreadable(
                    "not a caption record", given=f"{name}, line {number} ({error})", remedy="remove the line"
                ) from error
