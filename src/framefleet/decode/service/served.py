"""What a service decodes with, where a crash would hit, and the figures that describe it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from framefleet.decode.choose import AUTO
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.decode.service.protocol import Silicon
from framefleet.decode.silicon import ParcelDecoder, SiliconReader
from framefleet.media.source import VideoSource

_SLOTS_PER_WORKER = 2
"""A worker's next clip stands ready in the pool; the others wait where clients take turns."""
_NVDEC_SLOTS = 48
"""Clips that NVDEC's kept decoders (10 on seven engines) work on, and packets packed ahead for them."""


@dataclass(frozen=True, slots=True)
class Figures:
    """As ServiceStats names them."""

    budget_bytes: int
    budget_held_bytes: int
    budget_waiting: int
    budget_waited_s: float
    workers_lost: int
    quarantined: int
    hung: int
    silicon: tuple[Silicon, ...]


class Served(Protocol):
    """Decoding as the service needs it."""

    @property
    def slots(self) -> int:
        """Clips to hand over at once; more would wait inside, out of their clients' turns."""
        ...

    def isolates(self, options: DecodeOptions, *, is_suspect: bool) -> bool:
        """Whether whatever the clip does to its decoder would cost a worker, not the service."""
        ...

    async def decode(self, source: VideoSource, options: DecodeOptions, *, is_suspect: bool) -> DecodedFrames:
        """As `DecodePool.decode`: cancelling ends the work. A suspect is decoded in a worker, where it may be."""
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

    def isolates(self, options: DecodeOptions, *, is_suspect: bool) -> bool:
        """Always."""
        return True

    async def decode(self, source: VideoSource, options: DecodeOptions, *, is_suspect: bool) -> DecodedFrames:
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
            hung=0,
            silicon=(Silicon("cpu", load.workers, load.running, load.busy_s),),
        )


class ServedSilicon:
    """NVDEC and the idle CPU cores."""

    def __init__(self, pool: DecodePool, nvdec: ParcelDecoder, cpu_pool: DecodePool | None = None) -> None:
        """As SiliconReader."""
        self._on_cpu = ServedPool(cpu_pool or pool)
        self._packing = ServedPool(pool) if cpu_pool else None
        self._nvdec = nvdec
        self._reader = SiliconReader(pool, nvdec, cpu_pool)
        self._nvdec_busy_s = 0.0

    @property
    def slots(self) -> int:
        """The pool's, and those of NVDEC."""
        return self._on_cpu.slots + _NVDEC_SLOTS

    def isolates(self, options: DecodeOptions, *, is_suspect: bool) -> bool:
        """NVDEC decodes in this process."""
        return options.backend != self._nvdec.name and (is_suspect or options.backend != AUTO)

    async def decode(self, source: VideoSource, options: DecodeOptions, *, is_suspect: bool) -> DecodedFrames:
        """Where it is done first. How many decoders there are is the service's affair, not a client's."""
        if self.isolates(options, is_suspect=is_suspect):
            return await self._on_cpu.decode(source, options, is_suspect=is_suspect)
        frames = await self._reader.decode(source, msgspec.structs.replace(options, hw_decoders=None))
        if frames.stats.backend == self._nvdec.name:
            self._nvdec_busy_s += frames.stats.seconds.get("decode", 0.0)
        return frames

    def figures(self) -> Figures:
        """A look at both."""
        load, gpu = self._reader.load, self._reader.gpu
        nvdec = Silicon("nvdec", gpu.places, min(load.nvdec_clips, gpu.places), self._nvdec_busy_s)
        on_cpu = self._on_cpu.figures()
        if self._packing is not None:  # clips cost its workers, too
            packing = self._packing.figures()
            on_cpu = replace(
                on_cpu,
                workers_lost=on_cpu.workers_lost + packing.workers_lost,
                quarantined=on_cpu.quarantined + packing.quarantined,
            )
        return replace(on_cpu, hung=load.hung, silicon=(nvdec, *on_cpu.silicon))

    def close(self) -> None:
        """Let the threads go."""
        self._reader.close()
