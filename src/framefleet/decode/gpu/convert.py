"""One fused Triton pass: planes in, upright RGB at the output size out. Nothing full-size is ever written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import triton

from framefleet.decode.gpu.kernels import planes_to_rgb
from framefleet.decode.gpu.taps import Orientation, Taps, colour_coefficients, orient, resample_taps

_BLOCK_X = 128


@dataclass(frozen=True)
class SurfaceFormat:
    """A decoder's output: luma height x width (after cropping), its sample depth and chroma layout.

    4:2:0 surfaces are semi-planar (NV12, or P016 with the value in the high bits): luma rows, then rows of
    interleaved Cb Cr. 4:4:4 surfaces are three full planes, one below the other.
    """

    height: int
    width: int
    is_16_bit: bool
    chroma: str
    colour_matrix: str
    is_full_range: bool

    @property
    def chroma_shape(self) -> tuple[int, int]:
        """(rows, columns) of one chroma plane."""
        return (self.height, self.width) if self.chroma == "4:4:4" else (-(-self.height // 2), -(-self.width // 2))


class SurfaceConverter:
    """Converts surfaces of one format to upright uint8 RGB [H, W, 3] of one size, on one device.

    `width`, `height` are the upright output size. Weights are uploaded once, when the converter is made.
    """

    def __init__(
        self, surface: SurfaceFormat, width: int, height: int, rotation_deg: int, *, hflip: bool, device: str
    ) -> None:
        self.surface = surface
        self.device = device
        small_h, small_w = (height, width) if rotation_deg % 180 == 0 else (width, height)
        self._grid = (small_h, triton.cdiv(small_w, _BLOCK_X))
        self._small_width = small_w
        self._orientation: Orientation = orient(small_h, small_w, rotation_deg, hflip=hflip)
        c_rows, c_cols = surface.chroma_shape
        sited_left = 0.25 if surface.chroma == "4:2:0" else 0.0
        self._luma_v = self._upload(resample_taps(surface.height, small_h))
        self._luma_h = self._upload(resample_taps(surface.width, small_w))
        ratio = 0.5 if surface.chroma == "4:2:0" else 1.0
        self._chroma_v = self._upload(resample_taps(c_rows, small_h, surface.height * ratio))
        self._chroma_h = self._upload(resample_taps(c_cols, small_w, surface.width * ratio, sited_left))

    def _upload(self, taps: Taps) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(taps.start).to(self.device), torch.from_numpy(taps.weights).to(self.device)

    @cached_property
    def _coefficients(self) -> torch.Tensor:
        table = colour_coefficients(self.surface.colour_matrix, is_full_range=self.surface.is_full_range)
        return torch.from_numpy(np.ascontiguousarray(table)).to(self.device)

    def planes(self, surface: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """Views of the luma, Cb and Cr planes of a 2-D surface tensor, and the step between chroma samples."""
        rows = self.surface.height
        if self.surface.chroma == "4:4:4":
            return surface[:rows], surface[rows : 2 * rows], surface[2 * rows :], 1
        chroma = surface[rows:]
        return surface[:rows], chroma, chroma[:, 1:], 2

    def __call__(self, surface: torch.Tensor, out: torch.Tensor) -> None:
        """Write `surface` [rows, cols] (uint8 or 16 bit) as RGB into `out` uint8 [H, W, 3], on the current stream."""
        assert out.is_contiguous()
        assert out.shape == (self._orientation.upright_height, self._orientation.upright_width, 3), out.shape
        luma, cb, cr, step = self.planes(surface)
        self._launch(luma, cb, cr, step, out)

    def _launch(self, luma: torch.Tensor, cb: torch.Tensor, cr: torch.Tensor, step: int, out: torch.Tensor) -> None:
        c_rows, c_cols = self.surface.chroma_shape
        tables: list[Any] = [*self._luma_v, *self._luma_h, *self._chroma_v, *self._chroma_h]
        place = self._orientation
        planes_to_rgb[self._grid](
            luma, cb, cr, out, self._coefficients,
            luma.stride(0), cb.stride(0), step, self.surface.height, self.surface.width, c_rows, c_cols,
            *tables,
            self._small_width, place.base, place.step_y, place.step_x, 1 / 256 if self.surface.is_16_bit else 1.0,
            KYV=self._luma_v[1].shape[1], KYH=self._luma_h[1].shape[1],
            KCV=self._chroma_v[1].shape[1], KCH=self._chroma_h[1].shape[1], BLOCK=_BLOCK_X,
        )  # fmt: skip
