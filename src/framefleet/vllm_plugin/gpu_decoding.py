"""Decoding on the GPU in vLLM's API server, within what vLLM left out of its KV cache for that.

vLLM reserves a fixed size for each decoder (`reservation`), and a pool (`--mm-ipc-gpu-memory-gb`) from which its own
loaders acquire the bytes of the frames they decode. Ours brings only small frames off the GPU, but keeps decoders: what
such a decoder takes beyond the reserved size is acquired from the pool for as long as the decoder is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
from framefleet.decode.nvdec.caps import NvdecCaps
from framefleet.decode.nvdec.device import Canvas, NvdecDevice
from framefleet.decode.nvdec.lanes import Decoder, LaneKind
from framefleet.errors import BudgetTooLarge
from framefleet.media.info import StreamInfo
from framefleet.units import format_bytes
from framefleet.vram.budget import MemoryBudget


class GpuPool(Protocol):
    """vLLM's `MultiModalGPUMemoryPool`, as its versions 0.25.1 to 0.33 have it."""

    @property
    def total_bytes(self) -> int:
        """This API server's share."""
        ...

    def acquire(self, nbytes: int) -> Any:
        """A lease with `release`; waits. Raises ValueError for more than the whole."""
        ...


def reserved_backend(
    device: Callable[[], NvdecDevice], pool: GpuPool | None, *, decoders: int, reserved_bytes: int
) -> PyNvVideoCodecBackend:
    """The NVDEC backend with at most `decoders`, each of which may take `reserved_bytes` without asking the pool."""
    extra_bytes = pool.total_bytes if pool else 0
    budget = MemoryBudget(decoders * reserved_bytes + extra_bytes, name="GPU memory that vLLM reserved for decoding")
    return PyNvVideoCodecBackend(lambda: ReservedDevice(device(), pool, reserved_bytes), budget=budget, lanes=decoders)


class ReservedDevice:
    """A device whose decoders hold leases."""

    def __init__(self, device: NvdecDevice, pool: GpuPool | None, reserved_bytes: int) -> None:
        self._device, self._pool, self._reserved_bytes = device, pool, reserved_bytes

    def caps(self, codec: str, chroma: str, bit_depth: int) -> NvdecCaps:
        """The device's."""
        return self._device.caps(codec, chroma, bit_depth)

    def canvas(self, info: StreamInfo, num_frames: int, width: int, height: int, *, on_device: bool) -> Canvas:
        """The device's."""
        return self._device.canvas(info, num_frames, width, height, on_device=on_device)

    def open_decoder(self, kind: LaneKind) -> Decoder:
        """A session with its lease. Raises BudgetTooLarge, DeviceError."""
        lease = self._lease(kind)
        try:
            return _LeasedDecoder(self._device.open_decoder(kind), lease)
        except BaseException:
            if lease is not None:
                lease.release()
            raise

    def _lease(self, kind: LaneKind) -> Any:
        extra = kind.lane_bytes() - self._reserved_bytes
        if extra <= 0:
            return None
        if self._pool is None or extra > self._pool.total_bytes:
            share = format_bytes(self._pool.total_bytes if self._pool else 0)
            raise BudgetTooLarge(
                "the picture is too large for what vLLM reserved for decoding",
                given=f"{kind.coded_width}x{kind.coded_height}, {format_bytes(extra)} more than a decoder's share",
                allowed=f"{share} of this API server",
                remedy="a larger --mm-ipc-gpu-memory-gb, fewer API servers, or a decode service",
            )
        return self._pool.acquire(extra)


class _LeasedDecoder:
    """A decoder that gives its lease back when it is closed. Everything else is the decoder's own."""

    def __init__(self, decoder: Decoder, lease: Any) -> None:
        self._decoder, self._lease = decoder, lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def close(self) -> None:
        self._decoder.close()
        if self._lease is not None:
            self._lease.release()
