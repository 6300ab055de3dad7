"""Resizing for libraries that convert to RGB before anything else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]


def resize_rgb(rgb: UInt8, width: int, height: int) -> UInt8:
    """[H, W, 3] to [height, width, 3]: bicubic, the filter widened when shrinking (as swscale and the model do it)."""
    if rgb.shape[:2] == (height, width):
        return rgb
    from PIL import Image

    return np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BICUBIC))
