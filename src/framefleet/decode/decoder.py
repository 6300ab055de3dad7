"""The decode contract: a backend takes a scanned clip and a plan, and gives checked frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.units import NS_PER_S

__all__ = ["DecodeBackend", "DecodeStats", "DecodedFrames", "ScannedClip"]


@dataclass(slots=True)
class DecodeStats:
    """What really happened. A fact recorded here replaces a silent second best."""

    backend: str = ""
    fell_back_to: str = ""
    """The backend that gave the frames, when it is not the first one tried."""
    refusals: dict[str, str] = field(default_factory=dict)
    """Backend -> reason, for each one passed over or failed."""
    frames_walked: int = 0
    """Pictures really decoded."""
    num_missing: int = 0
    """Asked-for frames (or, when told by the source, presentable ones) that could not be given."""
    num_corrupt: int = 0
    """Pictures the decoder flagged as damaged."""
    recovered_rows: tuple[int, ...] = ()
    """Targets replaced by the nearest decodable frame (`frame_recovery`)."""
    is_interlaced: bool = False
    tone_mapped: str = ""
    """The method by which HDR became SDR, or empty."""
    index_method: str = ""
    notes: list[str] = field(default_factory=list)
    output_bytes: int = 0
    peak_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Per phase: fetch, probe, decode, resize, wait."""


@dataclass(frozen=True, slots=True)
class DecodedFrames:
    """Frames, upright and in the right colours, with their true times.

    `data` is uint8 RGB `[T, H, W, 3]`: a C-contiguous ndarray, or a CUDA tensor when `device="cuda"` was asked for.
    `pts_s` [T] float64 seconds on the clip's own clock; `indices` [T] int64 rows of the clip's FrameIndex.
    """

    data: Any
    pts_s: npt.NDArray[np.float64]
    indices: npt.NDArray[np.int64]
    info: StreamInfo
    stats: DecodeStats
    duration_s: float
    """Of the whole clip, by its index."""
    fps: float
    """Average rate of the whole clip, by its index."""
    total_num_frames: int
    """Presentable frames of the whole clip, by its index."""

    def __post_init__(self) -> None:
        num_frames = len(self.pts_s)
        assert self.data.ndim == 4, self.data.shape
        assert self.data.shape[0] == num_frames == len(self.indices), (self.data.shape, num_frames, len(self.indices))
        assert self.data.shape[3] == 3, self.data.shape

    def __len__(self) -> int:
        return len(self.pts_s)

    @property
    def pts_ns(self) -> npt.NDArray[np.int64]:
        """[T] int64."""
        return np.rint(self.pts_s * NS_PER_S).astype(np.int64)


class DecodeBackend(Protocol):
    """One decode library. Stateless between clips unless it says so; never gives a frame it does not trust."""

    name: str

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """Why this clip is not for this backend, without opening it; None if it is. Missing libraries are a reason."""
        ...

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """The plan's frames. Frames that cannot be had are left out and counted in `stats.num_missing`.

        Raises DecodeError (or a SourceError) when none can be had.
        """
        ...
