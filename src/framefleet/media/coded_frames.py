"""CodedFrames: which coded frames lean on which, for codecs whose headers tell it exactly. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CodedFrames:
    """Coded frames [F] in decode order. A packet may hold several; the last of them is the one that is shown."""

    packet: Int64
    """[F] the packet each lies in, non-decreasing."""
    needs: Int64
    """[E, 2] (frame, earlier frame it takes something from), ordered by the first."""

    def __post_init__(self) -> None:
        assert self.needs.shape[1:] == (2,), self.needs.shape
        for array in (self.packet, self.needs):
            array.setflags(write=False)

    def left_out(self, first: int, last: int, roots: Int64, wanted: Int64) -> tuple[Int64, Int64]:
        """(packets [K], cuts [C, 2]) of the run from packet `first` to `last` that nobody needs, both increasing.

        Needed are all frames of the packets `roots`, the shown frames of the packets `wanted`, and whatever these lean
        on, directly or not. A cut is (packet that stays, place of a frame in it that does not).
        """
        begin, end = np.searchsorted(self.packet, [first, last + 1]).tolist()
        packet = self.packet[begin:end]
        is_needed = self._is_needed(begin, end, self._is_asked(packet, roots, wanted))
        stays = np.isin(packet, packet[is_needed])
        cut = np.flatnonzero(stays & ~is_needed)
        place = cut - np.searchsorted(packet, packet[cut])
        return np.unique(packet[~stays]), np.stack([packet[cut], place], axis=1)

    @staticmethod
    def _is_asked(packet: Int64, roots: Int64, wanted: Int64) -> Bool:
        is_last = np.append(packet[1:] != packet[:-1], True)[: len(packet)]
        return np.isin(packet, roots) | (is_last & np.isin(packet, wanted))

    def _is_needed(self, begin: int, end: int, is_asked: Bool) -> Bool:
        """[end - begin] the closure; frames lean on earlier ones only, so that one pass back to front is enough."""
        needed = set((begin + np.flatnonzero(is_asked)).tolist())
        edges = self.needs[slice(*np.searchsorted(self.needs[:, 0], [begin, end]))]
        for frame, other in edges[::-1].tolist():
            if frame in needed:
                needed.add(other)
        is_needed = np.zeros(end - begin, np.bool_)
        is_needed[[frame - begin for frame in needed if frame >= begin]] = True
        return is_needed
