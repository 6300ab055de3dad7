"""From a decoded picture to upright RGB at the output size: colour, scale and turn in one place."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from framefleet.media.info import StreamInfo

UInt8 = npt.NDArray[np.uint8]
_MATRIX = {
    "bt601": Colorspace.ITU601,
    "bt709": Colorspace.ITU709,
    "bt2020": Colorspace.BT2020,
    "rgb": Colorspace.DEFAULT,
}
_SCALING = (
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
)


class PictureWriter:
    """Turns pictures of one clip into RGB arrays of one size; keeps the scaler's tables between pictures."""

    def __init__(self, info: StreamInfo, width: int, height: int) -> None:
        self._info = info
        self._size = (height, width) if info.rotation_deg in (90, 270) else (width, height)
        self._scaler = VideoReformatter()

    def write(self, picture: av.VideoFrame, out: UInt8) -> None:
        """Fill `out`, uint8 RGB [H, W, 3]."""
        width, height = self._size
        rgb: Any = self._scaler.reformat(
            picture,
            width=width,
            height=height,
            format="rgb24",
            src_colorspace=_MATRIX[self._info.colour_matrix],
            dst_colorspace=Colorspace.DEFAULT,
            src_color_range=ColorRange.JPEG if self._info.is_full_range else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=_SCALING,
            threads=1,
        )
        out[...] = turn_upright(rgb.to_ndarray(), self._info)


def turn_upright(rgb: UInt8, info: StreamInfo) -> UInt8:
    """A view of [H, W, 3], mirrored and turned as `info` asks."""
    if info.hflip:
        rgb = rgb[:, ::-1]
    return np.rot90(rgb, k=-(info.rotation_deg // 90)) if info.rotation_deg else rgb
