"""The `pynvvideocodec` backend: NVDEC fed by our own plan.

Packets are demuxed by PyAV and fed to kept decoders (`decode.nvdec.lanes`): from the keyframe of each run, without
packets that no wanted picture depends on, up to the last target. Wanted surfaces alone are converted, in one pass, to
upright RGB at the output size; only those small frames leave the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.nvdec.bitstream import PacketShaper
from framefleet.decode.nvdec.caps import refuse_stream
from framefleet.decode.nvdec.device import Canvas, NvdecDevice
from framefleet.decode.nvdec.lanes import Lane, LaneKind, LanePool
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan, SeekGroup
from framefleet.errors import DecodeError, DeviceError
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import Deadline, ScanLimits
from framefleet.media.walking import Walk, open_walk
from framefleet.units import GIB, NS_PER_S
from framefleet.vram.budget import MemoryBudget

LANES_PER_ENGINE = 3
"""Decoders kept per NVDEC engine: one decodes while the others demux, convert and copy. 3 per engine gave 20.0
clips/s where 1 gave 15.1 and 2 gave 18.5 (H200, 7 engines, 1080p H.264, benchmarks/nvdec)."""
DEFAULT_BUDGET_BYTES = 4 * GIB


@cache
def _visible_gpu() -> NvdecDevice:
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

    `budget` bounds what its decoders take of the GPU's memory. By default one budget of 4 GiB (or
    FRAMEFLEET_NVDEC_BUDGET) is shared by all instances that use the same device.
    """

    name = "pynvvideocodec"
    devices = ("cpu", "cuda")

    def __init__(
        self, device: Callable[[], NvdecDevice] = _visible_gpu, *, budget: MemoryBudget | None = None, lanes: int = 0
    ) -> None:
        self._device = device
        self._lanes = lanes
        self._budget = budget
        self._pool: LanePool | None = None

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """Ask the stream, then the machine, then the card."""
        if reason := refuse_stream(info) or _refuse_index(index):
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
        work = _ClipWork(clip, plan, options, self._device(), self._lane_pool(clip.info, options))
        return work.run()

    def close(self) -> None:
        """Free all idle decoders."""
        if self._pool is not None:
            self._pool.close()

    def _lane_pool(self, info: StreamInfo, options: DecodeOptions) -> LanePool:
        if self._pool is None:
            device = self._device()
            engines = device.caps(info.codec, info.chroma, info.bit_depth).num_engines
            lanes = self._lanes or options.hw_decoders or engines * LANES_PER_ENGINE
            budget = self._budget or MemoryBudget(DEFAULT_BUDGET_BYTES, name="NVDEC memory")
            self._pool = LanePool(device.open_decoder, budget, lanes)
        return self._pool


def _refuse_index(index: FrameIndex) -> str | None:
    if index.method != "packets":
        return f"frames were found by {index.method}, not by packets: NVDEC's pictures could not be told apart"
    if np.any(index.packet_pts == index.NO_PTS):
        return "packets without pts are decoded on the CPU"
    return None


class _ClipWork:
    """One clip on its way through one lane, or through several when latency counts."""

    def __init__(
        self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions, device: NvdecDevice, pool: LanePool
    ) -> None:
        self.clip, self.plan, self.options, self.pool = clip, plan, options, pool
        self.deadline = Deadline(options.timeout_s)
        self.rows = np.unique(plan.targets.rows)
        self.slots = {int(clip.index.packet_of_row[row]): slot for slot, row in enumerate(self.rows)}
        self.got = np.zeros(len(self.rows), np.bool_)
        self.canvas: Canvas = device.canvas(
            clip.info, len(self.rows), plan.width, plan.height, on_device=options.device == "cuda"
        )
        self.stats = DecodeStats(backend="pynvvideocodec", index_method=clip.index.method)
        self.wait_s = 0.0

    def run(self) -> DecodedFrames:
        started_s = time.monotonic()
        parts = self._parts()
        if len(parts) == 1:
            self._decode_groups(parts[0])
        else:
            with ThreadPoolExecutor(len(parts), thread_name_prefix="nvdec") as threads:
                list(threads.map(self._decode_groups, parts))
        self.stats.seconds["wait"] = self.wait_s
        self.stats.seconds["decode"] = time.monotonic() - started_s - self.wait_s
        return self._gather()

    def _parts(self) -> list[Sequence[SeekGroup]]:
        """The runs, dealt to as many lanes as are free when latency counts; all to one lane otherwise."""
        groups = self.plan.groups
        if self.options.prefer != "latency":
            return [groups]
        count = max(1, min(len(groups), self.pool.num_free_places))
        return [groups[i::count] for i in range(count)]

    def _decode_groups(self, groups: Sequence[SeekGroup]) -> None:
        asked_s = time.monotonic()
        with self.pool.lane(LaneKind.of(self.clip.info), self.deadline.remaining_s) as lane:
            self.wait_s = max(self.wait_s, time.monotonic() - asked_s)
            with open_walk(self.clip, ScanLimits(deadline=self.deadline)) as walk:
                shaper = PacketShaper(self.clip.info.codec, walk.extradata)
                for group in groups:
                    self._decode_group(lane, walk, shaper, group)
            self.canvas.settle(lane)

    def _decode_group(self, lane: Lane, walk: Walk, shaper: PacketShaper, group: SeekGroup) -> None:
        is_first = True
        for number, packet in walk.packets(group.first_packet, group.last_packet, group.skip_packets):
            self.deadline.check("decoding", self.clip.source.name)
            payload = shaper.shape(bytes(packet), is_first=is_first)
            is_first = False
            self._take(lane, lane.decoder.feed(number, payload))
        self._take(lane, lane.decoder.drain())

    def _take(self, lane: Lane, pictures: list[tuple[int, Any]]) -> None:
        for number, surface in pictures:
            self.stats.frames_walked += 1
            slot = self.slots.get(number)
            if slot is not None and not self.got[slot]:
                self.canvas.put(slot, surface, lane)
                self.got[slot] = True

    def _gather(self) -> DecodedFrames:
        clip, index, stats = self.clip, self.clip.index, self.stats
        slots = np.searchsorted(self.rows, self.plan.targets.rows)
        slots = slots[self.got[slots]]
        stats.num_missing = len(self.plan.targets.rows) - len(slots)
        if not len(slots):
            raise DecodeError("NVDEC gave none of the frames asked for", given=repr(clip.source.name))
        frames = self.canvas.frames()
        is_whole = len(slots) == len(self.rows) and bool(np.all(np.diff(slots) == 1))
        data = frames if is_whole else frames[slots]
        stats.output_bytes = self.plan.output_bytes
        stats.peak_bytes = LaneKind.of(clip.info).lane_bytes()
        return DecodedFrames(
            data=data, pts_s=index.pts_ns[self.rows[slots]] / NS_PER_S, indices=self.rows[slots], info=clip.info,
            stats=stats, duration_s=index.duration_s, fps=index.fps, total_num_frames=index.num_frames,
        )  # fmt: skip
