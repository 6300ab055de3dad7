"""One way in to the three ways of searching."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

from framefleet.errors import ConfigError
from framefleet.search.hit import Hit, with_default_status
from framefleet.search.query import Query, fuse, parse_query
from framefleet.search.semantic import search_semantic
from framefleet.search.text import search_text, tail_dataset
from framefleet.search.vectors import Embedder, OnProgress, open_vectors
from framefleet.store.lance import LanceStore
from framefleet.store.sink import Sink, open_store
from framefleet.store.where import Where

SearchMode = Literal["text", "semantic", "hybrid"]
_FUSED_DEPTH = 10
"""Hybrid ranks so many times the limit in each of its two lists (at least 100) before it fuses them."""


class Searcher:
    """Many searches over one view of a store: what is acknowledged when it is made. Any number of threads."""

    def __init__(self, store: Sink, *, embedder: Embedder | None = None, on_progress: OnProgress | None = None) -> None:
        if not isinstance(store, LanceStore):
            raise ConfigError(
                "only Lance stores can be searched", given=type(store).__name__, remedy="caption into a .lance store"
            )
        self._store = store
        self._embedder_given = embedder
        self._on_progress = on_progress
        self._tail = list(store.tail().values())
        self._dataset = store.dataset

    def search(
        self, query: str, *, mode: SearchMode = "text", limit: int = 10, where: Where | None = None
    ) -> list[Hit]:
        """The best `limit` hits, best first. A query without words, and one that matches nothing, give none.

        Raises ConfigError (mode, limit, query too long), MissingLibrary (semantic, hybrid), StoreLocked, StoreFull.
        """
        if mode not in get_args(SearchMode):
            raise ConfigError("no such search mode", given=repr(mode), allowed=", ".join(get_args(SearchMode)))
        if limit < 1:
            raise ConfigError("limit is too small", given=str(limit), allowed="1 or more")
        parsed, where = parse_query(query), with_default_status(where)
        if parsed.is_empty:
            return []
        if mode == "text":
            return self._by_text(parsed, where, limit)
        if mode == "semantic":
            return self._by_meaning(parsed, where, limit)
        return self._by_both(parsed, where, limit)

    def _by_text(self, query: Query, where: Where, limit: int) -> list[Hit]:
        return search_text(self._text_datasets, query, where=where, limit=limit)

    def _by_meaning(self, query: Query, where: Where, limit: int) -> list[Hit]:
        return search_semantic(self.vectors, self.embedder, query, where=where, limit=limit)

    def _by_both(self, query: Query, where: Where, limit: int) -> list[Hit]:
        depth = max(100, _FUSED_DEPTH * limit)
        rankings = [self._by_text(query, where, depth), self._by_meaning(query, where, depth)]
        by_digest = {hit.digest: hit for ranking in rankings for hit in ranking}
        fused = fuse([[hit.digest for hit in ranking] for ranking in rankings])
        return [msgspec.structs.replace(by_digest[digest], score=score) for digest, score in fused[:limit]]

    @cached_property
    def _text_datasets(self) -> list[Any]:
        return [self._dataset, tail_dataset(self._tail)] if self._tail else [self._dataset]

    @cached_property
    def embedder(self) -> Embedder:
        """The model of semantic search, loaded when first needed. Raises MissingLibrary."""
        if self._embedder_given is not None:
            return self._embedder_given
        from framefleet.search.minilm import MiniLM

        return MiniLM()

    @cached_property
    def vectors(self) -> Any:
        """The dataset of vectors, made complete when first needed."""
        return open_vectors(self._store, self.embedder, self._on_progress)


def search(
    store: Sink | str | os.PathLike[str],
    query: str,
    *,
    mode: SearchMode = "text",
    limit: int = 10,
    where: Where | None = None,
    embedder: Embedder | None = None,
    on_progress: OnProgress | None = None,
) -> list[Hit]:
    """One search of a store, open or at a path. See Searcher, which is quicker for several."""
    with open_store(store) if isinstance(store, (str, os.PathLike)) else nullcontext(store) as opened:
        return Searcher(opened, embedder=embedder, on_progress=on_progress).search(
            query, mode=mode, limit=limit, where=where
        )
