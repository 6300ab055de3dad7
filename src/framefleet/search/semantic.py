"""Search by meaning: the captions whose vectors point most nearly where the query's does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from framefleet.search.hit import HIT_COLUMNS, Hit, best, hits_of
from framefleet.search.query import Query
from framefleet.search.vectors import Embedder
from framefleet.store.disk import store_errors
from framefleet.store.where import Where

_NUM_PROBES = 20
_REFINE = 5
"""So many times the limit are compared again by their exact vectors: what the index rounds off is made good."""


def search_semantic(vectors: Any, embedder: Embedder, query: Query, *, where: Where, limit: int) -> list[Hit]:
    """The best `limit` of the vectors' dataset; scores are cosines."""
    if not query.text:
        return []
    nearest = {
        "column": "vector",
        "q": embedder.embed([query.text])[0],
        "k": limit,
        "metric": "cosine",
        "nprobes": _NUM_PROBES,
        "refine_factor": _REFINE,
    }
    with store_errors(Path(vectors.uri)):
        rows = vectors.scanner(
            columns=[*HIT_COLUMNS, "_distance"],
            nearest=nearest,
            filter=where.sql(),
            prefilter=True,
            disable_scoring_autoprojection=True,
        ).to_table()
    return best(hits_of(rows, (1.0 - distance for distance in rows.column("_distance").to_pylist())), limit)
