"""What a service decodes with, and the figures that describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.decode.service.protocol import Silicon
from framefleet.media.source import VideoSource

_SLOTS_PER_WORKER = 2
"""A worker's next clip stands ready in the pool; the others wait where clients take turns."""


@dataclass(frozen=True, slots=True)
class Figures:
    """As ServiceStats names them."""

    budget_bytes: int
    budget_held_bytes: int
    budget_waiting: int
    budget_waited_s: float
    workers_lost: int
    quarantined: int
    silicon: tuple[Silicon, ...]


class Served(Protocol):
    """Decoding as the service needs it."""

    @property
    def slots(self) -> int:
        """Clips to hand over at once; more would wait inside, out of their clients' turns."""
        ...

    async def decode(self, source: VideoSource, options: DecodeOptions) -> DecodedFrames:
        """As `DecodePool.decode`: cancelling ends the work."""
        ...

    def figures(self) -> Figures:
        """A look at it."""
        ...


class ServedPool:
    """The CPU cores alone."""

    def __init__(self, pool: DecodePool) -> None:
        self._pool = pool

    @property
    def slots(self) -> int:
        """Two clips for each worker."""
        return self._pool.settings.num_workers * _SLOTS_PER_WORKER

    async def decode(self, source: VideoSource, options: DecodeOptions) -> DecodedFrames:
        """In a worker."""
        return await self._pool.decode(source, options)

    def figures(self) -> Figures:
        """A look at the pool."""
        load, budget = self._pool.load, self._pool.budget
        return Figures(
            budget_bytes=budget.total_bytes,
            budget_held_bytes=budget.held_bytes,
            budget_waiting=budget.num_waiting,
            budget_waited_s=budget.stats.waited_s,
            workers_lost=load.workers_lost,
            quarantined=len(self._pool.quarantined),
            silicon=(Silicon("cpu", load.workers, load.running, load.busy_s),),
        )
