"""The seam between the NVDEC backend and a GPU. `hardware` is the real one, `fake` decodes in software for tests."""

from __future__ import annotations

from typing import Any, Protocol

from framefleet.decode.nvdec.caps import NvdecCaps
from framefleet.decode.nvdec.lanes import Decoder, Lane, LaneKind
from framefleet.media.info import StreamInfo


class Canvas(Protocol):
    """The output frames of one clip, filled slot by slot, by several lanes at once where a clip is spread."""

    def put(self, slot: int, surface: Any, lane: Lane) -> None:
        """Convert a surface into slot `slot`; may return before the GPU is done, as long as the lane is."""
        ...

    def settle(self, lane: Lane) -> None:
        """Wait until all that `lane` put here has arrived."""
        ...

    def frames(self) -> Any:
        """uint8 [T, H, W, 3]: an ndarray, or a CUDA tensor where that was asked for."""
        ...


class NvdecDevice(Protocol):
    """One GPU."""

    def caps(self, codec: str, chroma: str, bit_depth: int) -> NvdecCaps:
        """What its NVDEC takes (cached)."""
        ...

    def open_decoder(self, kind: LaneKind) -> Decoder:
        """A new session with its own stream. Raises DeviceError."""
        ...

    def canvas(self, info: StreamInfo, num_frames: int, width: int, height: int, *, on_device: bool) -> Canvas:
        """Room for the output frames of one clip."""
        ...
