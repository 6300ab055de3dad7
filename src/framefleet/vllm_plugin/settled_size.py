"""Sizes that the model's processor keeps when the frames come back to it already resized. Pure arithmetic."""

from __future__ import annotations

import msgspec

from framefleet.decode.options import DecodeOptions
from framefleet.sampling.size import size_for_budget


def settled(options: DecodeOptions, width: int, height: int, num_frames: int) -> DecodeOptions:
    """The options, with a smaller budget where the size for an upright picture of `width` x `height` is not stable.

    Qwen3-VL's rule (transformers 5.24 `smart_resize`) counts the frames rounded to whole temporal patches when it
    looks whether they fit, and as they are when it shrinks them. Of 3, 7, 11 ... frames at the budget it therefore
    says "too large" of the very size it has chosen, and would resize a second time, and to another shape. Such clips
    are sized as if they had one frame more. Raises what `size_for_budget` does.
    """
    total = options.total_pixels
    if total is None or _is_stable(options, width, height, num_frames):
        return options
    smaller = total * num_frames // (num_frames + 1)
    return msgspec.structs.replace(options, total_pixels=max(smaller, options.min_total_pixels or 1))


def _is_stable(options: DecodeOptions, width: int, height: int, num_frames: int) -> bool:
    once = _size(options, width, height, num_frames)
    return _size(options, *once, num_frames) == once


def _size(options: DecodeOptions, width: int, height: int, num_frames: int) -> tuple[int, int]:
    return size_for_budget(
        width,
        height,
        num_frames,
        min_pixels=options.min_pixels,
        max_pixels=options.max_pixels,
        min_total_pixels=options.min_total_pixels,
        total_pixels=options.total_pixels,
        size_factor=options.size_factor,
    )
