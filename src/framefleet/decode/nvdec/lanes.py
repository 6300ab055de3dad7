"""Lanes: kept NVDEC decoders, each with its own CUDA stream. Warm between clips of one kind, leased one clip at a time.

A kept decoder re-created for another picture size costs about 70 ms and its memory, so lanes are kept per kind
(codec, chroma, bit depth, coded and display size) and the longest idle one gives way when all are taken by other
kinds. Decoders are *not* re-configured from one size to another: with PyNvVideoCodec 2.2.4 a decoder made for
1920x1080 returned 1280x720 clips with the old geometry (benchmarks/nvdec, `reconf`), which is the fault of
torchcodec #1704 again: wrong pixels without an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from framefleet.errors import BudgetTimeout
from framefleet.media.info import StreamInfo
from framefleet.units import MIB
from framefleet.vram.budget import Lease, LeaseRequest, MemoryBudget

HELD_PICTURES = 20
SESSION_BYTES = {"h264": 16 * MIB, "hevc": 40 * MIB, "vp8": 64 * MIB, "vp9": 64 * MIB}
"""What the driver keeps for a session beside its pictures: of ten 1080p decoders on an H200 each took 81 (H.264), 103
(HEVC) and 129 MiB (VP9; VP8 is taken for the like), of ten for 2160p HEVC 271 (benchmarks/nvdec)."""


@dataclass(frozen=True, slots=True)
class LaneKind:
    """What a kept decoder may be reused for."""

    codec: str
    chroma: str
    bit_depth: int
    coded_width: int
    coded_height: int

    @classmethod
    def of(cls, info: StreamInfo) -> LaneKind:
        """The kind of a stream. `coded_*` of StreamInfo is after cropping, so 1280x532 and 1280x530 differ."""
        return cls(info.codec, info.chroma, info.bit_depth, info.coded_width, info.coded_height)

    def lane_bytes(self) -> int:
        """Device bytes that one lane of this kind takes: an upper estimate, by measured peak (benchmarks/nvdec).

        Decoded pictures (up to 16 for reference, and those being shown), one RGB picture at full size, and what the
        driver keeps for a session.
        """
        samples = self.coded_width * self.coded_height * (3 if self.chroma == "4:4:4" else 1.5)
        picture_bytes = int(samples * (2 if self.bit_depth > 8 else 1))
        return HELD_PICTURES * picture_bytes + 3 * self.coded_width * self.coded_height + SESSION_BYTES[self.codec]


class Decoder(Protocol):
    """One NVDEC session bound to one CUDA stream."""

    def feed(self, stamp: int, payload: npt.NDArray[np.uint8]) -> list[tuple[int, Any]]:
        """Decode one packet; the pictures that came out: (stamp of their packet, surface).

        A surface is valid until the next call. Raises DecodeError.
        """
        ...

    def drain(self) -> list[tuple[int, Any]]:
        """Bring out what is held back for reordering; the decoder can be fed a new keyframe afterwards."""
        ...

    def close(self) -> None:
        """Free the session and its surfaces."""
        ...


@dataclass(slots=True)
class Lane:
    """A kept decoder."""

    kind: LaneKind
    decoder: Decoder
    lease: Lease
    converters: dict[Any, Any] = field(default_factory=dict)
    """Colour converters made on this lane, by their settings."""
    num_clips: int = 0

    def close(self) -> None:
        """Free the decoder, then its bytes."""
        self.decoder.close()
        self.lease.release()


class _Waiter:
    """Waits for bytes to make a lane of, or for a lane: making one anew for every clip would cost 70 ms each."""

    def __init__(self, kind: LaneKind, request: LeaseRequest) -> None:
        self.kind = kind
        self.came: Future[Lane | Lease] = Future()
        self._request = request
        request.granted.add_done_callback(self._granted)

    def _granted(self, granted: Future[Lease]) -> None:
        if not granted.cancelled() and not self._take(lease := granted.result()):
            lease.release()

    def offer(self, lane: Lane) -> bool:
        """Whether the lane is taken."""
        if not self._take(lane):
            return False
        self._request.withdraw()
        return True

    def wait(self, timeout_s: float) -> Lane | Lease:
        """What came first. Raises BudgetTimeout."""
        try:
            return self.came.result(timeout_s)
        except TimeoutError:
            if not self.came.cancel():  # it came at the last moment
                return self.came.result()
            self._request.withdraw()
            raise BudgetTimeout(
                "no NVDEC decoder came free in time",
                given=f"{self.kind} after {timeout_s:g} s",
                remedy="a larger budget, or fewer clips at once",
            ) from None

    def _take(self, thing: Lane | Lease) -> bool:
        try:
            self.came.set_result(thing)
        except InvalidStateError:
            return False
        return True


class LanePool:
    """At most `max_lanes` decoders within `budget`. Waiting, for a place or for bytes, is first come first served."""

    def __init__(
        self,
        make_decoder: Callable[[LaneKind], Decoder],
        budget: MemoryBudget,
        max_lanes: int,
        clips_per_lane: int = 2000,
    ) -> None:
        self._make_decoder = make_decoder
        self._budget = budget
        self._places = MemoryBudget(max_lanes, name="NVDEC decoders")
        self._clips_per_lane = clips_per_lane
        self._idle: list[Lane] = []
        self._waiting: list[_Waiter] = []
        self._lock = threading.Lock()

    @property
    def num_free_places(self) -> int:
        """Clips that could start at once."""
        return self._places.free_bytes

    @contextmanager
    def lane(self, kind: LaneKind, timeout_s: float) -> Iterator[Lane]:
        """A lane of that kind for one clip. A lane whose clip failed is closed, never reused.

        Raises BudgetTimeout when none comes free in time, BudgetTooLarge when the budget is smaller than one such
        lane, DeviceError when a decoder cannot be made.
        """
        with self._places.lease(1, timeout_s=timeout_s):
            lane = self._warm(kind) or self._new(kind, timeout_s)
            try:
                yield lane
            except BaseException:
                lane.close()
                raise
            self._keep(lane)

    def close(self) -> None:
        """Free every idle lane."""
        while (lane := self._longest_idle()) is not None:
            lane.close()

    def _warm(self, kind: LaneKind) -> Lane | None:
        with self._lock:
            lane = next((x for x in reversed(self._idle) if x.kind == kind), None)
            if lane is not None:
                self._idle.remove(lane)
            return lane

    def _new(self, kind: LaneKind, timeout_s: float) -> Lane:
        """A lane made of fresh bytes, or one of this kind that another clip leaves meanwhile."""
        waiter = _Waiter(kind, self._budget.request(kind.lane_bytes()))
        with self._lock:
            self._waiting.append(waiter)
        try:
            if (warm := self._warm(kind)) is not None:  # left by another clip since the caller looked
                self._hand_on(warm)
            while not waiter.came.done() and (lane := self._longest_idle()) is not None:
                lane.close()
            self._make_room()
            came = waiter.wait(timeout_s)
        finally:
            with self._lock:
                self._waiting.remove(waiter)
        if isinstance(came, Lane):
            return came
        try:
            return Lane(kind, self._make_decoder(kind), came)
        except BaseException:
            came.release()
            raise

    def _make_room(self) -> None:
        """Idle decoders of other kinds count as decoders too: the longest idle ones give way."""
        while len(self._idle) > self._places.free_bytes and (lane := self._longest_idle()) is not None:
            lane.close()

    def _keep(self, lane: Lane) -> None:
        lane.num_clips += 1
        if lane.num_clips >= self._clips_per_lane:
            lane.close()
            return
        self._hand_on(lane)

    def _hand_on(self, lane: Lane) -> None:
        """To who waits first, if for this kind; else its bytes are. Without anybody waiting it is kept."""
        while True:
            with self._lock:
                first = next((waiter for waiter in self._waiting if not waiter.came.done()), None)
                if first is None:
                    self._idle.append(lane)
                    return
            if first.kind != lane.kind:
                lane.close()
                return
            if first.offer(lane):  # else another lane, or bytes, came to it first
                return

    def _longest_idle(self) -> Lane | None:
        with self._lock:
            return self._idle.pop(0) if self._idle else None
