"""Qwen3-VL's video processor with its last steps in one pass: bytes to normalised patches of the model's dtype.

The processor of transformers normalises a clip in float32, copies it into patch order and leaves the rounding to vLLM:
three passes over 113 MB for 16 frames of 1024x576. `patchify_pictures` gives the same numbers, rounded once, in a
quarter of the time. It takes over where the frames have the model's size and are handled as it knows; anything else
goes the processor's own way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from framefleet.engine.embedded.patchify import Normalisation, patchify_pictures
from framefleet.vllm_plugin.log import log

_KNOWN = frozenset({
    "do_resize", "size", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
    "patch_size", "temporal_patch_size", "merge_size", "cap_pixels_per_frame", "return_tensors", "do_center_crop",
    "do_convert_rgb",
    "crop_size", "do_pad", "pad_size", "interpolation", "disable_grouping", "fps", "num_frames", "min_frames",
    "max_frames", "max_video_tokens", "max_duration", "min_pixels", "max_pixels",
})  # fmt: skip
"""Arguments of `_preprocess` in transformers 5.0 to 5.24, and those that it is handed and leaves aside."""
_dtype: ContextVar[torch.dtype] = ContextVar("dtype", default=torch.float32)


def speed_up(processor: Any, processing_context: Any) -> bool:
    """Replace the steps in transformers' `Qwen3VLVideoProcessor`, and have vLLM's `InputProcessingContext` say which
    dtype its model has. Idempotent. False, and nothing changed, where these are not as known.
    """
    own, call = getattr(processor, "_preprocess", None), getattr(processing_context, "call_hf_processor", None)
    if own is None or call is None:
        log.warning("framefleet: no faster patchify: not the video processor or the vLLM that it knows")
        return False
    if not hasattr(own, "is_fast"):
        processor._preprocess = _fast(own)  # noqa: SLF001 - there is no public seam between resize and patchify
        processing_context.call_hf_processor = _saying_dtype(call)
    return True


def _saying_dtype(call: Callable[..., Any]) -> Callable[..., Any]:
    def call_hf_processor(self: Any, *arguments: Any, **named: Any) -> Any:
        token = _dtype.set(self.model_config.dtype)
        try:
            return call(self, *arguments, **named)
        finally:
            _dtype.reset(token)

    return call_hf_processor


def _fast(own: Callable[..., Any]) -> Callable[..., Any]:
    def preprocess(self: Any, videos: list[torch.Tensor], **named: Any) -> Any:
        if not _is_known(videos, named):
            return own(self, videos=videos, **named)
        outline = _outline(own, self, videos, named)
        if outline is None or not _keeps_size(videos, outline["video_grid_thw"], named):
            return own(self, videos=videos, **named)
        outline["pixel_values_videos"] = _patches(videos, named)
        return outline

    preprocess.is_fast = True  # type: ignore[attr-defined]
    return preprocess


def _is_known(videos: list[torch.Tensor], named: dict[str, Any]) -> bool:
    if named.keys() - _KNOWN or not (named.get("do_rescale") and named.get("do_normalize")):
        return False
    if any(named.get(name) for name in ("do_center_crop", "do_pad")) or named.get("return_tensors") not in ("pt", None):
        return False
    if any(not isinstance(named[name], (list, tuple)) or len(named[name]) != 3 for name in ("image_mean", "image_std")):
        return False
    return bool(videos) and all(
        isinstance(video, torch.Tensor) and video.is_cpu and video.dtype == torch.uint8 and video.shape[1] == 3
        for video in videos
    )


def _outline(own: Callable[..., Any], processor: Any, videos: list[torch.Tensor], named: dict[str, Any]) -> Any:
    """What the processor itself would return, by shapes alone: its own rule says how it would resize."""
    shapes = [torch.empty(video.shape, dtype=torch.uint8, device="meta") for video in videos]
    try:
        return own(processor, videos=shapes, **named | {"do_rescale": False, "do_normalize": False})
    except Exception as error:  # noqa: BLE001 - a version that looks into the values: it gets the videos themselves
        log.warning("framefleet: no faster patchify with this version of transformers: %s", error)
        return None


def _keeps_size(videos: list[torch.Tensor], grids: torch.Tensor, named: dict[str, Any]) -> bool:
    patch, temporal = named["patch_size"], named["temporal_patch_size"]
    kept = [[-(-len(v) // temporal), v.shape[2] // patch, v.shape[3] // patch] for v in videos]
    whole = all(v.shape[2] % patch == v.shape[3] % patch == 0 for v in videos)
    return whole and grids.tolist() == kept


def _patches(videos: list[torch.Tensor], named: dict[str, Any]) -> torch.Tensor:
    norm = Normalisation(tuple(named["image_mean"]), tuple(named["image_std"]), named["rescale_factor"])
    sizes = {name: named[name] for name in ("patch_size", "temporal_patch_size", "merge_size")}
    patches = [patchify_pictures(video, norm, **sizes, dtype=_dtype.get())[0] for video in videos]
    return patches[0] if len(patches) == 1 else torch.cat(patches)
