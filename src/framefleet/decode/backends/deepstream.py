"""The `deepstream` backend: NVDEC through DeepStream's decode pool, in a process that can be killed.

Our index and plan decide what is decoded and which pictures are wanted (`decode.deepstream.feed`); the pool's own
probing, seeking and counting are not used. It converts at full size, on the GPU; frames are brought to the output size
there, cross to the host through pinned memory, and arrive as shared memory. Turning and mirroring are done here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.deepstream import cuda
from framefleet.decode.deepstream.feed import MATRIX_CODES, Feed, cut
from framefleet.decode.deepstream.gstreamer import find_gstreamer
from framefleet.decode.deepstream.host_process import HostProcess, HostSetting
from framefleet.decode.deepstream.messages import Ask, Open
from framefleet.decode.deliver import deliver
from framefleet.decode.limits import limits_of
from framefleet.decode.nvdec.caps import NvdecCaps, refuse_stream
from framefleet.decode.nvdec.parcel import presentation_ranks
from framefleet.decode.options import DecodeOptions
from framefleet.decode.picture import turn_upright
from framefleet.decode.plan import DecodePlan
from framefleet.errors import ConfigError, DecodeError, DecoderLost, DecodeTimeout
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import Deadline

LIMITS = {
    "h264": NvdecCaps(
        is_supported=True, min_width=48, min_height=16, max_width=4096, max_height=4096, max_macroblocks=65536
    ),
    "hevc": NvdecCaps(
        is_supported=True, min_width=144, min_height=144, max_width=8192, max_height=8192, max_macroblocks=262144
    ),
}
"""Sizes that NVDEC takes since its fifth generation (NVIDIA's support matrix); beyond them DeepStream fails."""
POOL = "nvidia.deepstream_videodecode:DecodePool"
MAX_POOL_SIZE = 16


class DeepStreamBackend:
    """Frames through DeepStream. Keeps its process, and its warm decoders, between clips; safe to call from threads.

    `pool` is `module:attribute` of the pool's class; `decode.deepstream.fake` has one for tests, which needs no GPU.
    """

    name = "deepstream"

    def __init__(self, pool: str = POOL) -> None:
        self._pool = pool
        self._hosts: dict[str, HostProcess] = {}
        self._changing = threading.Lock()
        self._alone = threading.Lock()
        self._places: threading.Semaphore | None = None

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """Ask the stream, then the machine."""
        return _refuse_stream(info) or _refuse_index(index) or (_refuse_machine() if self._pool == POOL else None)

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """The plan's frames, all of them. Raises DecodeError, DecodeTimeout, DecoderLost, DeviceError, SourceError."""
        if options.deinterlace:
            raise DecodeError("deepstream does not deinterlace", remedy="the pyav backend")
        started_s = time.monotonic()
        limits = limits_of(options)
        feed = cut(clip, plan, limits)
        limits.deadline.check("decoding", clip.source.name)
        packed_s = time.monotonic() - started_s
        frames = self._decode_feed(feed, options, limits.deadline)
        frames.stats.seconds["pack"] = packed_s
        return frames

    def num_lanes(self, info: StreamInfo, options: DecodeOptions) -> int:
        """Clips decoded at once: the pool's size."""
        del info
        return _pool_size(options)

    def decode_parcel(self, parcel: Feed, options: DecodeOptions) -> DecodedFrames:
        """The frames of a feed that was cut in a worker (the task `cut`). Raises as `decode`."""
        return self._decode_feed(parcel, options, Deadline(options.timeout_s))

    def _decode_feed(self, feed: Feed, options: DecodeOptions, deadline: Deadline) -> DecodedFrames:
        clip, started_s = feed.clip, time.monotonic()
        with self._place(options, deadline, clip.source.name):
            placed_s = time.monotonic()
            pictures = self._decode(_ask(feed, deadline), options, deadline, clip.source.name)
        stats = DecodeStats(
            backend=self.name,
            frames_walked=feed.num_pictures,
            peak_bytes=pictures.nbytes + feed.content.nbytes,
            seconds={"wait": placed_s - started_s, "decode": time.monotonic() - placed_s},
        )
        upright = np.stack([turn_upright(picture, clip.info) for picture in pictures])
        return deliver(clip, feed.rows, np.unique(feed.rows), upright, stats)

    def close(self) -> None:
        """End the processes."""
        with self._changing:
            for host in self._hosts.values():
                host.close()
            self._hosts.clear()

    @contextmanager
    def _place(self, options: DecodeOptions, deadline: Deadline, name: str) -> Iterator[None]:
        with self._changing:
            self._places = self._places or threading.Semaphore(_pool_size(options))
        if not self._places.acquire(timeout=deadline.remaining_s):
            raise DecodeTimeout(
                "no worker of DeepStream's pool came free by the clip's deadline",
                given=repr(name),
                allowed=f"{deadline.timeout_s:g} s",
                remedy="a larger pool_size, fewer clips at a time, or a longer timeout_s",
            )
        try:
            yield
        finally:
            self._places.release()

    def _decode(self, ask: Ask, options: DecodeOptions, deadline: Deadline, name: str) -> npt.NDArray[np.uint8]:
        """When the process dies, or is killed for another clip's sake, a process for this clip alone tells whose fault
        it was.
        """
        try:
            return self._host("shared", _pool_size(options), deadline).decode(ask, deadline, name)
        except DecoderLost:
            if not self._alone.acquire(timeout=deadline.remaining_s):
                raise
            try:
                return self._host("alone", 1, deadline).decode(ask, deadline, name)
            finally:
                self._alone.release()

    def _host(self, role: str, num_workers: int, deadline: Deadline) -> HostProcess:
        """The living process, or a new one: its start is no clip's time, and moves the deadline."""
        asked_s = time.monotonic()
        with self._changing:
            host = self._hosts.get(role)
            if host is None or not host.is_alive:
                host = self._hosts[role] = HostProcess(self._setting(num_workers))
        deadline.at_s += time.monotonic() - asked_s
        return host

    def _setting(self, num_workers: int) -> HostSetting:
        if self._pool != POOL:
            return HostSetting(Open(self._pool, num_workers, "", ()))
        found = find_gstreamer()
        opening = Open(self._pool, num_workers, found.bundle, found.python_path)
        return HostSetting(opening, _environment)


@cache
def shared_backend() -> DeepStreamBackend:
    """The one that `backend="deepstream"` means: its pool stays warm between calls of this process."""
    return DeepStreamBackend()


def _ask(feed: Feed, deadline: Deadline) -> Ask:
    is_upright = feed.clip.info.rotation_deg % 180 == 0
    width, height = (feed.width, feed.height) if is_upright else (feed.height, feed.width)
    return Ask(
        number=0, content=feed.content, codec=feed.clip.info.codec, places=feed.places, num_pictures=feed.num_pictures,
        width=width, height=height, timeout_s=deadline.remaining_s,
    )  # fmt: skip


def _pool_size(options: DecodeOptions) -> int:
    if not 1 <= options.pool_size <= MAX_POOL_SIZE:
        raise ConfigError("wrong pool_size", given=str(options.pool_size), allowed=f"1 to {MAX_POOL_SIZE}")
    return options.pool_size


def _environment(scratch: Path) -> Mapping[str, str]:
    """A plugin registry of its own (a scan that failed once stays in the user's for ever), and CUDA by its names."""
    cuda.link_libraries(scratch)
    return {"GST_REGISTRY": str(scratch / "registry.bin"), "LD_LIBRARY_PATH": str(scratch)}


def _refuse_stream(info: StreamInfo) -> str | None:
    if reason := refuse_stream(info):
        return reason
    reasons = {
        f"only {', '.join(LIMITS)}, not {info.codec}": info.codec not in LIMITS,
        f"{info.bit_depth}-bit {info.chroma}, where only 8-bit 4:2:0 was seen right": (info.bit_depth, info.chroma)
        != (8, "4:2:0"),
        "pictures with odd sides": bool(info.coded_width % 2 or info.coded_height % 2),
        f"colour matrix {info.colour_matrix}": info.colour_matrix not in MATRIX_CODES,
        "full range by BT.601, which was not seen right": info.is_full_range and info.colour_matrix == "bt601",
    }
    if reason := next((reason for reason, applies in reasons.items() if applies), None):
        return reason
    return LIMITS[info.codec].refuse_size(info.coded_width, info.coded_height)


def _refuse_index(index: FrameIndex) -> str | None:
    reasons = {
        f"needs an index from packets, not one that was {index.method}": index.method != "packets",
        f"{index.num_lost} frames are known to be lost, and NVDEC does not tell damaged pictures": index.num_lost > 0,
        f"the clip is irregular: {', '.join(index.notes)}": bool(index.notes),
    }
    if reason := next((reason for reason, applies in reasons.items() if applies), None):
        return reason
    try:
        presentation_ranks(index)
    except DecodeError as error:
        return error.what
    return None


@cache
def _refuse_machine() -> str | None:
    if _wheel() is None:
        return "DeepStream is not installed; try: pip install 'framefleet[deepstream]'"
    if not cuda.has_gpu():
        return "no CUDA device is visible"
    try:
        find_gstreamer()
    except ConfigError as error:
        return str(error)
    return None


def _wheel() -> Any:
    try:
        return find_spec("nvidia.deepstream_videodecode")
    except ModuleNotFoundError:  # there is no package `nvidia` at all
        return None
