"""The Parquet store: a folder of numbered parts, each a fold of the journal, that any Parquet reader opens.

    captions.parquet/part-00000001.parquet ...      captions.parquet/_framefleet/journal/, writer.lock

A failed row whose digest came again is taken out of its part by replacing the whole part, after the new one is on disk;
what a crash leaves in between is passed over by readers and taken out by the next writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import StoreUnreadable
from framefleet.store.disk import store_errors, sync_directory, whole_file
from framefleet.store.journal import Journal
from framefleet.store.journaled import JournaledSink
from framefleet.store.lock import Lock
from framefleet.store.migrate import check_version
from framefleet.store.schema import to_records, to_table
from framefleet.store.sink import Mode
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where

HOME = "_framefleet"
PART_ROWS = 20_000
_KEYS = ["digest", "status"]
_BATCH_ROWS = 1024


def open_parquet(path: str, mode: Mode, *, fold_rows: int = PART_ROWS) -> JournaledSink:
    """See `open_store`."""
    root, writable = Path(path), mode == "w"
    journal = Journal(root / HOME / "journal")
    with ExitStack() as opening:
        if writable:
            _begin(root)
            opening.enter_context(Lock(root / HOME / "writer.lock"))
        elif not (root / HOME).is_dir():
            raise StoreUnreadable("no store here", given=repr(path), remedy="the path that `caption` wrote to")
        acknowledged = list(journal.read())
        table = ParquetTable(root)
        if writable:
            table.drop_stale()
        return JournaledSink(table, journal, acknowledged, opening.pop_all(), writable=writable, fold_rows=fold_rows)


class ParquetTable:
    """Folded records as Parquet parts. Raises StoreUnreadable for a part that is not one of ours."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def statuses(self, digests: Iterable[str] | None = None) -> Statuses:
        """See Table."""
        wanted = None if digests is None else pa.array(list(digests), pa.string())
        with closing(self._open()) as parts:
            keys = [part.read(_KEYS) for part in parts.files.values()]
        if wanted is not None:
            keys = [rows.filter(pc.is_in(rows.column("digest"), wanted)) for rows in keys]
        return Statuses((rows.column("digest"), rows.column("status")) for rows in keys)  # of equals the later wins

    def scan(self, where: Where | None) -> Iterator[CaptionRecord]:
        """See Table."""
        return _records(self._open(), where)

    def fold(self, records: list[CaptionRecord], replaced: set[str]) -> None:
        """See Table. The new part is the commit; taking out the replaced rows can be done again."""
        numbers = [int(path.stem.removeprefix("part-")) for path in self._paths()]
        self._write(self.root / f"part-{max(numbers, default=0) + 1:08d}.parquet", to_table(records))
        if replaced:
            self.drop_stale()

    def tidy(self, *, closing: bool) -> None:
        """See Table. Nothing to do: a part is a fold, and folds are large."""

    def drop_stale(self) -> None:
        """Take the failed rows out whose digest came again."""
        with closing(self._open()) as parts:
            for path, digests in stale_rows(parts).items():
                rows = parts.files[path].read()
                kept = rows.filter(pc.invert(pc.is_in(rows.column("digest"), pa.array(sorted(digests)))))
                if len(kept):
                    self._write(path, kept)
                else:
                    path.unlink()
                    sync_directory(self.root)

    def _write(self, path: Path, rows: Any) -> None:
        with store_errors(path), whole_file(path) as temporary:
            pq.write_table(rows, temporary, compression="zstd")

    def _paths(self) -> list[Path]:
        return sorted(self.root.glob("part-*.parquet"))

    def _open(self) -> Parts:
        while True:  # a part added while we were opening may stand for rows just taken out of another
            paths = self._paths()
            parts = Parts(paths)
            if paths == self._paths() and len(parts.files) == len(paths):
                return parts
            parts.close()


class Parts:
    """Every part, opened: a snapshot that a writer's replacing of files does not reach."""

    def __init__(self, paths: list[Path]) -> None:
        self.files: dict[Path, Any] = {}
        for path in paths:
            try:
                self.files[path] = pq.ParquetFile(path)
            except FileNotFoundError:
                continue
            except (OSError, pa.ArrowException) as error:
                self.close()
                raise StoreUnreadable("a part cannot be read", given=f"{str(path)!r} ({error})") from error
            check_version(self.files[path].schema_arrow, str(path))

    def close(self) -> None:
        """Let go of the files."""
        for file in self.files.values():
            file.close()


def stale_rows(parts: Parts) -> dict[Path, set[str]]:
    """By part: the digests of failed rows that came again in a later part."""
    stale: dict[Path, set[str]] = {}
    failed: dict[str, Path] = {}
    for path, file in parts.files.items():
        rows = file.read(_KEYS)
        again = rows.filter(pc.is_in(rows.column("digest"), pa.array(list(failed), pa.string()))).column("digest")
        for digest in again.to_pylist():
            stale.setdefault(failed.pop(digest), set()).add(digest)
        for digest in rows.filter(pc.equal(rows.column("status"), "failed")).column("digest").to_pylist():
            failed[digest] = path
    return stale


def _records(parts: Parts, where: Where | None) -> Iterator[CaptionRecord]:
    with closing(parts):
        stale = stale_rows(parts)
        for path, file in parts.files.items():
            for batch in file.iter_batches(_BATCH_ROWS):
                for record in to_records(batch):
                    if record.digest not in stale.get(path, ()) and (where is None or where(record)):
                        yield record


def _begin(root: Path) -> None:
    is_free = not root.exists() or (root.is_dir() and ((root / HOME).is_dir() or not any(root.iterdir())))
    if not is_free:
        raise StoreUnreadable("something else is there", given=repr(str(root)), remedy="another --output")
    with store_errors(root):
        (root / HOME).mkdir(parents=True, exist_ok=True)
