"""Full-text search in Lance: BM25 over the words of captions, phrases as they stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
from lance.query import BooleanQuery, MatchQuery, Occur, PhraseQuery

from framefleet.engine.captioner import CaptionRecord
from framefleet.search.hit import HIT_COLUMNS, Hit, best, hits_of
from framefleet.search.query import Query, has_words
from framefleet.store.disk import store_errors
from framefleet.store.lance import make_indices
from framefleet.store.schema import to_table
from framefleet.store.where import Where


def lance_query(query: Query) -> Any:
    """Every phrase must occur; words only raise the score where there is a phrase, else any of them finds."""
    words = [MatchQuery(query.words, "text")] if has_words(query.words) else []
    if not query.phrases:
        return words[0]
    musts = [(Occur.MUST, PhraseQuery(phrase, "text")) for phrase in query.phrases]
    return BooleanQuery(musts + [(Occur.SHOULD, word) for word in words])


def search_text(datasets: Sequence[Any], query: Query, *, where: Where, limit: int) -> list[Hit]:
    """The best `limit` hits over the datasets. Rows that are in no index yet are found too, by reading them.

    Each dataset weighs words by its own frequencies; the second one here is the handful of rows not folded yet.
    """
    if query.is_empty:
        return []
    return best((hit for dataset in datasets for hit in _search(dataset, query, where, limit)), limit)


def tail_dataset(records: Sequence[CaptionRecord]) -> Any:
    """Records that are not in the store's dataset yet, as one in memory with the same index."""
    dataset = lance.write_dataset(to_table(records), "memory://")
    make_indices(dataset)
    return dataset


def _search(dataset: Any, query: Query, where: Where, limit: int) -> list[Hit]:
    with store_errors(Path(dataset.uri)):
        rows = dataset.scanner(
            columns=[*HIT_COLUMNS, "_score"],
            full_text_query=lance_query(query),
            filter=where.sql(),
            prefilter=True,
            limit=limit,
            disable_scoring_autoprojection=True,
        ).to_table()
    return hits_of(rows, rows.column("_score").to_pylist())
