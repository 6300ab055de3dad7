"""Which frames: a sampler looks at the index of a clip (or of a window of it) and names rows. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FrameTargets:
    """Rows of the index to deliver, in order; a row may repeat (a one-frame clip asked for a pair)."""

    rows: Int64
    """[T] rows of FrameIndex, non-decreasing."""

    def __post_init__(self) -> None:
        assert self.rows.ndim == 1
        assert not np.any(np.diff(self.rows) < 0)
        self.rows.setflags(write=False)


class FrameSampler(Protocol):
    """A rule of choice."""

    def sample(self, pts_ns: Int64, end_ns: int) -> FrameTargets:
        """Choose among frames shown at `pts_ns` [N] (N >= 1), the last of which ends at `end_ns`."""
        ...
