"""Output sizes: exact, or from a pixel budget as the Qwen-VL family computes it. Pure arithmetic."""

from __future__ import annotations

import math
from typing import Any

from framefleet.errors import ConfigError, SourceUnsupported

MAX_ASPECT = 200
"""The Qwen-VL processors refuse pictures longer than this times their width."""


def smart_resize(
    num_frames: int,
    height: int,
    width: int,
    *,
    factor: int = 32,
    temporal_factor: int = 2,
    min_pixels: int = 128 * 32 * 32,
    max_pixels: int = 768 * 32 * 32,
) -> tuple[int, int]:
    """(height, width) of every frame of a video, as Qwen3-VL computes it.

    Both are multiples of `factor`; frames x height x width (frames rounded to `temporal_factor`) is within
    `min_pixels` to `max_pixels` where the aspect ratio lets it. Rule and defaults from transformers 5.24,
    `models/qwen3_vl/video_processing_qwen3_vl.py`, `smart_resize` and `Qwen3VLVideoProcessor.size`.

    Raises ConfigError for fewer frames than `temporal_factor` (repeat them to fill the temporal patch first) and
    SourceUnsupported for slivers (aspect ratio above 200).
    """
    if num_frames < temporal_factor:
        raise ConfigError(
            "too few frames for the temporal patch", given=str(num_frames), allowed=f"{temporal_factor} up"
        )
    if height < factor or width < factor:
        enlarge = max(factor / height, factor / width)
        height, width = int(height * enlarge), int(width * enlarge)
    _refuse_sliver(height, width)
    rounded_frames = round(num_frames / temporal_factor) * temporal_factor
    area = rounded_frames * _to_multiple(height, factor) * _to_multiple(width, factor)
    exact = num_frames * height * width
    return _fit(height, width, factor, area=area, exact=exact, min_pixels=min_pixels, max_pixels=max_pixels)


def smart_resize_image(
    height: int, width: int, *, factor: int = 28, min_pixels: int = 56 * 56, max_pixels: int = 14 * 14 * 4 * 1280
) -> tuple[int, int]:
    """(height, width) of one picture, as Qwen2-VL and Qwen2.5-VL compute it for images and for video frames.

    Rule and defaults from transformers 5.24, `models/qwen2_vl/video_processing_qwen2_vl.py`, `smart_resize`.
    Raises SourceUnsupported for slivers.
    """
    _refuse_sliver(height, width)
    area = _to_multiple(height, factor) * _to_multiple(width, factor)
    return _fit(height, width, factor, area=area, exact=height * width, min_pixels=min_pixels, max_pixels=max_pixels)


def _to_multiple(side: int, factor: int) -> int:
    return round(side / factor) * factor


def _refuse_sliver(height: int, width: int) -> None:
    aspect = max(height, width) / min(height, width)
    if aspect > MAX_ASPECT:
        raise SourceUnsupported(
            "the picture is too long and thin for this model's sizing",
            given=f"{width}x{height} (aspect {aspect:.0f})",
            allowed=f"aspect up to {MAX_ASPECT}",
            remedy="an exact size",
        )


def _fit(
    height: int, width: int, factor: int, *, area: int, exact: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """`area` is the budgeted product with rounded sides, `exact` the same with the true ones."""
    if area > max_pixels:
        shrink = math.sqrt(exact / max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if area < min_pixels:
        enlarge = math.sqrt(min_pixels / exact)
        return math.ceil(height * enlarge / factor) * factor, math.ceil(width * enlarge / factor) * factor
    return _to_multiple(height, factor), _to_multiple(width, factor)


def size_for_budget(
    width: int,
    height: int,
    num_frames: int,
    *,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    min_total_pixels: int | None = None,
    total_pixels: int | None = None,
    size_factor: int = 1,
    temporal_factor: int = 2,
) -> tuple[int, int]:
    """(width, height) of the output frames for an upright picture of `width` x `height`.

    With a budget over all frames (`total_pixels`, `min_total_pixels`) the video rule applies, and budgets of one frame
    are multiplied by the frames and combined with it; with budgets of one frame only, the image rule; with none,
    the sides are rounded to `size_factor`. Fewer frames than `temporal_factor` are counted as if repeated to fill
    it, which is what the model's patchify does with them. An upper budget wins over a lower one it contradicts.

    Raises ConfigError for contradictory budgets, SourceUnsupported for slivers where a model's rule applies.
    """
    _check_budgets(min_pixels=min_pixels, max_pixels=max_pixels)
    _check_budgets(min_total_pixels=min_total_pixels, total_pixels=total_pixels)
    low, high = min_pixels or 0, max_pixels or _NO_LIMIT
    if total_pixels is not None or min_total_pixels is not None:
        frames = max(num_frames, temporal_factor)
        high = min(total_pixels or _NO_LIMIT, high * frames)
        low = min(max(min_total_pixels or 0, low * frames), high)
        sides = smart_resize(
            frames, height, width,
            factor=size_factor, temporal_factor=temporal_factor, min_pixels=low, max_pixels=high,
        )  # fmt: skip
    elif size_factor > 1:
        sides = smart_resize_image(height, width, factor=size_factor, min_pixels=low, max_pixels=high)
    else:
        area = height * width
        sides = _fit(height, width, 1, area=area, exact=area, min_pixels=low, max_pixels=high)
    return max(sides[1], size_factor), max(sides[0], size_factor)


def kept_size(
    width: int, height: int, num_frames: int, *, total_pixels: int | None = None, **budgets: Any
) -> tuple[int, int]:
    """As `size_for_budget`, a little smaller where the rule would change its own answer.

    Qwen3-VL's rule (transformers 5.24 `smart_resize`) counts the frames rounded to whole temporal patches when it
    looks whether they fit, and as they are when it shrinks them. Of 3, 7, 11 ... frames at the budget it therefore
    says "too large" of the very size it has chosen, and a processor that applies it again would resize a second time,
    and to another shape. Such clips are sized as if they had one frame more; where rounding undoes even that, the rule
    is applied to its answer until that stays.
    """
    once = size_for_budget(width, height, num_frames, total_pixels=total_pixels, **budgets)
    if total_pixels is None or size_for_budget(*once, num_frames, total_pixels=total_pixels, **budgets) == once:
        return once
    smaller = max(total_pixels * num_frames // (num_frames + 1), budgets.get("min_total_pixels") or 1)
    size = size_for_budget(width, height, num_frames, total_pixels=smaller, **budgets)
    for _ in range(_MOST_ROUNDS):
        again = size_for_budget(*size, num_frames, total_pixels=total_pixels, **budgets)
        if again == size:
            break
        size = again
    return size


_NO_LIMIT = 1 << 62
_MOST_ROUNDS = 64
"""Each round takes a step of `size_factor` off a side."""


def _check_budgets(**low_and_high: int | None) -> None:
    (low_name, low), (high_name, high) = low_and_high.items()
    for name, value in low_and_high.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be positive", given=str(value), allowed="1 up")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{low_name} is above {high_name}", given=f"{low} > {high}")
