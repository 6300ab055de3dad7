"""The sink contract: where records are kept, whatever the format. `open_store` is the way in.

    with open_store("captions.lance", "w") as store:
        done = store.statuses()                 # {digest: status}, compact, from a column scan
        store.append(record)                    # durable when it returns
    with open_store("captions.lance") as store: # "r": any number of readers, also while somebody writes
        for record in store.records(Where(clip="*/night/*")): ...

What every sink promises (one suite, tests/contract/test_sink.py, runs over all):

- `append` returns when the records would survive kill -9 and, where there is a disk, a power cut. A record that was not
  acknowledged is there whole or not at all.
- A digest is kept once. A `failed` record stands until another comes for its digest; any other is final: what comes
  later for its digest is dropped, so a step that is repeated after a crash changes nothing.
- Order of arrival is kept; a record that replaces a failed one comes last. (A crash may move failed ones to the end.)
- One writer at a time (StoreLocked names the other), readers at any time.
- A full disk raises StoreFull, and what was acknowledged stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from framefleet.engine.captioner import CaptionRecord, Status
from framefleet.errors import ConfigError
from framefleet.registry import Registry
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where

Mode = Literal["r", "w"]


class Sink(AbstractContextManager[Any], Protocol):
    """Where records are kept. All methods may be called from any thread; leaving the `with` block closes it."""

    def append(self, *records: CaptionRecord) -> int:
        """Keep the records; returns how many were new. Raises StoreFull (nothing of this call is kept), ConfigError."""
        ...

    def statuses(self) -> Statuses:
        """Every kept digest with its status, as a mapping. Quick: no other column is read."""
        ...

    def records(self, where: Where | None = None) -> Iterator[CaptionRecord]:
        """The kept records in order of arrival, those that meet `where`."""
        ...

    def close(self) -> None:
        """Bring everything into its lasting form and let go. Repeatable."""
        ...


SINKS = Registry(
    "sink",
    "framefleet.sinks",
    {
        "lance": "framefleet.store.lance:open_lance",
        "parquet": "framefleet.store.parquet:open_parquet",
        "jsonl": "framefleet.store.jsonl:open_jsonl",
        "memory": "framefleet.store.memory:open_memory",
    },
)
"""Name (which is also the path's suffix) -> `open(path, mode) -> Sink`."""


def fresh(records: Iterable[CaptionRecord], known: Mapping[str, Status]) -> Iterator[CaptionRecord]:
    """Those that say something new, in their order: a digest is open until it has a status other than `failed`."""
    seen: dict[str, Status] = {}
    for record in records:
        if seen.get(record.digest, known.get(record.digest, "failed")) == "failed":
            seen[record.digest] = record.status
            yield record


def open_store(path: str | os.PathLike[str], mode: Mode = "r", *, kind: str | None = None) -> Sink:
    """The store at `path`; its kind is told by the suffix (`.lance`, `.parquet`, `.jsonl`) unless given.

    `"w"` makes it where there is none, and mends what a killed writer left. Raises StoreUnreadable, StoreLocked,
    StoreFull, and ConfigError for a suffix or mode that is not known.
    """
    if mode not in ("r", "w"):
        raise ConfigError("no such mode", given=repr(mode), allowed="'r' or 'w'")
    place = os.fspath(path)
    if "://" in place:
        raise ConfigError(
            "a store needs a local file system (locks, fsync)", given=repr(place), remedy="a local path, then export"
        )
    name = kind or os.path.splitext(place.rstrip("/"))[1].removeprefix(".")  # noqa: PTH122  # a name, not a path
    if kind is None and name not in SINKS.names():
        raise ConfigError(
            "cannot tell the kind of store", given=repr(place), allowed="a name that ends in .lance, .parquet or .jsonl"
        )
    sink: Sink = SINKS.load(name)(place, mode)
    return sink
