"""Which packet each picture that comes out of NVDEC belongs to, within one run (from an entry point to the drain)."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from framefleet.errors import DecodeError

SHOWN_IN_ORDER = frozenset(["vp8", "vp9"])
"""Codecs whose packets show one picture each, in the order they are fed."""

Pictures = list[tuple[int, Any]]
"""(stamp, surface), in the order they came out."""


class Names(Protocol):
    """Told of every packet fed, asked about every picture that came out."""

    def fed(self, stamp: int) -> None:
        """A packet goes in."""
        ...

    def of(self, pictures: Pictures) -> Pictures:
        """The pictures under the stamps of their packets. Raises DecodeError."""
        ...

    def end(self) -> None:
        """The run is drained. Raises DecodeError where pictures are missing that would have named others."""
        ...


class ByStamp:
    """As the parser hands the stamps on: H.264 and HEVC, where pictures are shown in another order than decoded."""

    def fed(self, stamp: int) -> None:
        """Nothing to keep."""

    def of(self, pictures: Pictures) -> Pictures:
        """As they came."""
        return pictures

    def end(self) -> None:
        """A picture that is missing is noticed by the missing name."""


class ByOrder:
    """The n-th picture is the n-th packet's.

    A VP9 packet may hold a hidden picture beside the shown one (a superframe, annex B of its specification). From there
    on, mostly until the next keyframe, NVDEC's parser hands on stamps that are one packet late; the order is right
    (H200, driver 580, benchmarks/nvdec).
    """

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()

    def fed(self, stamp: int) -> None:
        """A packet goes in."""
        self._waiting.append(stamp)

    def of(self, pictures: Pictures) -> Pictures:
        """Named in turn."""
        if len(pictures) > len(self._waiting):
            raise DecodeError("NVDEC gave more pictures than packets", remedy="backend='pyav'")
        return [(self._waiting.popleft(), surface) for _, surface in pictures]

    def end(self) -> None:
        """Every packet must have its picture."""
        if self._waiting:
            raise DecodeError(
                "NVDEC gave fewer pictures than packets", given=f"{len(self._waiting)} less", remedy="backend='pyav'"
            )


def names_for(codec: str) -> Names:
    """For one run of a stream. `codec` as in StreamInfo."""
    return ByOrder() if codec in SHOWN_IN_ORDER else ByStamp()
