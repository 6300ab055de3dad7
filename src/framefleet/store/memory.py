"""The sink that keeps everything in memory: for tests, and for a run whose captions are wanted as values."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import ConfigError
from framefleet.store.schema import storable
from framefleet.store.sink import Mode, fresh
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where


class MemorySink:
    """The Sink over a dict. Closing it ends writing; what is in it can still be read."""

    def __init__(self) -> None:
        self._kept: dict[str, CaptionRecord] = {}
        self._known = Statuses()
        self._is_closed = False

    def append(self, *records: CaptionRecord) -> int:
        """See Sink."""
        if self._is_closed:
            raise ConfigError("the store is not open for writing", remedy="another MemorySink")
        new = list(fresh(map(storable, records), self._known))
        for record in new:
            self._known.put(record.digest, record.status)
            self._kept.pop(record.digest, None)
            self._kept[record.digest] = record
        return len(new)

    def statuses(self) -> Statuses:
        """See Sink."""
        return self._known.copy()

    def records(self, where: Where | None = None) -> Iterator[CaptionRecord]:
        """See Sink."""
        return iter([record for record in self._kept.values() if where is None or where(record)])

    def close(self) -> None:
        """See Sink."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_memory(path: str, mode: Mode) -> MemorySink:
    """An empty one; `path` only names the kind."""
    del path, mode
    return MemorySink()
