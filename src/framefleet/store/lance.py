"""The Lance store: a Lance dataset that any Lance reader opens, with our own files in its folder `_framefleet`.

    captions.lance/
      data/ _versions/ _indices/ ...     the dataset, indexed by digest, status and words of the text
      _framefleet/journal/*.log          acknowledged, not yet folded
      _framefleet/writer.lock            the one writer
      _framefleet/readers.lock           readers' mark: old versions stay while there is one
      _framefleet/vectors-*.lance        what search adds

Lance syncs nothing, so we do: data files before the commit that names them, the manifest before the journal is
cleared. Should a power cut leave the newest manifest broken, what it held is still in the journal, or was a mere
rearrangement: the writer sets it aside and goes on from the version before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
from lance.fragment import write_fragments
from lance.optimize import Compaction

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import StoreError, StoreUnreadable
from framefleet.store.disk import store_errors, sync_directory, sync_newer
from framefleet.store.journal import Journal
from framefleet.store.journaled import FOLD_ROWS, JournaledSink
from framefleet.store.lock import Lock, Presence, is_nobody_present
from framefleet.store.migrate import check_version, migrate
from framefleet.store.schema import arrow_schema, to_records, to_table
from framefleet.store.sink import Mode
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where, quoted

_log = logging.getLogger(__name__)

HOME = "_framefleet"
TEXT_INDEX = "text_idx"
FRAGMENT_ROWS = 1 << 18
"""Smaller fragments are joined up to this."""
_FEW_FRAGMENTS = 8
_TIDY_EVERY = 64
"""Folds. With 2000 rows each: every row is rewritten twice or so on its way into a full fragment."""
_OLD_VERSIONS = timedelta(hours=1)
_BATCH_ROWS = 1024


class LanceStore(JournaledSink):
    """The Sink over Lance, with what search and export need besides."""

    def __init__(self, table: LanceTable, *parts: Any, writable: bool, fold_rows: int) -> None:
        self.path = table.root
        self._lance = table
        super().__init__(table, *parts, writable=writable, fold_rows=fold_rows)

    @property
    def dataset(self) -> Any:
        """The `lance.LanceDataset` as last folded or opened; `tail()` holds what came since."""
        return self._lance.dataset


def open_lance(path: str, mode: Mode, *, fold_rows: int = FOLD_ROWS) -> LanceStore:
    """See `open_store`."""
    root, writable = Path(path), mode == "w"
    journal = Journal(root / HOME / "journal")
    with ExitStack() as opening:
        if writable:
            _begin(root)
            opening.enter_context(Lock(root / HOME / "writer.lock"))
        else:
            _check_is_store(root)
            opening.enter_context(closing(Presence(root / HOME / "readers.lock")))
        acknowledged = list(journal.read())
        table = LanceTable(root, _open_or_create(root) if writable else _open(root))
        check_version(table.dataset.schema, path)
        return LanceStore(table, journal, acknowledged, opening.pop_all(), writable=writable, fold_rows=fold_rows)


class LanceTable:
    """Folded records as a Lance dataset."""

    def __init__(self, root: Path, dataset: Any) -> None:
        self.root = root
        self.dataset = dataset
        self._num_folds = 0

    def statuses(self, digests: Iterable[str] | None = None) -> Statuses:
        """See Table."""
        wanted = None if digests is None else ", ".join(map(quoted, digests))
        if wanted == "":
            return Statuses()
        rows = self.dataset.scanner(
            columns=["digest", "status"], filter=f"digest IN ({wanted})" if wanted else None, scan_in_order=True
        )
        with store_errors(self.root):
            return Statuses((batch.column("digest"), batch.column("status")) for batch in rows.to_batches())

    def scan(self, where: Where | None) -> Iterator[CaptionRecord]:
        """See Table."""
        return _records(self.dataset, where, self.root)

    def fold(self, records: list[CaptionRecord], replaced: set[str]) -> None:
        """See Table. One commit."""
        rows, started_ns = _shaped(to_table(records), self.dataset.schema), time.time_ns()
        with store_errors(self.root):
            change = self._replacing(rows, replaced)
            self._sync(started_ns)
            self.dataset = lance.LanceDataset.commit(self.dataset, change, read_version=self.dataset.version)
            self._sync(started_ns)
        self._num_folds += 1

    def tidy(self, *, closing: bool) -> None:
        """See Table. What fails here costs speed only, so it is told and put off."""
        due = self._num_folds > 0 and (closing or self._num_folds % _TIDY_EVERY == 0)
        if not due:
            return
        try:
            with store_errors(self.root):
                if is_compaction_due([fragment.physical_rows for fragment in self.dataset.get_fragments()]):
                    self._compact()
                self.index(closing=closing)
                self._clean()
        except StoreError as error:
            _log.warning("joining and indexing put off: %s", error)

    def index(self, *, closing: bool) -> None:
        """Make the indices if they are not there, and take new rows into them where it is worth it."""
        started_ns = time.time_ns()
        make_indices(self.dataset)
        try:
            counts = self.dataset.stats.index_stats(TEXT_INDEX)
            if is_index_due(counts["num_indexed_rows"], counts["num_unindexed_rows"], closing=closing):
                self.dataset.optimize.optimize_indices()
        except (OSError, ValueError, RuntimeError) as error:
            _log.warning("%s: an index is broken (%s); all are made anew", self.root, error)
            make_indices(self.dataset, anew=True)
        self._sync(started_ns)

    def _clean(self) -> None:
        """Old versions go; those that a reader may still be reading stay for an hour."""
        alone = is_nobody_present(self.root / HOME / "readers.lock")
        self.dataset.cleanup_old_versions(older_than=timedelta(0) if alone else _OLD_VERSIONS, delete_unverified=alone)

    def _replacing(self, rows: Any, replaced: set[str]) -> Any:
        """New rows in, old rows out, in one commit. (`merge_insert` does that too, but forgets the rows' order.)"""
        written = write_fragments(rows, self.dataset)
        if not replaced:
            return lance.LanceOperation.Append(written)
        out = f"digest IN ({', '.join(map(quoted, sorted(replaced)))})"
        places = self.dataset.scanner(columns=[], filter=out, with_row_address=True).to_table().column("_rowaddr")
        touched = sorted({place >> 32 for place in places.to_pylist()})
        left = {number: self.dataset.get_fragment(number).delete(out) for number in touched}
        return lance.LanceOperation.Update(
            removed_fragment_ids=[number for number, fragment in left.items() if fragment is None],
            updated_fragments=[fragment for fragment in left.values() if fragment is not None],
            new_fragments=written,
        )

    def _compact(self) -> None:
        started_ns = time.time_ns()
        plan = Compaction.plan(self.dataset, {"target_rows_per_fragment": FRAGMENT_ROWS})
        rewritten = [task.execute(self.dataset) for task in plan.tasks]
        self._sync(started_ns)
        Compaction.commit(self.dataset, rewritten)
        self._sync(started_ns)

    def _sync(self, since_ns: int) -> None:
        sync_newer(self.root, since_ns, passing_over=HOME)


def is_compaction_due(fragment_rows: list[int]) -> bool:
    """Whether there are so many small fragments that joining them pays."""
    return sum(rows < FRAGMENT_ROWS for rows in fragment_rows) >= _FEW_FRAGMENTS


def is_index_due(num_indexed: int, num_unindexed: int, *, closing: bool) -> bool:
    """Whether so many rows are outside the index (they are found all the same, by reading) that adding them pays.

    Adding rewrites the index. While a run goes on that waits for half as many rows again, so that all the rewriting
    together costs three times the index, whatever the number of rows.
    """
    return num_unindexed > (max(1_000, num_indexed // 20) if closing else max(50_000, num_indexed // 2))


def make_indices(dataset: Any, *, anew: bool = False) -> None:
    """The indices that find a digest, a status and words, if they are not there; `anew`: even so.

    Words are told apart by Unicode's rules (ICU), so text without spaces is searchable too; stop words are kept, so
    that a query of nothing else still means something, and so are positions, for phrases.
    """
    present = set() if anew else {index.name for index in dataset.describe_indices()}
    if "digest_idx" not in present:
        dataset.create_scalar_index("digest", "BTREE", name="digest_idx")
    if "status_idx" not in present:
        dataset.create_scalar_index("status", "BITMAP", name="status_idx")
    if TEXT_INDEX not in present:
        dataset.create_scalar_index(
            "text", "INVERTED", name=TEXT_INDEX, base_tokenizer="icu", with_position=True, remove_stop_words=False
        )


def _records(dataset: Any, where: Where | None, root: Path) -> Iterator[CaptionRecord]:
    sql = where.sql() if where else None
    with closing(Presence(root / HOME / "readers.lock")), store_errors(root):
        for batch in dataset.scanner(filter=sql, scan_in_order=True, batch_size=_BATCH_ROWS).to_batches():
            yield from to_records(batch)


def sorted_records(dataset: Any, where: Where | None) -> Iterator[CaptionRecord]:
    """By clip, start and digest."""
    order = ["clip", "start_s", "digest"]
    sql = where.sql() if where else None
    with store_errors(Path(dataset.uri)):
        for batch in dataset.scanner(filter=sql, order_by=order, batch_size=_BATCH_ROWS).to_batches():
            yield from to_records(batch)


def _shaped(rows: Any, schema: Any) -> Any:
    """The rows with the dataset's columns in its order; columns somebody added to the dataset are null in them."""
    import pyarrow as pa

    columns = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _begin(root: Path) -> None:
    """Our folder in a place that is free or already a store."""
    is_ours = root.is_dir() and (_is_dataset(root) or (root / HOME).is_dir() or not any(root.iterdir()))
    if not is_ours and (root.exists() or root.is_symlink()):
        raise StoreUnreadable("something else is there", given=repr(str(root)), remedy="another --output")
    with store_errors(root):
        (root / HOME).mkdir(parents=True, exist_ok=True)


def _check_is_store(root: Path) -> None:
    if not _is_dataset(root):
        raise StoreUnreadable("no store here", given=repr(str(root)), remedy="the path that `caption` wrote to")


def _is_dataset(root: Path) -> bool:
    return (root / "_versions").is_dir()


def _open_or_create(root: Path) -> Any:
    started_ns = time.time_ns()
    with store_errors(root):
        if _is_dataset(root):
            dataset = _open_or_step_back(root)
            migrate(dataset, str(root))
        else:
            dataset = lance.write_dataset(arrow_schema().empty_table(), str(root))
        make_indices(dataset)
        sync_newer(root, started_ns, passing_over=HOME)
        sync_directory(root.parent)
    return dataset


def _open(root: Path) -> Any:
    try:
        return lance.dataset(str(root))
    except (OSError, ValueError) as error:
        raise StoreUnreadable(
            "the store cannot be opened",
            given=f"{str(root)!r} ({str(error).splitlines()[0]})",
            remedy="open it for writing once, which mends what a power cut can break",
        ) from error


def _open_or_step_back(root: Path) -> Any:
    try:
        return _open(root)
    except StoreUnreadable:
        manifests = sorted((root / "_versions").glob("*.manifest"))  # newest first: names count down
        if len(manifests) < 2:
            raise
        aside = manifests[0].with_suffix(".broken")
        manifests[0].rename(aside)
        try:
            dataset = _open(root)
        except StoreUnreadable:
            aside.rename(manifests[0])
            raise
        _log.warning("%s: the newest version was broken and is set aside as %s", root, aside.name)
        return dataset
