"""The requests that ended last, for figures of a stretch of time; Prometheus's buckets are too coarse to compare by."""

from __future__ import annotations

import time
from collections import deque

import msgspec
import numpy as np

MAX_KEPT = 20_000


class EndedRequest(msgspec.Struct, frozen=True):
    """One."""

    ended_at: float
    """Seconds since the epoch."""
    replica: str
    is_failure: bool
    """5xx, cut off, or timed out; what the client did wrong is none, nor is leaving."""
    is_answered: bool
    first_byte_s: float
    total_s: float


class RequestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of a stretch of time. Seconds; 0 where nothing was answered."""

    num_requests: int
    num_failures: int
    error_rate: float
    answers_per_s: float
    p50_s: float
    p95_s: float
    first_byte_p95_s: float


class RecentRequests:
    """Of one proxy."""

    def __init__(self) -> None:
        self._ended: deque[EndedRequest] = deque(maxlen=MAX_KEPT)

    def add(self, *, replica: str, status: int, end: str, first_byte_s: float, total_s: float) -> None:
        """One that ended just now."""
        is_failure = end in ("failed", "cut") or status >= 500
        is_answered = end == "answered" and status < 400
        self._ended.append(EndedRequest(time.time(), replica, is_failure, is_answered, first_byte_s, total_s))

    def between(self, since: float, until: float) -> list[EndedRequest]:
        """Those that ended in a stretch, seconds since the epoch."""
        return [one for one in self._ended if since <= one.ended_at < until]


def figures_of(ended: list[EndedRequest], seconds: float) -> RequestFigures:
    """Of these, which ended within so many seconds. Pure."""
    answered = [one for one in ended if one.is_answered]
    failures = sum(one.is_failure for one in ended)
    totals, firsts = [one.total_s for one in answered], [one.first_byte_s for one in answered]
    return RequestFigures(
        num_requests=len(ended),
        num_failures=failures,
        error_rate=failures / len(ended) if ended else 0.0,
        answers_per_s=len(answered) / seconds if seconds > 0 else 0.0,
        p50_s=_percentile(totals, 50),
        p95_s=_percentile(totals, 95),
        first_byte_p95_s=_percentile(firsts, 95),
    )


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else 0.0
