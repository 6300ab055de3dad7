"""uint8 frames to what the vision towers read, in one pass and without torchvision.

Same numbers as the video processors of transformers 5.24: `(x - mean / rescale_factor) / (std / rescale_factor)` in
float32 (`rescale_and_normalize`), and the patch order of `Qwen3VLVideoProcessor.patchify`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from framefleet.errors import CaptionRejected


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Per channel, as the checkpoint's processor configuration has it."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale_factor: float = 1 / 255

    def scaled(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of bytes, float32, to be broadcast with their 3 values laid out as `shape`."""
        mean = torch.tensor(self.mean) * (1.0 / self.rescale_factor)
        std = torch.tensor(self.std) * (1.0 / self.rescale_factor)
        return mean.view(shape), std.view(shape)

    def apply(self, values: torch.Tensor, channel_axis: int) -> torch.Tensor:
        """uint8 -> float32, normalised along `channel_axis`."""
        shape = [1] * values.ndim
        shape[channel_axis] = 3
        mean, std = self.scaled(tuple(shape))
        return values.to(torch.float32).sub_(mean).div_(std)


def patchify(
    frames: npt.NDArray[np.uint8],
    norm: Normalisation,
    *,
    patch_size: int = 16,
    temporal_patch_size: int = 2,
    merge_size: int = 2,
) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Frames [T, H, W, 3] uint8 RGB to patches [t*h*w, 3*temporal*patch*patch] float32, and the grid (t, h, w).

    T is padded to whole temporal patches by repeating the last frame. Raises CaptionRejected when H or W is not a
    multiple of patch_size * merge_size: frames must arrive at the model's size.
    """
    pictures = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    return patchify_pictures(
        pictures, norm, patch_size=patch_size, temporal_patch_size=temporal_patch_size, merge_size=merge_size
    )


def patchify_pictures(
    pictures: torch.Tensor,
    norm: Normalisation,
    *,
    patch_size: int = 16,
    temporal_patch_size: int = 2,
    merge_size: int = 2,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """As `patchify`, of pictures [T, 3, H, W] uint8 with any strides, to patches of `dtype`.

    Rounded to `dtype` once, from the float32 value. It goes row of patches by row of patches, so that what is between
    the bytes and the patches stays in the cache: of a clip of 113 MB in float32 nothing but the result is written out.
    """
    num_frames, _, height, width = pictures.shape
    check_size(height, width, patch_size * merge_size)
    if pad := -num_frames % temporal_patch_size:
        pictures = torch.cat([pictures, pictures[-1:].expand(pad, -1, -1, -1)])
    grid_t, grid_h, grid_w = len(pictures) // temporal_patch_size, height // patch_size, width // patch_size
    rows, columns = grid_h // merge_size, grid_w // merge_size
    blocks = pictures.view(
        grid_t, temporal_patch_size, 3, rows, merge_size, patch_size, columns, merge_size, patch_size
    ).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    patches = torch.empty(blocks.shape, dtype=dtype)
    ordered = torch.empty(blocks.shape[2:], dtype=torch.uint8)
    values = torch.empty(blocks.shape[2:], dtype=torch.float32)
    mean, std = norm.scaled((3, 1, 1, 1))
    for t in range(grid_t):
        for row in range(rows):
            ordered.copy_(blocks[t, row])
            values.copy_(ordered).sub_(mean).div_(std)
            patches[t, row].copy_(values)
    return patches.view(grid_t * grid_h * grid_w, -1), (grid_t, grid_h, grid_w)


def check_size(height: int, width: int, factor: int) -> None:
    """Raises CaptionRejected unless both sides are multiples of `factor`."""
    if height % factor or width % factor:
        raise CaptionRejected(
            "the frames do not have the model's size",
            given=f"{width}x{height}",
            allowed=f"sides that are multiples of {factor}",
            remedy="decode with the frame policy of the model (frame_policy_for)",
        )
