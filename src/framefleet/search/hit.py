"""What a search gives back, and the columns it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from framefleet.engine.captioner import Status
from framefleet.store.where import Where

HIT_COLUMNS = ["digest", "clip", "start_s", "end_s", "text", "model", "prompt", "status"]
FOUND_BY_DEFAULT: tuple[Status, ...] = ("ok", "truncated")
"""A rejected answer is kept, but it is not what was asked for."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One window that was found."""

    clip: str
    start_s: float
    end_s: float
    text: str
    score: float
    """Higher is better. BM25 for text, cosine similarity for semantic, reciprocal rank for hybrid: comparable within
    one answer only."""
    digest: str
    model: str
    prompt: str
    status: Status


def hits_of(rows: Any, scores: Iterable[float]) -> list[Hit]:
    """Rows with HIT_COLUMNS (an Arrow table) and their scores as hits."""
    columns = rows.select(HIT_COLUMNS).to_pylist()
    return [Hit(**row, score=score) for row, score in zip(columns, scores, strict=True)]


def best(hits: Iterable[Hit], limit: int) -> list[Hit]:
    """The best first; equals in the order of clips, so that an answer does not depend on chance."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.clip, hit.start_s, hit.digest))[:limit]


def with_default_status(where: Where | None) -> Where:
    """The filter, with FOUND_BY_DEFAULT where it names no status."""
    where = where or Where()
    return where if where.status else msgspec.structs.replace(where, status=FOUND_BY_DEFAULT)
