"""Which frames a model wants, and how large: read from its checkpoint, so that the decoder delivers them ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framefleet.decode.options import DecodeOptions
from framefleet.engine.embedded.checkpoint import Checkpoint, open_checkpoint


def frame_policy_for(model: str) -> DecodeOptions:
    """The decode options under which frames need no further sampling or resizing before the model's patchify.

    `model` is `dashcam_tiny`, a folder or a hub id. Raises ConfigError as `open_checkpoint` does.
    """
    return policy_of(open_checkpoint(model))


def policy_of(checkpoint: Checkpoint) -> DecodeOptions:
    """The same for an opened checkpoint. Pure."""
    return _POLICIES[checkpoint.family](checkpoint.video)


def media_io_kwargs(policy: DecodeOptions) -> dict[str, Any]:
    """The policy's sampling as vLLM's `--media-io-kwargs`, whose loaders do not read it from the checkpoint.

    Seen with vLLM 0.32: its `qwen3_vl` loader takes min_frames 4 and max_frames 768 unless told.
    """
    asked = {"fps": policy.fps, "min_frames": policy.min_frames, "max_frames": policy.max_frames}
    return {"video": {name: value for name, value in asked.items() if value is not None}}


def _qwen3_vl(video: dict[str, Any]) -> DecodeOptions:
    """Defaults and meaning: transformers 5.24 `Qwen3VLVideoProcessor`. The size budget is of all frames together."""
    factor = video.get("patch_size", 16) * video.get("merge_size", 2)
    size = video.get("size") or {}
    frame_cap = video.get("max_video_tokens", 768) * factor**2 if video.get("cap_pixels_per_frame") else None
    return DecodeOptions(
        rule="qwen3_vl",
        fps=float(video.get("fps") or 2),
        min_frames=video.get("min_frames", 4),
        max_frames=video.get("max_frames", 768),
        total_pixels=size.get("longest_edge", 768 * 32 * 32),
        min_total_pixels=size.get("shortest_edge", 128 * 32 * 32),
        max_pixels=frame_cap,
        size_factor=factor,
    )


def _qwen2_5_vl(video: dict[str, Any]) -> DecodeOptions:
    """Defaults and meaning: transformers 5.24 `Qwen2VLVideoProcessor`. The size budget is of each frame.

    A checkpoint with an image processor only (Qwen2.5-VL as published) says nothing of video: its image limits, up to
    16,384 tokens a frame, are not used; those of the video processor's class are.
    """
    factor = video.get("patch_size", 14) * video.get("merge_size", 2)
    limits = video if "video_processor_type" in video else {}
    size = limits.get("size") or {}
    return DecodeOptions(
        rule="qwen2_5_vl",
        fps=float(video.get("fps") or 2),
        min_frames=video.get("min_frames", 4),
        max_frames=video.get("max_frames", 768),
        max_pixels=limits.get("max_pixels") or size.get("longest_edge") or 768 * 28 * 28,
        min_pixels=limits.get("min_pixels") or size.get("shortest_edge") or 128 * 28 * 28,
        size_factor=factor,
    )


def _smolvlm(video: dict[str, Any]) -> DecodeOptions:
    """Defaults and meaning: transformers 5.24 `SmolVLMVideoProcessor`; frames become squares of `max_image_size`.

    The stock processor resizes twice (to `size`, then to the square); the decoder does it in one step.
    """
    sampling = video.get("video_sampling") or {}
    edge = (video.get("max_image_size") or {}).get("longest_edge", 364)
    return DecodeOptions(
        rule="smolvlm2",
        fps=float(sampling.get("fps") or video.get("fps") or 1),
        max_frames=sampling.get("max_frames") or video.get("num_frames") or 64,
        size=(edge, edge),
    )


_POLICIES: dict[str, Callable[[dict[str, Any]], DecodeOptions]] = {
    "qwen3_vl": _qwen3_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "smolvlm": _smolvlm,
}
