"""FrameIndex: what a scan of the packets *found*. The one source of truth for counts and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefleet.media.coded_frames import CodedFrames
from framefleet.units import NS_PER_S

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """Packets in decode order [P], and the presentable frames in presentation order [N].

    All arrays are read-only. `packet_of_row[r]` is the packet that carries presentable frame `r`; packets that no row
    names are decoded but never shown (hidden by an edit list, undecodable leading pictures after a join, ...).
    """

    packet_pts: Int64
    """[P] stream ticks as the demuxer gives them (`NO_PTS` where it gives none)."""
    packet_is_keyframe: Bool
    """[P] decoding can start here."""
    packet_is_reference: Bool
    """[P] other packets may depend on it; True where this cannot be told."""
    packet_of_row: Int64
    """[N] row -> packet number."""
    pts_ns: Int64
    """[N] strictly increasing presentation times on the stream's own clock."""
    end_ns: int
    """Where the last frame ends."""
    method: Literal["packets", "decoded", "header"]
    """How the rows were found: from packets alone, by decoding (packets could not tell), or taken from the header."""
    notes: tuple[str, ...] = ()
    """What was odd: `timestamps reset at row 60`, `packets carry no pts` ..."""

    packet_pos: Int64 | None = None
    """[P] byte position of each packet in the source (-1: unknown)."""
    packet_size: Int64 | None = None
    """[P] bytes. With pts and position, a packet's identity after a seek: where a seek lands inside a packet, its torn
    end may carry the stamp and position of the next one."""
    num_lost: int = 0
    """Frames the source once had that no decoder can give: before a join, behind lost packets, past a cut end."""

    fresh_starts: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[J] keyframe packets before which another stream, or a loss, ends: decoders are emptied there, so that no frame
    depends on whether those before were asked for."""
    coded_frames: CodedFrames | None = None
    """Which coded frames lean on which, where the codec's headers tell (AV1)."""

    NO_PTS = np.iinfo(np.int64).min

    def __post_init__(self) -> None:
        assert self.packet_pts.shape == self.packet_is_keyframe.shape == self.packet_is_reference.shape
        assert self.packet_of_row.shape == self.pts_ns.shape
        for known in (self.packet_pos, self.packet_size):
            assert known is None or known.shape == self.packet_pts.shape
        for array in (
            self.packet_pts, self.packet_is_keyframe, self.packet_is_reference, self.packet_of_row, self.pts_ns,
            self.packet_pos, self.packet_size, self.fresh_starts,
        ):  # fmt: skip
            if array is not None:
                array.setflags(write=False)

    @property
    def num_frames(self) -> int:
        """N, the count of presentable frames."""
        return len(self.pts_ns)

    @property
    def is_keyframe(self) -> Bool:
        """[N] per presentable frame."""
        return self.packet_is_keyframe[self.packet_of_row]

    @property
    def is_reference(self) -> Bool:
        """[N] per presentable frame."""
        return self.packet_is_reference[self.packet_of_row]

    @property
    def duration_s(self) -> float:
        """From the first frame's start to the last frame's end, in seconds."""
        return (self.end_ns - int(self.pts_ns[0])) / NS_PER_S if self.num_frames else 0.0

    @property
    def fps(self) -> float:
        """Average frames per second over the presentable frames (0.0 when there are none)."""
        return self.num_frames / self.duration_s if self.duration_s > 0 else 0.0
