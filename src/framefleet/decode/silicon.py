"""Both kinds of silicon behind one door: each clip goes to NVDEC or to an idle CPU core, whichever is done first.

    with DecodePool() as pool, leftover_pool(pool) as cpu_pool:
        reader = SiliconReader(pool, PyNvVideoCodecBackend(), cpu_pool)
        frames = await reader.decode(source, DecodeOptions(num_frames=16))

Clips are scanned in the pool's workers; then their price is known (`DecodePlan.frames_walked` times the picture's
size), and `pace` tells where they end first by what earlier clips took. For NVDEC a worker packs the plan's packets,
so the process that owns the GPU opens no file. Who decodes on the CPU should be another, nicer pool: NVDEC must not
wait for its packets (benchmarks/nvdec).

What NVDEC refuses, fails at or gives wrongly goes to the CPU, with the reason in `stats.refusals`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import msgspec

from framefleet.decode.choose import AUTO, disbelieve, shortfall
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pace import IDLE_WORTH, Silicon, first_done
from framefleet.decode.plan import DecodePlan
from framefleet.decode.pool import DecodePool, Source
from framefleet.decode.session import fetched, make_plan
from framefleet.decode.tasks import PACKS_FOR
from framefleet.errors import DecodeError, DecodeTimeout, DeviceError, SourceUnsupported
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.source import VideoSource
from framefleet.vram.budget import MemoryBudget

_GRACE_S = 10.0
"""Past a clip's deadline before NVDEC is taken to hang."""
_LEFTOVER_NICENESS = 10
_MOST_HUNG = 2
"""So many hung decodes and the GPU gets no more clips: only a new process brings it back."""


class ParcelDecoder(Protocol):
    """A backend that decodes what a worker packed (`tasks.PACKS_FOR`): `PyNvVideoCodecBackend` or `DeepStreamBackend`,
    on a GPU or on their software doubles.
    """

    name: str

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """As every backend."""
        ...

    def num_lanes(self, info: StreamInfo, options: DecodeOptions) -> int:
        """Clips it decodes at once."""
        ...

    def decode_parcel(self, parcel: Any, options: DecodeOptions) -> DecodedFrames:
        """The frames. Called from several threads."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class SiliconLoad:
    """What is under way and what was done, by kind of silicon."""

    nvdec_clips: int
    cpu_clips: int
    done: dict[str, int]
    """Backend -> clips."""
    fell_back: int
    """Clips that NVDEC took and the CPU had to do after all."""
    refused: int
    """Clips that NVDEC would not take."""
    hung: int
    """Decodes that NVDEC did not come back from. Not 0: this process should be replaced."""


class SiliconReader:
    """A ClipReader over an open DecodePool and, where there is one, NVDEC.

    `pool` scans and packs; `cpu_pool` decodes, by default the same one, of whose workers five eighths may then decode
    at a time. Without `nvdec` everything goes to `pool`.
    """

    def __init__(
        self, pool: DecodePool, nvdec: ParcelDecoder | None = None, cpu_pool: DecodePool | None = None
    ) -> None:
        self._pool, self._nvdec = pool, nvdec
        self._cpu_pool = cpu_pool or pool
        workers = self._cpu_pool.settings.num_workers
        self.cpu = Silicon("cpu", workers * 5 // 8 if self._cpu_pool is pool else workers)
        self.gpu = Silicon("nvdec", 0)
        self._cpu_places = asyncio.Semaphore(max(self.cpu.places, 1))
        self._room = MemoryBudget(pool.settings.max_bytes_in_flight, name="room for NVDEC's frames in flight")
        self._threads: ThreadPoolExecutor | None = None
        self._gpu_places = self._ahead = asyncio.Semaphore(1)
        self._done: Counter[str] = Counter()
        self._fell_back = self._refused = self._hung = 0

    @property
    def load(self) -> SiliconLoad:
        """A look at it."""
        return SiliconLoad(
            nvdec_clips=self.gpu.outstanding_clips,
            cpu_clips=self.cpu.outstanding_clips,
            done=dict(self._done),
            fell_back=self._fell_back,
            refused=self._refused,
            hung=self._hung,
        )

    async def digest(self, source: Source) -> str:
        """As the pool."""
        return await self._pool.digest(source)

    async def scan(self, source: Source, options: DecodeOptions | None = None) -> ScannedClip:
        """As the pool."""
        return await self._pool.scan(source, options)

    async def decode(self, source: Source | ScannedClip, options: DecodeOptions | None = None) -> DecodedFrames:
        """As the pool; `backend="auto"` chooses between NVDEC and the CPU, NVDEC's name insists on it.

        The deadline holds for scanning, packing and decoding each; waiting for a turn does not count.
        """
        options = options or DecodeOptions()
        if self._nvdec is None or options.backend not in (AUTO, self._nvdec.name):
            frames = await self._pool.decode(source, options)
            self._done[frames.stats.backend] += 1
            return frames
        async with _local(source, options) as here:
            started_s = time.monotonic()
            clip = here if isinstance(here, ScannedClip) else await self._pool.scan(here, _for_worker(options))
            probe_s = time.monotonic() - started_s
            frames = await self._decode_scanned(clip, options, self._nvdec)
        frames.stats.seconds.setdefault("probe", probe_s)
        self._done[frames.stats.backend] += 1
        return frames

    async def _decode_scanned(self, clip: ScannedClip, options: DecodeOptions, nvdec: ParcelDecoder) -> DecodedFrames:
        plan = make_plan(clip, options)
        must = options.backend == nvdec.name
        reason = await asyncio.to_thread(self._refuse, clip, options, nvdec)
        if reason is not None:
            self._refused += 1
            if must:
                raise SourceUnsupported(f"{nvdec.name} does not take the clip", given=reason, remedy="backend='auto'")
            return await self._on_cpu(clip, plan, options, {nvdec.name: reason})
        if not must and self._cpu_is_better(clip, plan, options):
            return await self._on_cpu(clip, plan, options, {})
        try:
            return await self._on_gpu(clip, plan, options, nvdec)
        except (DeviceError, DecodeError) as error:
            if must:
                raise
            self._fell_back += 1
            frames = await self._on_cpu(clip, plan, options, {nvdec.name: str(error)})
            frames.stats.fell_back_to = frames.stats.backend
            return frames

    def _refuse(self, clip: ScannedClip, options: DecodeOptions, nvdec: ParcelDecoder) -> str | None:
        if self._hung >= _MOST_HUNG:
            return f"NVDEC hung {self._hung} times in this process"
        if options.deinterlace or options.frame_recovery:
            return "deinterlacing and frame recovery are done on the CPU"
        reason = nvdec.refuse(clip.info, clip.index)
        if reason is None and self._threads is None:
            self._open(nvdec.num_lanes(clip.info, options))
        return reason

    def _cpu_is_better(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> bool:
        idle_worth = 1.0 if options.prefer == "latency" else IDLE_WORTH
        kinds = (self.gpu, self.cpu)
        chosen = first_done(kinds, clip.info.codec, _pixels(clip, plan), idle_worth=idle_worth)
        for kind in kinds:
            if kind is not chosen and kind.has_room:
                kind.pass_over(clip.info.codec)
        return chosen is self.cpu

    def _open(self, lanes: int) -> None:
        """Before the first clip: how many lanes there are is known only once a GPU was asked."""
        workers = self._pool.settings.num_workers
        packers = workers if self._cpu_pool is not self._pool else workers - self.cpu.places
        self.gpu.places = lanes
        self._gpu_places = asyncio.Semaphore(lanes)
        self._ahead = asyncio.Semaphore(lanes + max(2, packers))
        self._threads = ThreadPoolExecutor(lanes + _MOST_HUNG, thread_name_prefix="nvdec")

    async def _on_cpu(
        self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions, refusals: dict[str, str]
    ) -> DecodedFrames:
        with _counted(self.cpu, pixels := _pixels(clip, plan)):
            async with self._cpu_places:
                started_s = time.monotonic()
                frames = await self._cpu_pool.decode(clip, _for_worker(options))
        seconds = frames.stats.seconds
        waited_s = seconds.get("queue", 0.0) + seconds.get("wait", 0.0)
        self.cpu.note(clip.info.codec, pixels, time.monotonic() - started_s - waited_s)
        frames.stats.refusals = refusals | frames.stats.refusals
        return frames

    async def _on_gpu(
        self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions, nvdec: ParcelDecoder
    ) -> DecodedFrames:
        with _counted(self.gpu, pixels := _pixels(clip, plan)):
            async with self._ahead:
                lease = await self._room.lease_async(plan.output_bytes, timeout_s=self._pool.settings.lease_timeout_s)
                try:
                    parcel = await self._pool.call(PACKS_FOR[nvdec.name], clip, _for_worker(options))
                    async with self._gpu_places:
                        started_s = time.monotonic()
                        frames = await self._decode_parcel(parcel, options, nvdec)
                        seconds = time.monotonic() - started_s
                except BaseException:
                    lease.release()
                    raise
        weakref.finalize(frames.data, lease.release).atexit = False
        if reason := disbelieve(frames, plan, clip.index) or shortfall(frames):
            raise DecodeError(f"{nvdec.name} {reason}", given=repr(clip.source.name))
        frames.stats.notes[:0] = clip.index.notes
        took_s = frames.stats.seconds.get("lanes", seconds - frames.stats.seconds.get("wait", 0.0))
        self.gpu.note(clip.info.codec, pixels, took_s)
        return frames

    async def _decode_parcel(self, parcel: Any, options: DecodeOptions, nvdec: ParcelDecoder) -> DecodedFrames:
        """In a thread. Native code that does not come back cannot be stopped: it is left behind and counted."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, nvdec.decode_parcel, parcel, options)
        limit_s = options.timeout_s + self._pool.settings.lease_timeout_s + _GRACE_S
        try:
            return await asyncio.wait_for(asyncio.shield(work), limit_s)
        except TimeoutError:
            work.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody asks for it any more
            self._hung += 1
            raise DecodeTimeout(
                "NVDEC did not come back", given=repr(parcel.clip.source.name), allowed=f"{options.timeout_s:g} s"
            ) from None

    def close(self) -> None:
        """Let the threads go. The pool and the backend belong to whoever opened them."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def leftover_pool(pool: DecodePool) -> Iterator[DecodePool]:
    """An open pool like `pool` that decodes with what everybody else leaves of the cores."""
    with DecodePool(msgspec.structs.replace(pool.settings, niceness=_LEFTOVER_NICENESS)) as nicer:
        yield nicer


@contextmanager
def _counted(kind: Silicon, pixels: float) -> Iterator[None]:
    """While the block lasts the clip counts as outstanding."""
    kind.begin(pixels)
    try:
        yield
    finally:
        kind.end(pixels)


def _pixels(clip: ScannedClip, plan: DecodePlan) -> float:
    return float(plan.frames_walked) * clip.info.coded_width * clip.info.coded_height


def _for_worker(options: DecodeOptions) -> DecodeOptions:
    """Workers see only the CPU: `auto` is theirs, and frames end in host memory."""
    return msgspec.structs.replace(options, backend=AUTO, device="cpu")


@asynccontextmanager
async def _local(source: Source | ScannedClip, options: DecodeOptions) -> AsyncIterator[VideoSource | ScannedClip]:
    """The source on this machine: a URL is fetched once, not by each of the stages."""
    if isinstance(source, ScannedClip):
        yield source
        return
    whole = VideoSource.of(source)
    if whole.kind != "url":
        yield whole
        return
    fetching = fetched(whole, options)
    here, _ = await asyncio.to_thread(fetching.__enter__)
    try:
        yield here
    finally:
        await asyncio.to_thread(fetching.__exit__, None, None, None)
