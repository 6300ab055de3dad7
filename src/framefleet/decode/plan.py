"""DecodePlan: which packets to feed for the targets, and what it will cost, before anything opens. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefleet.media.index import FrameIndex
from framefleet.sampling.sampler import FrameTargets

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SeekGroup:
    """A run of packets fed in one go: seek to `first_packet` (a keyframe), feed until `last_packet`, inclusive."""

    first_packet: int
    last_packet: int
    rows: Int64
    """Target rows that come out of this run, unique and increasing."""
    skip_packets: Int64
    """Packets in the run that need not be fed: no wanted frame depends on them."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The targets grouped by keyframe, the output size, and the price."""

    targets: FrameTargets
    groups: tuple[SeekGroup, ...]
    width: int
    height: int

    @property
    def frames_walked(self) -> int:
        """Pictures that will be decoded."""
        return sum(g.last_packet - g.first_packet + 1 - len(g.skip_packets) for g in self.groups)

    @property
    def output_bytes(self) -> int:
        """Bytes of the RGB frames."""
        return len(self.targets.rows) * self.height * self.width * 3


def plan_decode(index: FrameIndex, targets: FrameTargets, width: int, height: int) -> DecodePlan:
    """Group the target rows by the keyframe they are decoded from.

    Where two targets share a keyframe, or the next keyframe lies no further than the packets already walked would
    reach, they are one group. Packets that are not reference packets and carry no target are skipped.
    """
    raise NotImplementedError
