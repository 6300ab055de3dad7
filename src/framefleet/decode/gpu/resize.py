"""Resizing RGB tensors where they are, by the filter that the other backends use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def resize_tensor(batch: Tensor, width: int, height: int) -> Tensor:
    """uint8 [T, h, w, 3] to [T, height, width, 3]: bicubic, the filter widened when shrinking."""
    if tuple(batch.shape[1:3]) == (height, width):
        return batch
    from torch.nn.functional import interpolate

    channels_first = batch.permute(0, 3, 1, 2).float()
    small = interpolate(channels_first, (height, width), mode="bicubic", antialias=True)
    return small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous()
