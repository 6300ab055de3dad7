"""The `pynvvideocodec` backend: NVDEC fed by our own plan.

Packets are demuxed by PyAV and fed to kept decoders (`decode.nvdec.lanes`): from the keyframe of each run, without
packets that no wanted picture depends on, up to the last target. Wanted surfaces alone are converted, in one pass, to
upright RGB at the output size; only those small frames leave the GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec

import numpy as np

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.deliver import deliver
from framefleet.decode.nvdec.caps import refuse_stream
from framefleet.decode.nvdec.device import Canvas, NvdecDevice
from framefleet.decode.nvdec.lanes import Lane, LaneKind, LanePool
from framefleet.decode.nvdec.naming import SHOWN_IN_ORDER, Pictures, names_for
from framefleet.decode.nvdec.parcel import Parcel, pack, presentation_ranks
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan
from framefleet.errors import DecodeError, DeviceError
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import Deadline, ScanLimits
from framefleet.units import GIB
from framefleet.vram.budget import BudgetStats, MemoryBudget

LANES_PER_ENGINE = 1.5
"""Decoders kept per NVDEC engine: while one waits for its conversion and copies, its engine decodes for another. 1 per
engine gave 19.0 clips/s with 1.1 GiB in all, 2 gave 22.2 with 1.6 GiB (H200, 7 engines, 1080p H.264,
benchmarks/nvdec)."""
LANE_TIMEOUT_S = 600.0
"""How long a clip waits for a decoder; the clip's own deadline begins when it has one."""
DEFAULT_BUDGET_BYTES = 4 * GIB
_SHOWN_AGAIN_BYTES = 2
"""A VP9 packet that is only `show_existing_frame` has 8 or 9 bits (6.2), one with a picture of its own many more."""


@cache
def visible_gpu() -> NvdecDevice:
    """The first visible GPU. Raises DeviceError with the reason."""
    if find_spec("PyNvVideoCodec") is None:
        raise DeviceError("PyNvVideoCodec is not installed", remedy="pip install 'framefleet[nvdec]'")
    try:
        from framefleet.decode.nvdec.hardware import CudaDevice

        return CudaDevice()
    except (ImportError, OSError) as error:
        raise DeviceError("NVDEC cannot be used", given=str(error), remedy="framefleet doctor") from error


class PyNvVideoCodecBackend:
    """Frames through NVDEC. Keeps decoders between clips; safe to call from many threads at once.

    `budget` bounds what its decoders take of the GPU's memory (4 GiB by default); `lanes` their number (by default
    three for two NVDEC engines).
    """

    name = "pynvvideocodec"
    devices = ("cpu", "cuda")

    def __init__(
        self, device: Callable[[], NvdecDevice] = visible_gpu, *, budget: MemoryBudget | None = None, lanes: int = 0
    ) -> None:
        self._device = device
        self._lanes = lanes
        self._budget = budget or MemoryBudget(DEFAULT_BUDGET_BYTES, name="NVDEC memory")
        self._pool: LanePool | None = None
        self._opening = threading.Lock()

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """Ask the stream, then the machine, then the card."""
        if reason := refuse_stream(info) or _refuse_index(info.codec, index):
            return reason
        try:
            caps = self._device().caps(info.codec, info.chroma, info.bit_depth)
        except DeviceError as error:
            return str(error)
        if not caps.is_supported:
            return f"this GPU's NVDEC does not take {info.codec} {info.chroma} at {info.bit_depth} bit"
        return caps.refuse_size(info.coded_width, info.coded_height)

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """The plan's frames."""
        if options.deinterlace:
            raise DecodeError("deinterlacing is done on the CPU", given=self.name, remedy="backend='pyav'")
        started_s = time.monotonic()
        parcel = pack(clip, plan, ScanLimits(deadline=Deadline(options.timeout_s)))
        frames = self.decode_parcel(parcel, options)
        frames.stats.seconds["pack"] = time.monotonic() - started_s - sum(frames.stats.seconds.values())
        return frames

    def decode_parcel(self, parcel: Parcel, options: DecodeOptions) -> DecodedFrames:
        """The frames of a parcel that was packed here or elsewhere."""
        return _ClipWork(parcel, options, self._device(), self._lane_pool(parcel.clip.info, options)).run()

    def num_lanes(self, info: StreamInfo, options: DecodeOptions) -> int:
        """Clips decoded at once. Raises DeviceError where there is no GPU."""
        engines = self._device().caps(info.codec, info.chroma, info.bit_depth).num_engines
        return self._lanes or options.hw_decoders or max(1, int(engines * LANES_PER_ENGINE))

    @property
    def budget_stats(self) -> BudgetStats:
        """What its decoders took of the GPU's memory, and how long clips waited for it."""
        return self._budget.stats

    def close(self) -> None:
        """Free all idle decoders."""
        if self._pool is not None:
            self._pool.close()

    def _lane_pool(self, info: StreamInfo, options: DecodeOptions) -> LanePool:
        with self._opening:
            if self._pool is None:
                self._pool = LanePool(self._device().open_decoder, self._budget, self.num_lanes(info, options))
            return self._pool


@cache
def shared_backend() -> PyNvVideoCodecBackend:
    """The one that `backend="pynvvideocodec"` means: its decoders stay warm between calls of this process."""
    return PyNvVideoCodecBackend()


def _refuse_index(codec: str, index: FrameIndex) -> str | None:
    if index.method != "packets":
        return f"frames were found by {index.method}, not by packets: NVDEC's pictures could not be told apart"
    if index.num_lost:
        return f"{index.num_lost} frames are known to be lost: NVDEC does not tell damaged pictures from sound ones"
    if codec in SHOWN_IN_ORDER and len(index.packet_pts) != index.num_frames:
        return f"{codec} with packets that show nothing is decoded on the CPU"
    if codec == "vp9" and index.packet_size is not None and (index.packet_size <= _SHOWN_AGAIN_BYTES).any():
        return "VP9 that shows pictures decoded before: NVDEC leaves those out"
    try:
        presentation_ranks(index)
    except DecodeError as error:
        return error.what
    return None


class _ClipWork:
    """One parcel on its way through one lane, or through several when latency counts."""

    def __init__(self, parcel: Parcel, options: DecodeOptions, device: NvdecDevice, pool: LanePool) -> None:
        self.parcel, self.options, self.pool = parcel, options, pool
        self.slots = {stamp: slot for slot, stamp in enumerate(parcel.wanted_stamps.tolist())}
        self.got = np.zeros(len(self.slots), np.bool_)
        self.canvas: Canvas = device.canvas(
            parcel.clip.info, len(self.slots), parcel.width, parcel.height, on_device=options.device == "cuda"
        )
        self.stats = DecodeStats(backend=PyNvVideoCodecBackend.name)
        self.wait_s = 0.0
        self.lane_s: list[float] = []

    def run(self) -> DecodedFrames:
        started_s = time.monotonic()
        parts = self._parts()
        if len(parts) == 1:
            self._decode_runs(parts[0])
        else:
            with ThreadPoolExecutor(len(parts), thread_name_prefix="nvdec") as threads:
                list(threads.map(self._decode_runs, parts))
        self.stats.seconds["wait"] = self.wait_s
        self.stats.seconds["lanes"] = sum(self.lane_s)
        self.stats.seconds["decode"] = time.monotonic() - started_s - self.wait_s
        return self._gather()

    def _parts(self) -> list[list[range]]:
        """The runs, dealt to as many lanes as are free: under load that is one."""
        runs = self.parcel.runs()
        if self.options.prefer == "throughput":
            return [runs]
        count = max(1, min(len(runs), self.pool.num_free_places))
        return [runs[i::count] for i in range(count)]

    def _decode_runs(self, runs: list[range]) -> None:
        asked_s = time.monotonic()
        with self.pool.lane(LaneKind.of(self.parcel.clip.info), LANE_TIMEOUT_S) as lane:
            self.wait_s = max(self.wait_s, time.monotonic() - asked_s)
            deadline = Deadline(self.options.timeout_s)
            started_s = time.monotonic()
            for run in runs:
                self._decode_run(lane, run, deadline)
            self.canvas.settle(lane)
            self.lane_s.append(time.monotonic() - started_s)

    def _decode_run(self, lane: Lane, run: range, deadline: Deadline) -> None:
        names = names_for(self.parcel.clip.info.codec)
        for number, stamp in zip(run, self.parcel.stamps[run.start : run.stop].tolist(), strict=True):
            deadline.check("decoding", self.parcel.clip.source.name)
            names.fed(stamp)
            self._take(lane, names.of(lane.decoder.feed(stamp, self.parcel.packet(number))))
        self._take(lane, names.of(lane.decoder.drain()))
        names.end()

    def _take(self, lane: Lane, pictures: Pictures) -> None:
        for stamp, surface in pictures:
            self.stats.frames_walked += 1
            slot = self.slots.get(stamp)
            if slot is not None and not self.got[slot]:
                self.canvas.put(slot, surface, lane)
                self.got[slot] = True

    def _gather(self) -> DecodedFrames:
        parcel, frames = self.parcel, self.canvas.frames()
        came = np.flatnonzero(self.got)
        self.stats.peak_bytes = LaneKind.of(parcel.clip.info).lane_bytes()
        pictures = frames if len(came) == len(self.got) else frames[came]
        return deliver(parcel.clip, parcel.rows, np.unique(parcel.rows)[came], pictures, self.stats)
