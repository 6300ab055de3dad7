"""Frames that stayed on the GPU (`device="cuda"`) to a vision tower's normalised patches, in one pass there."""

from __future__ import annotations

import torch
import triton

from framefleet.decode.gpu.kernels import frames_to_patches
from framefleet.errors import ConfigError

Three = tuple[float, float, float]


def patches(
    frames: torch.Tensor,
    mean: Three,
    std: Three,
    *,
    patch_size: int = 16,
    temporal_patch_size: int = 2,
    merge_size: int = 2,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Frames [T, H, W, 3] uint8 RGB to patches [t*h*w, 3*temporal*patch*patch] of `dtype`, and the grid (t, h, w).

    `mean` and `std` are of values 0 to 1, as processor configurations have them. Order and padding (the last frame
    again) are those of `Qwen3VLVideoProcessor` (transformers 5.24); `engine.embedded.patchify` does the same on the
    CPU. Raises ConfigError when H or W is not a multiple of patch_size * merge_size.
    """
    num_frames, height, width, _ = frames.shape
    if height % (patch_size * merge_size) or width % (patch_size * merge_size):
        raise ConfigError(
            "the frames do not have the model's size",
            given=f"{width}x{height}",
            allowed=f"sides that are multiples of {patch_size * merge_size}",
        )
    grid = (-(-num_frames // temporal_patch_size), height // patch_size, width // patch_size)
    num_values = 3 * temporal_patch_size * patch_size * patch_size
    out = torch.empty((grid[0] * grid[1] * grid[2], num_values), dtype=dtype, device=frames.device)
    norm = torch.tensor([255 * value for value in (*mean, *std)], dtype=torch.float32, device=frames.device)
    frames_to_patches[(len(out),)](
        frames.contiguous(), out, norm, num_frames, height, width, grid[1] // merge_size, grid[2] // merge_size,
        PATCH=patch_size, TEMPORAL=temporal_patch_size, MERGE=merge_size, BLOCK=triton.next_power_of_2(num_values),
    )  # fmt: skip
    return out, grid
