"""Feeding packets to a decoder: each picture is known by the packet it came from, and trouble by where it arose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from typing import Any

import av
import numpy as np

from framefleet.errors import SourceTooLarge, SourceUnsupported
from framefleet.media.exif import exif_orientation

_STRICT_CODECS = frozenset((
    "mjpeg", "hevc", "vvc", "mpeg1video", "mpeg2video", "mpeg4", "h263", "msmpeg4v3", "wmv1", "wmv2", "vc1", "av1",
    "vp9",
))  # fmt: skip
"""Their decoders swallow errors unless told not to (H.264's marks the pictures instead)."""

_MAX_B_RUN = 32


class PictureFeed:
    """One decoder. `feed` packets in decode order; `drain` at the end of a run; then another run may start."""

    def __init__(
        self,
        stream: Any,
        *,
        max_pixels: int,
        num_threads: int = 1,
        is_strict: bool = True,
        decoder: str = "",
    ) -> None:
        self._num_threads = max(1, num_threads)
        self._context = _own_context(stream, decoder) if decoder else stream.codec_context
        self._context.thread_count = self._num_threads
        self._context.thread_type = "AUTO" if self._num_threads > 1 else "NONE"
        self._context.copy_opaque = True
        # Else a crop on the left is only made in steps of what suits the processor, and the picture is wider.
        self._context.flags |= av.codec.context.Flags.unaligned
        codec = stream.codec_context.codec.canonical_name
        self._is_jpeg = codec == "mjpeg"
        explode = "+explode" if is_strict and codec in _STRICT_CODECS else ""
        self._context.options = {"err_detect": f"crccheck{explode}", "max_pixels": str(max_pixels)}
        self.troubled: set[int] = set()
        """Packet numbers at which the decoder failed or marked its picture as damaged."""
        self.num_pictures = 0
        self.num_corrupt = 0

    def feed(self, number: int, packet: Any) -> Iterator[tuple[int, Any]]:
        """(packet number, picture) of every picture that comes out now; `troubled` tells which are damaged."""
        # PyAV keeps opaque objects by id(): each packet needs one of its own
        packet.opaque = [number, exif_orientation(bytes(packet)) if self._is_jpeg else 1]
        return self._pictures(number, packet)

    def drain(self, number: int) -> Iterator[tuple[int, Any]]:
        """The pictures the decoder still holds; `number` is the last packet fed. Ready for another run afterwards."""
        yield from self._pictures(number, None)
        self._context.flush_buffers()

    def _pictures(self, number: int, packet: Any) -> Iterator[tuple[int, Any]]:
        try:
            pictures = self._context.decode(packet)
        except av.FFmpegError as error:
            if isinstance(error, MemoryError):  # no damage: with more memory it would decode
                raise SourceTooLarge("decoding the clip takes more memory than there is", given=str(error)) from error
            if isinstance(error, av.error.DecoderNotFoundError | av.error.PatchWelcomeError) and not self.num_pictures:
                raise SourceUnsupported("this codec cannot be decoded here", given=str(error)) from error
            self.troubled.update(range(number - self._num_threads + 1, number + 1))
            return
        for picture in pictures:
            self.num_pictures += 1
            origin = origin_of(picture)
            if origin is None:
                continue  # of unknown descent: its packet counts as one that gave no picture
            if picture.is_corrupt:
                self.num_corrupt += 1
                self.troubled.add(origin)
            yield origin, picture


def origin_of(picture: Any) -> int | None:
    """The number of the packet a picture came from."""
    return picture.opaque[0] if picture.opaque else None


def exif_of(picture: Any) -> int:
    """The Exif orientation of the packet a picture came from: 1 (upright, or none) to 8."""
    return picture.opaque[1] if picture.opaque else 1


def _own_context(stream: Any, decoder: str) -> Any:
    context = av.CodecContext.create(decoder, "r")
    context.extradata = stream.codec_context.extradata
    return context


def first_picture(stream: Any, packets: Iterable[Any], max_pixels: int) -> Any | None:
    """The picture of the first of these (key) packets that decodes; None if none does. Hidden packets count too."""
    feed = PictureFeed(stream, max_pixels=max_pixels, is_strict=False)
    for number, packet in enumerate(packets):
        shown = av.Packet(
            bytes(packet)
        )  # a copy without the flag that makes decoders keep hidden pictures to themselves
        for _, picture in [*feed.feed(number, shown), *feed.drain(number)]:
            return picture
    return None


def presented(
    feed: PictureFeed, packets: Iterator[Any], fresh_starts: Collection[int]
) -> Iterator[tuple[int, int | None, Any]]:
    """Decode a whole stream: (packet number, ticks or None, picture) in presentation order.

    The decoder is emptied before each packet number of `fresh_starts`.
    """
    number, fresh = -1, set(fresh_starts)
    for number, packet in enumerate(packets):
        if number in fresh:
            for origin, picture in feed.drain(number - 1):
                yield origin, picture.pts, picture
        for origin, picture in feed.feed(number, packet):
            yield origin, picture.pts, picture
    for origin, picture in feed.drain(number):
        yield origin, picture.pts, picture


def with_lost(origins: list[int], is_b: Sequence[bool]) -> list[int]:
    """Packet numbers in presentation order, those that gave no picture put where they would have been shown.

    So a picture's place counts what was lost before it. `is_b[p]` says that packet p is a B-picture, shown before the
    reference that precedes it in the stream; a lost reference is shown after the B-pictures that follow it.
    """
    count = len(is_b)
    came = set(origins)
    after = [0] * (count + 1)  # a chain through all places; the last item is both its start and its end
    for left, right in pairwise([count, *origins, count]):
        after[left] = right
    before = {right: left for left, right in pairwise([count, *origins, count])}
    for number in (p for p in range(count) if p not in came):
        left = _left_neighbour(number, is_b, came, before)
        right = after[left]
        after[left], after[number] = number, right
        before[number], before[right] = left, number
    order, at = [], after[count]
    while at != count:
        order.append(at)
        at = after[at]
    return order


def _left_neighbour(number: int, is_b: Sequence[bool], came: set[int], before: dict[int, int]) -> int:
    """After which packet a lost one is shown (`len(is_b)`: first of all)."""
    count = len(is_b)
    if is_b[number]:
        reference = next((p for p in range(number - 1, max(-1, number - _MAX_B_RUN), -1) if not is_b[p]), None)
        return count if reference is None else before[reference]
    following = takewhile(lambda p: is_b[p], range(number + 1, min(count, number + _MAX_B_RUN)))
    led = [p for p in following if p in came]
    return led[-1] if led else (number - 1 if number else count)


def shown_by_clock(decode_times: list[int], order: Sequence[int]) -> list[int]:
    """Presentation times out of sorted decode times, for packets shown in `order`; the first is kept.

    A picture is shown when the one is decoded that comes as many packets later as this order makes pictures wait; so
    pauses come where they belong.
    """
    rank = np.argsort(np.argsort(order))
    delay = int(np.max(rank - np.arange(len(order)), initial=0))
    if delay >= len(decode_times):
        return decode_times
    times = np.array(decode_times, np.int64)
    step = int(np.median(np.diff(times))) if delay else 0
    late = np.concatenate((times[delay:], times[-1] + step * np.arange(1, delay + 1)))
    return [int(t) for t in late - late[0] + times[0]]


def fill_ticks(ticks: list[int | None], step: float, fallback: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Times [N] for pictures in presentation order where some (or all) carry none.

    Known times stay; unknown ones lie evenly between their neighbours, and as far apart as is usual at the ends (`step`
    ticks where one time alone is known). Where none is known, `fallback` is used if it has one for each picture, else
    `step` from zero.
    """
    count = len(ticks)
    known = np.array([i for i, t in enumerate(ticks) if t is not None], np.int64)
    if not len(known):
        even = fallback[:count] if len(fallback) >= count else [round(i * step) for i in range(count)]
        return np.array(even, np.int64)
    values = np.array([ticks[i] for i in known], np.float64)
    if len(known) > 1:
        usual = float(np.median(np.diff(values) / np.diff(known)))
        step = step if abs(usual - step) < 1 else usual  # what differs by less than a tick was rounded
    at = np.arange(count)
    filled = np.interp(at, known, values)
    filled = np.where(at < known[0], values[0] - (known[0] - at) * step, filled)
    filled = np.where(at > known[-1], values[-1] + (at - known[-1]) * step, filled)
    out = np.rint(filled).astype(np.int64)
    out[known] = [ticks[i] or 0 for i in known]
    return out
