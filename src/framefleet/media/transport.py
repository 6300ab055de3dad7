"""MPEG transport streams: where packets of one stream were lost or came twice, by continuity counters.

See ISO/IEC 13818-1, 2.4.3. FFmpeg's demuxer notices a loss too, but marks a neighbouring picture; the counters say
exactly which one was hit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from framefleet.media.index import Bool, Int64

SYNC = 0x47
STRIDES = ((188, 0), (192, 4), (204, 0))
_CHUNK_PACKETS = 1 << 16
_SYNCS_TO_BELIEVE = 4


@dataclass(frozen=True, slots=True)
class Losses:
    """Gaps [G] in one stream, in file order."""

    before: Int64
    """Byte position of the last transport packet before each gap."""
    after: Int64
    """Byte position of the first one after it."""
    starts_unit: Bool
    """The packet after the gap begins a new picture."""
    ended_unit: Bool
    """The packet before it is padded, so it held the end of its picture."""

    def __len__(self) -> int:
        return len(self.after)


def find_losses(stream: BinaryIO, pid: int) -> Losses:
    """Read `stream` (positioned at its start) to its end and list the gaps of stream `pid`."""
    parts = [_select(block, at, pid, is_after_break=is_after_break) for block, at, is_after_break in _blocks(stream)]
    if not parts:
        return Losses(*(np.zeros(0, np.int64),) * 2, *(np.zeros(0, np.bool_),) * 2)
    at, counter, starts, padded, forgiven, torn, again = (np.concatenate(parts) for parts in zip(*parts, strict=True))
    step = (counter[1:] - counter[:-1]) % 16
    is_gap = ((step > 1) & ~forgiven[1:]) | torn[1:] | again[1:]
    starts &= ~torn
    gaps = np.flatnonzero(is_gap)
    return Losses(at[gaps], at[gaps + 1], starts[gaps + 1], padded[gaps])


def _blocks(stream: BinaryIO) -> Iterator[tuple[npt.NDArray[np.uint8], int, bool]]:
    """Runs of whole transport packets `[K, 188]`, the byte position of the first, and whether sync was lost before."""
    head = stream.read(STRIDES[-1][0] * _SYNCS_TO_BELIEVE)
    stride, lead = next((s for s in STRIDES if _is_synced(head, *s)), STRIDES[0])
    rest, base, expected = head, 0, 0
    while True:
        read = stream.read(stride * _CHUNK_PACKETS)
        buffer = np.frombuffer(rest + read, np.uint8)
        used = 0
        while len(buffer) - used >= stride:
            used = _resync(buffer, used, stride, lead, is_end=not read)
            whole = buffer[used : used + (len(buffer) - used) // stride * stride].reshape(-1, stride)
            bad = np.flatnonzero(whole[:, lead] != SYNC)
            good = int(bad[0]) if len(bad) else len(whole)
            if not good:
                break
            yield whole[:good, lead : lead + 188], base + used, base + used != expected
            used += good * stride
            expected = base + used
        rest, base = buffer[used:].tobytes(), base + used
        if not read:
            return


def _is_synced(head: bytes, stride: int, lead: int) -> bool:
    marks = head[lead::stride]
    return len(marks) > 1 and all(mark == SYNC for mark in marks[:_SYNCS_TO_BELIEVE])


def _resync(buffer: npt.NDArray[np.uint8], used: int, stride: int, lead: int, *, is_end: bool) -> int:
    """The next position from which sync bytes follow at the stride; the buffer's end when there is none."""
    rest = buffer[used + lead :]
    marks = (rest[::stride] == SYNC)[:_SYNCS_TO_BELIEVE]
    if marks.all() and (len(marks) == _SYNCS_TO_BELIEVE or is_end or len(marks) > 0):
        return used
    length = len(rest) - (_SYNCS_TO_BELIEVE - 1) * stride
    if length <= 0:
        return len(buffer) - len(buffer) % stride if is_end else len(buffer)
    aligned = np.ones(length, np.bool_)
    for number in range(_SYNCS_TO_BELIEVE):
        aligned &= rest[number * stride : number * stride + length] == SYNC
    found = np.flatnonzero(aligned)
    return used + int(found[0]) if len(found) else used + length


def _select(
    block: npt.NDArray[np.uint8], at: int, pid: int, *, is_after_break: bool
) -> tuple[Int64, Int64, Bool, Bool, Bool, Bool, Bool]:
    """Columns of the packets of `pid` that carry payload.

    Position, counter, starts a unit, is padded, announces a gap, is torn (behind a loss of sync, or claiming to start a
    unit without a PES header), and is the one before it once more (2.4.3.3), which FFmpeg puts into the picture twice.
    """
    stride = block.strides[0]
    header = block[:, 1:6].astype(np.int64)
    is_ours = (((header[:, 0] & 0x1F) << 8 | header[:, 1]) == pid) & (header[:, 2] & 0x10 > 0)
    rows = np.flatnonzero(is_ours)
    header = header[rows]
    has_adaptation = header[:, 2] & 0x20 > 0
    length, flags = header[:, 3], header[:, 4]
    needed = 1 + 6 * (flags >> 4 & 1) + 6 * (flags >> 3 & 1) + (flags >> 2 & 1)
    is_private = flags & 3 > 0
    padded = has_adaptation & ((length == 0) | ((length > needed) & ~is_private))
    is_meant = has_adaptation & (length > 0) & (flags & 0x80 > 0)
    starts = header[:, 0] & 0x40 > 0
    payload_at = np.minimum(4 + np.where(has_adaptation, 1 + length, 0), 185)
    prefix = block[rows[:, None], payload_at[:, None] + np.arange(3)]
    torn = starts & ((prefix != (0, 0, 1)).any(axis=1))
    torn[:1] |= is_after_break
    counter = header[:, 2] & 15
    again = np.zeros(len(rows), np.bool_)
    stays = np.flatnonzero(counter[1:] == counter[:-1]) + 1
    again[stays] = (block[rows[stays]] == block[rows[stays - 1]]).all(axis=1)
    return at + rows * stride, counter, starts, padded, is_meant, torn, again
