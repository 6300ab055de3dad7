"""Sampling rules of models, as their own processors compute them. Each cites its source.

A rule chooses rows and nothing else: a clip with fewer frames than the model's temporal patch gives the frames it
has, and the engine's patchify repeats the last one (transformers does the same), so no rule returns a row twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from framefleet.errors import ConfigError
from framefleet.sampling.sampler import FrameSampler, FrameTargets, Int64
from framefleet.sampling.uniform import check_bounds, rows_within, spread_rows
from framefleet.units import NS_PER_S

MAX_RULE_FPS = 30
"""vLLM caps the rate asked of the Qwen rules here."""


def clip_duration_s(pts_ns: Int64, end_ns: int) -> float:
    """Seconds from first frame to end, taking stamps rounded to the container's clock for what they meant.

    The rules below truncate `duration * fps`. A container that keeps whole milliseconds may say 0.999 s for one
    second, which would lose a frame against processors that divide the count by the nominal rate. So a duration
    is taken as up to one tick of the clock longer: 1 ms where all stamps are whole milliseconds, else 1/90,000 s.
    """
    tick_ns = 1_000_000 if not np.any(pts_ns % 1_000_000) else NS_PER_S // 90_000
    return (end_ns - int(pts_ns[0]) + tick_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class Qwen3VLSampler:
    """Qwen3-VL: `int(duration * fps)` rows within [min_frames, max_frames, N], spread evenly.

    Sources: transformers 5.24 `Qwen3VLVideoProcessor.sample_frames` (fps 2, min_frames 4, max_frames 768), and vLLM
    0.32 `multimodal/video.py` `Qwen3VLVideoBackend`, which caps fps at 30 and max_frames at 768. There the duration
    is N / rate; here it is the presented duration, which is the same for a constant rate.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    max_duration_s: float | None = None

    def __post_init__(self) -> None:
        check_bounds(self.min_frames, self.max_frames)

    def sample(self, pts_ns: Int64, end_ns: int) -> FrameTargets:
        """Choose among frames shown at `pts_ns` [N], N >= 1, the last of which ends at `end_ns`."""
        pts_ns, end_ns = _cut(pts_ns, end_ns, self.max_duration_s)
        wanted = int(clip_duration_s(pts_ns, end_ns) * min(self.fps, MAX_RULE_FPS))
        wanted = min(max(wanted, self.min_frames), self.max_frames, 768, len(pts_ns))
        return FrameTargets(spread_rows(len(pts_ns), wanted))


@dataclass(frozen=True, slots=True)
class Qwen25VLSampler:
    """Qwen2-VL and Qwen2.5-VL: `duration * fps` rows, floored to whole temporal patches; row `floor(k * N / count)`.

    Sources: transformers 5.24 `Qwen2VLVideoProcessor.sample_frames` (which Qwen2.5-VL uses), and vLLM 0.32
    `multimodal/video.py` `Qwen2VLVideoBackend` (fps 2, capped at 30). Both take the rows from a float range that
    now and then yields one index past the last frame; this takes the count that was meant. They cannot sample
    a clip shorter than the temporal patch at all; this gives its frames.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    max_duration_s: float | None = None
    temporal_patch_size: int = 2

    def __post_init__(self) -> None:
        check_bounds(self.min_frames, self.max_frames)

    def sample(self, pts_ns: Int64, end_ns: int) -> FrameTargets:
        """Choose among frames shown at `pts_ns` [N], N >= 1, the last of which ends at `end_ns`."""
        pts_ns, end_ns = _cut(pts_ns, end_ns, self.max_duration_s)
        num_rows, patch = len(pts_ns), self.temporal_patch_size
        if num_rows < patch:
            return FrameTargets(np.arange(num_rows, dtype=np.int64))
        most = min(self.max_frames, 768, num_rows) // patch * patch
        wanted = min(max(clip_duration_s(pts_ns, end_ns) * min(self.fps, MAX_RULE_FPS), self.min_frames), most)
        count = max(int(wanted // patch) * patch, patch)
        return FrameTargets(np.arange(count, dtype=np.int64) * num_rows // count)


@dataclass(frozen=True, slots=True)
class SmolVLM2Sampler:
    """SmolVLM2: `round(duration * fps)` rows, at most `max_frames`, truncated to whole rows; long clips lose a margin.

    Source: transformers 5.24 `SmolVLMVideoProcessor.sample_frames`; fps 1 and 64 frames are the `video_sampling` of the
    published SmolVLM2 processors. One second is left out at both ends when the clip is longer than
    `max_frames * fps` seconds by more than that.
    """

    fps: float = 1.0
    max_frames: int = 64
    min_frames: int = 1
    max_duration_s: float | None = None
    skip_s: float = 1.0

    def __post_init__(self) -> None:
        check_bounds(self.min_frames, self.max_frames)

    def sample(self, pts_ns: Int64, end_ns: int) -> FrameTargets:
        """Choose among frames shown at `pts_ns` [N], N >= 1, the last of which ends at `end_ns`."""
        pts_ns, end_ns = _cut(pts_ns, end_ns, self.max_duration_s)
        num_rows, duration_s = len(pts_ns), (end_ns - int(pts_ns[0])) / NS_PER_S
        count = max(min(round(self.fps * duration_s), self.max_frames), self.min_frames, 1)
        first, last = 0, num_rows - 1
        if duration_s - 2 * self.skip_s > self.max_frames * self.fps:
            margin = self.skip_s * num_rows / duration_s
            first, last = max(0, int(margin + 1e-6)), min(int(num_rows - margin + 1e-6), num_rows - 1)
        if first >= last:
            first, last = 0, num_rows - 1
        return FrameTargets(np.unique(np.linspace(first, last, count, dtype=np.int64)))


def _cut(pts_ns: Int64, end_ns: int, max_duration_s: float | None) -> tuple[Int64, int]:
    num_rows = rows_within(pts_ns, max_duration_s)
    return pts_ns[:num_rows], int(pts_ns[num_rows]) if num_rows < len(pts_ns) else end_ns


RULES: dict[str, Callable[..., FrameSampler]] = {
    "qwen2_vl": Qwen25VLSampler,
    "qwen2_5_vl": Qwen25VLSampler,
    "qwen3_vl": Qwen3VLSampler,
    "smolvlm2": SmolVLM2Sampler,
}


def rule_sampler(name: str, **settings: float | None) -> FrameSampler:
    """The rule called `name` with its own defaults where a setting is None. Raises ConfigError for an unknown one."""
    if name not in RULES:
        raise ConfigError("no such sampling rule", given=repr(name), allowed=", ".join(RULES))
    return RULES[name](**{key: value for key, value in settings.items() if value is not None})
