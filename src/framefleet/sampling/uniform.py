"""Uniform choices: a fixed count of frames, or frames per second of presentation time. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from framefleet.errors import ConfigError
from framefleet.sampling.sampler import FrameTargets, Int64
from framefleet.units import NS_PER_S, s_to_ns

CLOCK_SLACK_NS = 500_000
"""Half a millisecond: Matroska and FLV keep whole milliseconds, so a frame may be stamped that much late."""


def spread_rows(num_rows: int, count: int) -> Int64:
    """`round(linspace(0, num_rows - 1, min(count, num_rows)))`: unique, first and last row included (count > 1)."""
    return np.linspace(0, num_rows - 1, min(count, num_rows)).round().astype(np.int64)


def rows_within(pts_ns: Int64, max_duration_s: float | None) -> int:
    """How many of the frames at `pts_ns` [N] start less than `max_duration_s` after the first one (at least 1)."""
    if max_duration_s is None:
        return len(pts_ns)
    return max(1, int(np.searchsorted(pts_ns, int(pts_ns[0]) + s_to_ns(max_duration_s), side="left")))


def _check_positive(**settings: float | None) -> None:
    for name, value in settings.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be positive", given=str(value), allowed="above 0")


def check_bounds(min_frames: int | None, max_frames: int | None) -> None:
    """Raises ConfigError unless both are positive and in order."""
    _check_positive(min_frames=min_frames, max_frames=max_frames)
    if min_frames is not None and max_frames is not None and min_frames > max_frames:
        raise ConfigError("min_frames is above max_frames", given=f"{min_frames} > {max_frames}")


@dataclass(frozen=True, slots=True)
class CountSampler:
    """`num_frames` rows spread evenly over the rows, or every row of a clip that has fewer."""

    num_frames: int
    max_duration_s: float | None = None

    def __post_init__(self) -> None:
        _check_positive(num_frames=self.num_frames, max_duration_s=self.max_duration_s)

    def sample(self, pts_ns: Int64, end_ns: int) -> FrameTargets:
        """Choose among frames shown at `pts_ns` [N], N >= 1."""
        return FrameTargets(spread_rows(rows_within(pts_ns, self.max_duration_s), self.num_frames))


@dataclass(frozen=True, slots=True)
class FpsSampler:
    """The frame on screen at `start + k / fps` for every k before the end (half open), each frame at most once.

    Times are presentation times, so a variable frame rate is sampled evenly in time. Where a frame stays on screen
    for several sampling times it is given once: asking a slide show for 30 frames a second repeats nothing.
    Fewer than `min_frames` are replaced by `min_frames` rows spread evenly; more than `max_frames` are thinned evenly.
    """

    fps: float
    min_frames: int | None = None
    max_frames: int | None = None
    max_duration_s: float | None = None

    def __post_init__(self) -> None:
        _check_positive(fps=self.fps, max_duration_s=self.max_duration_s)
        check_bounds(self.min_frames, self.max_frames)

    def sample(self, pts_ns: Int64, end_ns: int) -> FrameTargets:
        """Choose among frames shown at `pts_ns` [N], N >= 1, the last of which ends at `end_ns`."""
        num_rows = rows_within(pts_ns, self.max_duration_s)
        stop_ns = int(pts_ns[num_rows]) if num_rows < len(pts_ns) else end_ns
        if self.max_duration_s is not None:
            stop_ns = min(stop_ns, int(pts_ns[0]) + s_to_ns(self.max_duration_s))
        rows = self._rows_on_screen(pts_ns[:num_rows], stop_ns)
        if self.min_frames is not None and len(rows) < self.min_frames:
            rows = spread_rows(num_rows, self.min_frames)
        if self.max_frames is not None and len(rows) > self.max_frames:
            rows = rows[spread_rows(len(rows), self.max_frames)]
        return FrameTargets(rows)

    def _rows_on_screen(self, pts_ns: Int64, stop_ns: int) -> Int64:
        """Frames during which a sampling time falls: its count of times before its start and before its end differ."""
        start_ns = int(pts_ns[0])
        edges_ns = np.append(pts_ns - CLOCK_SLACK_NS, stop_ns) - start_ns
        times_before = np.ceil(np.maximum(edges_ns, 0) * (self.fps / NS_PER_S))
        is_hit = np.diff(times_before) > 0
        is_hit[0] = True
        return np.flatnonzero(is_hit)
