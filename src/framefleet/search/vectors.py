"""The vectors of captions: a Lance dataset of its own beside the captions, one for each embedding model.

    captions.lance/_framefleet/vectors-all-MiniLM-L6-v2.lance

It has its own writer's lock, so it can be filled while captions still come in, and it repeats the columns that answers
and filters need, so a search reads nothing else. A record that is not `failed` never changes, so neither do its
columns here: vectors are only ever added. All of it can be worked out anew, so what is broken is simply begun again.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from framefleet.engine.captioner import CaptionRecord
from framefleet.search.hit import HIT_COLUMNS
from framefleet.store.disk import store_errors
from framefleet.store.lance import HOME, LanceStore
from framefleet.store.lock import Lock
from framefleet.store.schema import arrow_schema, to_table
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where

_log = logging.getLogger(__name__)

INDEX_ROWS = 100_000
"""From so many rows on an index pays; below, comparing all of them takes some ten milliseconds and misses nothing."""
_KEPT_COLUMNS = [*HIT_COLUMNS, "created_at"]
_COMMIT_ROWS = 8_192
_EMBED_ROWS = 512
_FRAGMENT_ROWS = 1 << 17
_WAIT_S = 600.0
"""For another process that fills the same vectors: it does our work."""
_EVERY_FINAL = Where(status=("ok", "truncated", "rejected"))

OnProgress = Callable[[int, int], None]
"""Called with (done, of how many)."""


class Embedder(Protocol):
    """Turns text into vectors of length 1."""

    name: str
    """Of the model, with its version: vectors of different names are never mixed."""
    dim: int

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """`[N, dim] float32`."""
        ...


def open_vectors(store: LanceStore, embedder: Embedder, on_progress: OnProgress | None = None) -> Any:
    """The dataset with a vector for every final record of the store; those that lack one are embedded first.

    Raises StoreLocked when another process fills it for longer than some minutes, StoreFull, MissingLibrary.
    """
    path = store.path / HOME / f"vectors-{re.sub('[^A-Za-z0-9._-]', '_', embedder.name)}.lance"
    num_wanted = _num_final(store)
    dataset = _open(path, embedder.dim)
    if dataset is None or dataset.count_rows() < num_wanted:
        with store_errors(path), Lock(path.with_suffix(".lock"), wait_s=_WAIT_S):
            dataset = _open(path, embedder.dim) or _begin(path, embedder.dim)
            _fill(dataset, store, embedder, num_wanted, on_progress)
            _tidy(dataset)
    return dataset


def vector_schema(dim: int) -> pa.Schema:
    """Columns of the dataset."""
    return pa.schema(
        [*(arrow_schema().field(name) for name in _KEPT_COLUMNS), pa.field("vector", pa.list_(pa.float32(), dim))]
    )


def _num_final(store: LanceStore) -> int:
    """Records with a status other than failed. (The store's own count would read every digest.)"""
    in_tail = sum(_EVERY_FINAL(record) for record in store.tail().values())
    return int(store.dataset.count_rows(_EVERY_FINAL.sql())) + in_tail


def _open(path: Path, dim: int) -> Any:
    """The dataset, or None if there is none that can be used."""
    if not (path / "_versions").is_dir():
        return None
    try:
        dataset = lance.dataset(str(path))
    except (OSError, ValueError) as error:
        _log.warning("the vectors in %s cannot be opened (%s); they are worked out anew", path, error)
        return None
    return dataset if dataset.schema.equals(vector_schema(dim)) else None


def _begin(path: Path, dim: int) -> Any:
    shutil.rmtree(path, ignore_errors=True)
    dataset = lance.write_dataset(vector_schema(dim).empty_table(), str(path))
    dataset.create_scalar_index("status", "BITMAP", name="status_idx")
    return dataset


def _fill(dataset: Any, store: LanceStore, embedder: Embedder, num_wanted: int, on_progress: OnProgress | None) -> None:
    there = _digests(dataset)
    missing = (record for record in store.records(_EVERY_FINAL) if record.digest not in there)
    num_done = len(there)
    while group := list(islice(missing, _COMMIT_ROWS)):
        vectors = []
        for at in range(0, len(group), _EMBED_ROWS):
            vectors.append(embedder.embed([record.text for record in group[at : at + _EMBED_ROWS]]))
            num_done += len(vectors[-1])
            if on_progress:
                on_progress(num_done, num_wanted)
        dataset.insert(vector_rows(group, np.concatenate(vectors)))


def vector_rows(records: Sequence[CaptionRecord], vectors: npt.NDArray[np.float32]) -> pa.Table:
    """Rows of the dataset. A caption without text has no vector: it is near nothing."""
    dim = vectors.shape[1]
    blank = pa.array([not record.text.strip() for record in records])
    column = pa.FixedSizeListArray.from_arrays(np.ascontiguousarray(vectors, np.float32).ravel(), dim, mask=blank)
    kept = to_table(records).select(_KEPT_COLUMNS)
    return pa.table([*kept.columns, column], schema=vector_schema(dim))


def _digests(dataset: Any) -> Statuses:
    rows: Iterable[Any] = dataset.scanner(columns=["digest", "status"]).to_batches()
    return Statuses((batch.column("digest"), batch.column("status")) for batch in rows)


def _tidy(dataset: Any) -> None:
    """Few files, few versions, and an index once it pays."""
    if len(dataset.get_fragments()) >= 8:
        dataset.optimize.compact_files(target_rows_per_fragment=_FRAGMENT_ROWS)
    _index(dataset)
    dataset.cleanup_old_versions(older_than=timedelta(hours=1))


def _index(dataset: Any) -> None:
    num_rows = dataset.count_rows()
    if num_rows < INDEX_ROWS:
        return
    if "vector_idx" not in {index.name for index in dataset.describe_indices()}:
        dataset.create_index("vector", "IVF_SQ", name="vector_idx", metric="cosine")
    if any(num_rows - index.num_rows_indexed > num_rows // 20 for index in dataset.describe_indices()):
        dataset.optimize.optimize_indices()
