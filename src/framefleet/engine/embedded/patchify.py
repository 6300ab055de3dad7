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

    def apply(self, values: torch.Tensor, channel_axis: int) -> torch.Tensor:
        """uint8 -> float32, normalised along `channel_axis`."""
        shape = [1] * values.ndim
        shape[channel_axis] = 3
        mean = (torch.tensor(self.mean) * (1.0 / self.rescale_factor)).view(shape)
        std = (torch.tensor(self.std) * (1.0 / self.rescale_factor)).view(shape)
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
    num_frames, height, width, _ = frames.shape
    check_size(height, width, patch_size * merge_size)
    if pad := -num_frames % temporal_patch_size:
        frames = np.concatenate([frames, np.repeat(frames[-1:], pad, axis=0)])
    grid_t = len(frames) // temporal_patch_size
    grid_h, grid_w = height // patch_size, width // patch_size
    blocks = torch.from_numpy(np.ascontiguousarray(frames)).view(
        grid_t, temporal_patch_size,
        grid_h // merge_size, merge_size, patch_size,
        grid_w // merge_size, merge_size, patch_size, 3,
    )  # fmt: skip
    ordered = blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).contiguous()  # while it is bytes, not floats
    patches = norm.apply(ordered, channel_axis=5)
    return patches.reshape(grid_t * grid_h * grid_w, -1), (grid_t, grid_h, grid_w)


def check_size(height: int, width: int, factor: int) -> None:
    """Raises CaptionRejected unless both sides are multiples of `factor`."""
    if height % factor or width % factor:
        raise CaptionRejected(
            "the frames do not have the model's size",
            given=f"{width}x{height}",
            allowed=f"sides that are multiples of {factor}",
            remedy="decode with the frame policy of the model (frame_policy_for)",
        )
