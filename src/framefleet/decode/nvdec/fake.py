"""A software NVDEC for machines without a GPU: the same lanes, packets and planes, decoded by FFmpeg.

It is fed exactly what the hardware would be fed (start codes, parameter sets, only the planned packets), so tests of
the backend on it prove the plan and the packet shaping; only the silicon is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from framefleet.decode.gpu.taps import Taps, colour_coefficients, orient, resample_taps
from framefleet.decode.nvdec.caps import CODECS, NvdecCaps
from framefleet.decode.nvdec.lanes import Lane, LaneKind
from framefleet.errors import DecodeError, DeviceError
from framefleet.media.info import StreamInfo

_ENGINES = 7
_SUPERFRAME = 0b110
"""The first bits of a VP9 packet's last byte, where it holds several frames (annex B of the specification)."""


class FakeNvdecDevice:
    """A GPU in software. `num_open` and `num_opened` count its sessions; `fail_open` makes the next ones fail."""

    def __init__(self, *, max_width: int = 4096, max_height: int = 4096, fail_open: int = 0) -> None:
        self._caps = NvdecCaps(
            is_supported=True, num_engines=_ENGINES, min_width=48, min_height=16, max_width=max_width,
            max_height=max_height, max_macroblocks=65536,
        )  # fmt: skip
        self.fail_open = fail_open
        self.num_open = 0
        self.num_opened = 0
        self.num_fed = 0

    def caps(self, codec: str, chroma: str, bit_depth: int) -> NvdecCaps:
        """8-bit 4:2:0 of the codecs that real NVDEC takes."""
        is_taken = codec in CODECS and chroma == "4:2:0" and bit_depth == 8
        return self._caps if is_taken else NvdecCaps(is_supported=False)

    def open_decoder(self, kind: LaneKind) -> FakeDecoder:
        """A session."""
        if self.fail_open > 0:
            self.fail_open -= 1
            raise DeviceError("NVDEC gave no session", given="the fake was told so")
        self.num_open += 1
        self.num_opened += 1
        return FakeDecoder(self, kind)

    def canvas(self, info: StreamInfo, num_frames: int, width: int, height: int, *, on_device: bool) -> FakeCanvas:
        """Frames in ordinary memory."""
        if on_device:
            raise DeviceError("the fake NVDEC has no device memory", remedy="device='cpu'")
        return FakeCanvas(info, np.zeros((num_frames, height, width, 3), np.uint8))


class FakeDecoder:
    """An FFmpeg decoder that is fed packets without a container."""

    def __init__(self, device: FakeNvdecDevice, kind: LaneKind) -> None:
        self._device = device
        self._context = av.CodecContext.create(kind.codec, "r")
        self._context.thread_count = 1
        self._stamps: list[int] = []
        self._num_out = 0
        self._num_late = 0

    def feed(self, stamp: int, payload: npt.NDArray[np.uint8]) -> list[tuple[int, Any]]:
        """As the hardware."""
        self._device.num_fed += 1
        self._stamps.append(stamp)
        self._num_late |= self._context.name == "vp9" and payload[-1] >> 5 == _SUPERFRAME
        packet = av.Packet(payload.tobytes())
        packet.pts = packet.dts = stamp
        packet.time_base = Fraction(1, 1000)
        return self._run(lambda: self._context.decode(packet))

    def drain(self) -> list[tuple[int, Any]]:
        """As the hardware."""
        out = self._run(lambda: self._context.decode(None))
        self._context.flush_buffers()
        self._stamps.clear()
        self._num_out = self._num_late = 0
        return out

    def _run(self, decode: Callable[[], list[Any]]) -> list[tuple[int, Any]]:
        try:
            return [(self._named(picture.pts), _nv12(picture)) for picture in decode()]
        except av.FFmpegError as error:
            raise DecodeError("NVDEC failed on a packet", given=str(error)) from error

    def _named(self, stamp: int) -> int:
        """As NVDEC's parser: stamps that only ever grew are taken for decode times and dealt out in display order.

        In VP9 they are one packet late from the first superframe on.
        """
        place = self._num_out - self._num_late
        self._num_out += 1
        return self._stamps[place] if self._stamps == sorted(self._stamps) else stamp

    def close(self) -> None:
        """Free the session."""
        self._device.num_open -= 1
        del self._context


def _nv12(picture: Any) -> npt.NDArray[np.uint8]:
    """[rows + chroma rows, columns] as NVDEC lays it out; odd sides are padded to even ones as there."""
    nv12: npt.NDArray[np.uint8] = picture.reformat(format="nv12").to_ndarray()
    return nv12


class FakeCanvas:
    """The conversion of `gpu.convert`, in numpy with the same weights."""

    def __init__(self, info: StreamInfo, frames: npt.NDArray[np.uint8]) -> None:
        self._info = info
        self._frames = frames

    def put(self, slot: int, surface: Any, lane: Lane) -> None:
        """Convert at once."""
        info, out = self._info, self._frames[slot]
        small_h, small_w = out.shape[:2] if info.rotation_deg % 180 == 0 else out.shape[1::-1]
        rows = info.coded_height
        chroma = surface[rows:]
        luma = _resample(surface[:rows], resample_taps(rows, small_h), resample_taps(info.coded_width, small_w))
        vertical = resample_taps(chroma.shape[0], small_h, rows / 2)
        horizontal = resample_taps(chroma.shape[1] // 2, small_w, info.coded_width / 2, 0.25)
        cb, cr = (_resample(chroma[:, i::2], vertical, horizontal) for i in (0, 1))
        table = colour_coefficients(info.colour_matrix, is_full_range=info.is_full_range)
        rgb = np.stack([luma, cb, cr, np.ones_like(luma)], axis=-1) @ table.T
        place = orient(small_h, small_w, info.rotation_deg, hflip=info.hflip)
        y, x, c = np.ogrid[:small_h, :small_w, :3]
        out.reshape(-1)[place.base + y * place.step_y + x * place.step_x + c] = np.clip(rgb + 0.5, 0, 255)

    def settle(self, lane: Lane) -> None:
        """Nothing is pending."""

    def frames(self) -> npt.NDArray[np.uint8]:
        """The filled frames."""
        return self._frames


def _resample(plane: npt.NDArray[np.uint8], vertical: Taps, horizontal: Taps) -> npt.NDArray[np.float32]:
    return _matrix(vertical, plane.shape[0]) @ plane.astype(np.float32) @ _matrix(horizontal, plane.shape[1]).T


def _matrix(taps: Taps, num_samples: int) -> npt.NDArray[np.float32]:
    """[out, num_samples] dense weights."""
    out, count = taps.weights.shape
    matrix = np.zeros((out, num_samples), np.float32)
    columns = np.minimum(taps.start[:, None] + np.arange(count)[None, :], num_samples - 1)
    np.add.at(matrix, (np.arange(out)[:, None], columns), taps.weights)
    return matrix
