"""The real GPU: PyNvVideoCodec for decoding, Triton for colour and size, pinned memory for the way out.

Everything of one lane runs on the lane's CUDA stream: the decoder's copy of a surface, our conversion of it and the
copy of the small frame to the host. So a surface needs no lock: the next picture is written behind its conversion.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import PyNvVideoCodec as nvc  # noqa: N813
import torch
import torch.utils.dlpack

from framefleet.decode.gpu.convert import SurfaceConverter, SurfaceFormat
from framefleet.decode.nvdec.caps import CODECS, NvdecCaps, query_caps
from framefleet.decode.nvdec.lanes import Lane, LaneKind
from framefleet.errors import DecodeError, DeviceError
from framefleet.media.info import StreamInfo


class CudaDevice:
    """One GPU, by its index among the visible ones."""

    def __init__(self, gpu: int = 0) -> None:
        if not torch.cuda.is_available():
            raise DeviceError("no CUDA device is visible", remedy="an NVIDIA GPU and driver, or backend='pyav'")
        self.gpu = gpu
        self.caps = cache(self._caps)

    def _caps(self, codec: str, chroma: str, bit_depth: int) -> NvdecCaps:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return query_caps(nvc, self.gpu, codec, chroma, bit_depth)

    def open_decoder(self, kind: LaneKind) -> HardwareDecoder:
        """A new NVDEC session."""
        try:
            return HardwareDecoder(self.gpu, kind)
        except Exception as error:
            raise DeviceError("NVDEC gave no session", given=f"{kind} ({error})", remedy="fewer hw_decoders") from error

    def canvas(self, info: StreamInfo, num_frames: int, width: int, height: int, *, on_device: bool) -> CudaCanvas:
        """Room for one clip's output."""
        return CudaCanvas(self.gpu, info, (num_frames, height, width, 3), on_device=on_device)


class HardwareDecoder:
    """One PyNvVideoCodec decoder on its own stream."""

    def __init__(self, gpu: int, kind: LaneKind) -> None:
        self.kind = kind
        self.stream: torch.cuda.Stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
        self._decoder: Any = nvc.CreateDecoder(
            gpuid=gpu,
            codec=getattr(nvc.cudaVideoCodec, CODECS[kind.codec]),
            cudastream=self.stream.cuda_stream,
            usedevicememory=True,
        )

    def feed(self, stamp: int, payload: npt.NDArray[np.uint8]) -> list[tuple[int, Any]]:
        """Pictures that came out, under the stamps of their packets."""
        packet = nvc.PacketData()
        packet.bsl_data, packet.bsl, packet.pts = payload.ctypes.data, payload.nbytes, stamp
        return self._decode(packet)

    def drain(self) -> list[tuple[int, Any]]:
        """An empty packet is the parser's end of stream."""
        end = nvc.PacketData()
        end.bsl = 0
        return self._decode(end)

    def _decode(self, packet: Any) -> list[tuple[int, Any]]:
        try:
            return [(frame.getPTS(), frame) for frame in self._decoder.Decode(packet)]
        except Exception as error:
            raise DecodeError("NVDEC failed on a packet", given=str(error)) from error

    def close(self) -> None:
        """Free the session."""
        self.stream.synchronize()
        self._decoder = None


class CudaCanvas:
    """Frames of one clip: converted on the lanes' streams, in pinned memory or on the device."""

    def __init__(self, gpu: int, info: StreamInfo, shape: tuple[int, int, int, int], *, on_device: bool) -> None:
        self._device = f"cuda:{gpu}"
        self._info = info
        self._on_device = on_device
        self._frames = (
            torch.empty(shape, dtype=torch.uint8, device=self._device)
            if on_device
            else torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        )

    def put(self, slot: int, surface: Any, lane: Lane) -> None:
        """Convert, and start the copy to the host."""
        decoder: HardwareDecoder = lane.decoder  # type: ignore[assignment]
        with torch.cuda.stream(decoder.stream):
            pixels = torch.utils.dlpack.from_dlpack(surface)
            converter, small = self._converter(lane, pixels)
            target = self._frames[slot] if self._on_device else small
            converter(pixels, target)
            if not self._on_device:
                self._frames[slot].copy_(small, non_blocking=True)

    def _converter(self, lane: Lane, pixels: torch.Tensor) -> tuple[SurfaceConverter, torch.Tensor]:
        info = self._info
        _, height, width, _ = self._frames.shape
        surface = SurfaceFormat(
            info.coded_height, info.coded_width, pixels.element_size() == 2, info.chroma,
            info.colour_matrix, info.is_full_range,
        )  # fmt: skip
        rows = surface.height * 3 if info.chroma == "4:4:4" else surface.height + surface.chroma_shape[0]
        if tuple(pixels.shape) != (rows, surface.chroma_shape[1] * 2 if info.chroma == "4:2:0" else surface.width):
            raise DecodeError(
                "NVDEC's picture has another size than the stream", given=f"{tuple(pixels.shape)}", allowed=f"{surface}"
            )
        key = (surface, width, height, info.rotation_deg, info.hflip)
        if key not in lane.converters:
            lane.converters.clear()
            # torch keeps memory apart by stream: on the lane's own it would set 20 MiB aside for this one frame
            with torch.cuda.stream(torch.cuda.default_stream(self._device)):
                converter = SurfaceConverter(
                    surface, width, height, info.rotation_deg, hflip=info.hflip, device=self._device
                )
                small = torch.empty((height, width, 3), dtype=torch.uint8, device=self._device)
            lane.converters[key] = (converter, small)
        return lane.converters[key]  # type: ignore[no-any-return]

    def settle(self, lane: Lane) -> None:
        """Wait for the lane's stream."""
        decoder: HardwareDecoder = lane.decoder  # type: ignore[assignment]
        decoder.stream.synchronize()

    def frames(self) -> Any:
        """The filled frames."""
        return self._frames if self._on_device else self._frames.numpy()
