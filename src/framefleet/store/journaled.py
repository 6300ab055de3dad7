"""A sink made of a journal and a table: appends are synced to the journal one by one, and folded into the table many
at a time, since every change of a table costs a version, a file and a few syncs.

    append -> journal (fdatasync) -> acknowledged -> ... -> fold: table (durable) -> segment unlinked

A crash between the two last steps leaves records in both; they are told by their digests and folded once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

from framefleet.engine.captioner import CaptionRecord, Status
from framefleet.errors import ConfigError
from framefleet.store.journal import Journal
from framefleet.store.schema import storable
from framefleet.store.sink import fresh
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where

FOLD_ROWS = 2_000
FOLD_BYTES = 64 << 20
"""Whichever comes first: so much is replayed after a crash, and read by a reader beside a writer."""


class Table(Protocol):
    """Where folded records lie."""

    def statuses(self, digests: Iterable[str] | None = None) -> Statuses:
        """Of all rows, or of these digests."""
        ...

    def fold(self, records: list[CaptionRecord], replaced: set[str]) -> None:
        """Add the records, in place of the failed rows of the `replaced` digests; all or nothing, durable on return."""
        ...

    def scan(self, where: Where | None) -> Iterator[CaptionRecord]:
        """The rows in order of arrival, as of the moment of the call."""
        ...

    def tidy(self, *, closing: bool) -> None:
        """After a fold: keep the number of files and versions low and the indices up to date, where that is due."""
        ...


class JournaledSink:
    """The Sink over a Table. `held` is closed with it: the writer's lock or the reader's mark.

    `acknowledged` is what the journal held *before* the table was opened: what a living writer folds in between is
    then met twice and told by its digest; the other way round it would be missed.
    """

    def __init__(
        self,
        table: Table,
        journal: Journal,
        acknowledged: Iterable[CaptionRecord],
        held: ExitStack,
        *,
        writable: bool,
        fold_rows: int = FOLD_ROWS,
    ) -> None:
        self._table = table
        self._journal = journal
        self._held = held
        self._writable = writable
        self._fold_rows = fold_rows
        self._mutex = threading.RLock()
        self._tail: dict[str, CaptionRecord] = {}
        self._failed_in_table: set[str] = set()
        self._all: Statuses | None = None
        self._is_in_doubt = False
        self._is_closed = False
        try:
            self._take_up(acknowledged)
        except BaseException:
            held.close()
            raise

    def append(self, *records: CaptionRecord) -> int:
        """See Sink."""
        if self._is_closed or not self._writable:
            raise ConfigError("the store is not open for writing", remedy="open_store(path, 'w')")
        kept = [storable(record) for record in records]
        with self._mutex:
            if len(self._tail) >= self._fold_rows or self._journal.num_bytes >= FOLD_BYTES:
                self._fold(closing=False)
            new = list(fresh(kept, self._known()))
            if new:
                self._journal.append(new)
            for record in new:
                self._put(record)
                self._known().put(record.digest, record.status)
            return len(new)

    def statuses(self) -> Statuses:
        """See Sink. A snapshot."""
        with self._mutex:
            return self._known().copy()

    def records(self, where: Where | None = None) -> Iterator[CaptionRecord]:
        """See Sink. As of the moment of the call."""
        with self._mutex:
            rows, tail = self._table.scan(where), dict(self._tail)
        return _overlaid(rows, tail, where)

    def tail(self) -> dict[str, CaptionRecord]:
        """What is acknowledged and not yet in the table, by digest; each stands in place of a failed row, if any."""
        with self._mutex:
            return dict(self._tail)

    def close(self) -> None:
        """See Sink. Raises StoreFull: then everything is still in the journal, for the next writer to fold."""
        with self._mutex:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                if self._writable:
                    self._fold(closing=True)
            finally:
                self._journal.close()
                self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_up(self, acknowledged: Iterable[CaptionRecord]) -> None:
        for record in acknowledged:
            self._put(record)
        if not self._writable:
            self._settle(self._table.statuses(self._tail))
            return
        folded = self._table.statuses()
        self._failed_in_table = folded.having("failed")
        self._settle(folded)
        self._known()
        if self._journal.segments():
            self._fold(closing=False)

    def _settle(self, folded: Mapping[str, Status]) -> None:
        """Drop from the tail what the table has for good, and note what it has as failed."""
        self._failed_in_table |= {d for d in self._tail if folded.get(d) == "failed"}
        self._tail = {d: r for d, r in self._tail.items() if folded.get(d, "failed") == "failed"}

    def _put(self, record: CaptionRecord) -> None:
        self._tail.pop(record.digest, None)  # a record that replaces a failed one comes last
        self._tail[record.digest] = record

    def _known(self) -> Statuses:
        if self._all is None:
            self._all = self._table.statuses()
            for digest, record in self._tail.items():
                self._all.put(digest, record.status)
        return self._all

    def _fold(self, *, closing: bool) -> None:
        if self._is_in_doubt:  # an earlier try broke off: before or after its commit?
            self._settle(self._table.statuses(self._tail))
        self._is_in_doubt = True
        if self._tail:
            replaced = self._failed_in_table & self._tail.keys()
            self._table.fold(list(self._tail.values()), replaced)
            self._failed_in_table -= replaced
            self._failed_in_table |= {d for d, r in self._tail.items() if r.status == "failed"}
        self._journal.clear()
        self._tail = {}
        self._is_in_doubt = False
        self._table.tidy(closing=closing)


def _overlaid(
    rows: Iterator[CaptionRecord], tail: dict[str, CaptionRecord], where: Where | None
) -> Iterator[CaptionRecord]:
    for record in rows:
        if record.digest not in tail:
            yield record
    for record in tail.values():
        if where is None or where(record):
            yield record
