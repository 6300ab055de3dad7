"""When each frame is, in the terms that models and servers take: row numbers, a rate, a count and a duration."""

from __future__ import annotations

import msgspec
import numpy as np

from framefleet.decode.decoder import DecodedFrames
from framefleet.units import Span

FALLBACK_FPS = 24.0
"""Where a clip has no rate (a still): what transformers assumes (Qwen3VLProcessor.replace_video_token)."""


class FrameClock(msgspec.Struct, frozen=True):
    """The metadata of sampled frames, as Hugging Face's VideoMetadata and vLLM's loaders name it."""

    frames_indices: list[int]
    """[T] rows of the clip, or of the window counted from its first frame."""
    fps: float
    """Of the clip, not of the sample; above 0."""
    total_num_frames: int
    """Frames of the clip or window."""
    duration: float
    """Seconds of the clip or window."""

    @property
    def timestamps_s(self) -> list[float]:
        """[T] seconds, row / fps."""
        return [row / self.fps for row in self.frames_indices]

    @property
    def sampled_fps(self) -> float:
        """Rate of the sampled frames (as VideoMetadata.sampled_fps)."""
        return len(self.frames_indices) / self.total_num_frames * self.fps


def clock_of(frames: DecodedFrames, span: Span | None) -> FrameClock:
    """The clock of the frames. A window counts from its own first frame: to the model it is a clip of its own."""
    fps = frames.fps if frames.fps > 0 else FALLBACK_FPS
    rows = frames.indices
    if span is None:
        return FrameClock(rows.tolist(), fps, max(frames.total_num_frames, 1), frames.duration_s)
    rows = rows - rows[0]
    in_clip = frames.total_num_frames - int(frames.indices[0])
    total = max(min(round(span.duration_s * fps), in_clip), int(np.max(rows)) + 1)
    return FrameClock(rows.tolist(), fps, total, total / fps)
