"""The ledger: a small SQLite file next to the store that spares a resumed run from reading every clip again.

It holds what can be worked out anew and nothing else: the content digest of a place while its stamp (size, time of
change and inode; a remote object's ETag) stays the same, the windows of a content, and the rates of earlier runs. The
store alone says what is done; losing the ledger costs time, never a caption. A broken one is set aside and begun anew.

It also keeps a second writer out: SQLite's exclusive lock on it ends with the process, however that ends.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from framefleet.errors import StoreError, StoreLocked
from framefleet.units import NS_PER_S, Span

_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS places (place BLOB PRIMARY KEY, stamp TEXT NOT NULL, content BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS places_by_content ON places (content);
CREATE TABLE IF NOT EXISTS windows (
    content BLOB NOT NULL, rule TEXT NOT NULL, spans BLOB NOT NULL, PRIMARY KEY (content, rule)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (started_at TEXT NOT NULL, run BLOB NOT NULL);
"""
_VERSION = 1
_SETTLED_NS = 2 * NS_PER_S
"""A file changed within the last two seconds may change again without its stamp showing it (coarse clocks)."""
_COMMIT_EVERY_S = 2.0


class RunRates(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished run measured, for later estimates."""

    model: str
    engine: str
    windows: int
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    decode_s: float
    """Summed over the windows."""
    caption_s: float
    """Summed over the windows."""


class Ledger:
    """Open with `Ledger.beside(store)`; close it, or use it as a context manager. One thread only."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._database = _open(path)
        self._committed_s = time.monotonic()

    @classmethod
    def beside(cls, store: str) -> Self:
        """The ledger of a store. A remote store (a URL) gets one in memory, which lasts for this run only."""
        if "://" in store:
            _log.warning("no ledger beside the remote store %s: a resumed run must read every clip again", store)
            return cls(":memory:")
        return cls(ledger_path(store))

    def content_of(self, place: str, stamp: str) -> str | None:
        """The content digest (hex) known for this place while it bore this stamp."""
        row = self._row("SELECT stamp, content FROM places WHERE place = ?", os.fsencode(place))
        return row[1].hex() if row and row[0] == stamp else None

    def remember_content(self, place: str, stamp: str, content_digest: str) -> None:
        """Keep it, unless the file is so fresh that it may yet change under the same stamp."""
        if is_settled(stamp):
            row = (os.fsencode(place), stamp, bytes.fromhex(content_digest))
            self._write("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", row)

    def places_of(self, content_digest: str) -> list[str]:
        """Every place known to hold (or to have held) this content; at most 16."""
        found = self._database.execute(
            "SELECT place FROM places WHERE content = ? LIMIT 16", (bytes.fromhex(content_digest),)
        )
        return [os.fsdecode(place) for (place,) in found]

    def windows_of(self, content_digest: str, rule: str) -> list[Span] | None:
        """The windows that this rule cut this content into."""
        row = self._row("SELECT spans FROM windows WHERE content = ? AND rule = ?", bytes.fromhex(content_digest), rule)
        if row is None:
            return None
        return [Span(*edges) for edges in msgspec.json.decode(row[0], type=list[tuple[int, int]])]

    def remember_windows(self, content_digest: str, rule: str, spans: list[Span]) -> None:
        """Keep them."""
        edges = msgspec.json.encode([(s.start_ns, s.end_ns) for s in spans])
        self._write("INSERT OR REPLACE INTO windows VALUES (?, ?, ?)", (bytes.fromhex(content_digest), rule, edges))

    def remember_run(self, started_at: str, rates: RunRates) -> None:
        """Keep a run's rates."""
        self._write("INSERT INTO runs VALUES (?, ?)", (started_at, msgspec.json.encode(rates)))

    def runs(self) -> Iterator[RunRates]:
        """Earlier runs, newest first."""
        for (run,) in self._database.execute("SELECT run FROM runs ORDER BY rowid DESC"):
            yield msgspec.json.decode(run, type=RunRates)

    def close(self) -> None:
        """Write what is pending and let go of the lock."""
        self._database.commit()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _row(self, query: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._database.execute(query, values).fetchone()
        return row

    def _write(self, statement: str, row: tuple[object, ...]) -> None:
        self._database.execute(statement, row)
        if time.monotonic() - self._committed_s > _COMMIT_EVERY_S:  # losing two seconds of it costs two seconds
            self._database.commit()
            self._committed_s = time.monotonic()


def ledger_path(store: str) -> str:
    """`captions.lance` -> `captions.lance.ledger`, beside it."""
    return str(Path(store)) + ".ledger"


def stamp_of(place: str | os.PathLike[str]) -> str:
    """Size, time of change and inode of a local file: what changes when its content does. Raises OSError."""
    stat = Path(place).stat()
    return f"file:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"


def is_settled(stamp: str) -> bool:
    """Whether a stamp may be trusted later. Not when the file changed just now: clocks of file systems are coarse."""
    kind, _, rest = stamp.partition(":")
    if kind != "file":
        return bool(kind)
    return time.time_ns() - int(rest.split(":")[1]) > _SETTLED_NS


def _open(path: str) -> sqlite3.Connection:
    if path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        return _connect(path)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StoreLocked(
                "another run is writing to this store", given=repr(path), remedy="wait for it, or name another --output"
            ) from error
        raise StoreError("cannot open the ledger", given=f"{path!r} ({error})", remedy="another --output") from error
    except sqlite3.DatabaseError as error:
        _log.warning("the ledger %s cannot be used (%s); set aside, clips will be read anew", path, error)
        _set_aside(path)
        return _connect(path)


def _set_aside(path: str) -> None:
    mark = f".broken-{time.time_ns()}"
    for part in (path, f"{path}-wal", f"{path}-shm"):
        if Path(part).exists():
            Path(part).rename(part + mark)


def _connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=0.2, isolation_level="DEFERRED", check_same_thread=True)
    try:
        # Exclusive first: with it WAL needs no shared memory, so the ledger may lie on a network file system.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        _check_version(database.execute("PRAGMA user_version").fetchone()[0])
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version = {_VERSION}")
        database.commit()
    except BaseException:
        database.close()
        raise
    return database


def _check_version(found: int) -> None:
    if found not in (0, _VERSION):
        raise sqlite3.DatabaseError(f"version {found}, not {_VERSION}")
