"""Where time goes: seconds per phase, how many things stand at each stage, and the log's set-up."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import msgspec

LOGGER = "framefleet"


class PhaseClock:
    """Seconds by phase of one piece of work. Phases may repeat (they add up) and may nest (each counts itself)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`with clock.phase("decode"):` — counted also when the block raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    @property
    def elapsed_s(self) -> float:
        """Since the clock was made."""
        return time.perf_counter() - self._started

    def as_seconds(self) -> dict[str, float]:
        """Phase -> seconds, and `total`; to the microsecond."""
        return {name: round(seconds, 6) for name, seconds in {**self.seconds, "total": self.elapsed_s}.items()}


class Occupancy:
    """How many pieces of work stand at each stage now, and on average since the last look.

    Averages are exact (weighted by time): a short queue that is never empty is told from a long one seldom full.
    """

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self._area: dict[str, float] = {}
        self._changed: dict[str, float] = {}
        self._looked = time.perf_counter()

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """`with occupancy.at("decode"):`."""
        self._move(stage, +1)
        try:
            yield
        finally:
            self._move(stage, -1)

    def averages(self) -> dict[str, float]:
        """Mean count per stage since the last call; starts a new stretch."""
        for stage in self.now:
            self._move(stage, 0)
        now = time.perf_counter()
        stretch_s = max(now - self._looked, 1e-9)
        means = {stage: area / stretch_s for stage, area in self._area.items()}
        self._area, self._looked = dict.fromkeys(self.now, 0.0), now
        return means

    def _move(self, stage: str, by: int) -> None:
        now, count = time.perf_counter(), self.now.get(stage, 0)
        since = max(self._changed.get(stage, now), self._looked)
        self._area[stage] = self._area.get(stage, 0.0) + count * (now - since)
        self._changed[stage], self.now[stage] = now, count + by


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up_logging(level: str = "warning", *, as_json: bool = False, stream: IO[str] | None = None) -> None:
    """Send framefleet's log to `stream` (stderr by default). For programs; the library itself never calls it.

    May be called again: the newer set-up replaces the older. Other libraries' loggers are left alone.
    """
    logger = logging.getLogger(LOGGER)
    for old in [h for h in logger.handlers if getattr(h, "is_framefleet", False)]:
        logger.removeHandler(old)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.is_framefleet = True  # type: ignore[attr-defined]
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonLines() if as_json else plain)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
