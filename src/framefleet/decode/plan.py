"""DecodePlan: which packets to feed for the targets, and what it will cost, before anything opens. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from framefleet.media.index import Bool, FrameIndex, Int64
from framefleet.media.info import StreamInfo
from framefleet.sampling.sampler import FrameTargets

MAX_HELD_PICTURES = 17
"""Pictures a decoder may hold: 16 for reference and reordering by the levels of H.264 and H.265, one in the works."""


@dataclass(frozen=True, slots=True)
class SeekGroup:
    """A run of packets fed in one go: seek to `first_packet` (a keyframe), feed until `last_packet`, then drain.

    Draining (or feeding on) is what brings out pictures that the decoder still holds for reordering.
    """

    first_packet: int
    last_packet: int
    rows: Int64
    """Target rows that come out of this run, unique and increasing."""
    skip_packets: Int64
    """Packets in the run that need not be fed: no wanted frame depends on them. Increasing."""
    cuts: Int64 = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """[C, 2] (packet that is fed, place of a coded frame in it that need not be). Increasing."""

    @property
    def num_fed(self) -> int:
        """Packets fed, which is pictures decoded."""
        return self.last_packet - self.first_packet + 1 - len(self.skip_packets)

    def whole(self) -> SeekGroup:
        """The run with nothing left out."""
        return SeekGroup(self.first_packet, self.last_packet, self.rows, np.empty(0, np.int64))


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
        return sum(g.num_fed for g in self.groups)

    @property
    def output_bytes(self) -> int:
        """Bytes of the RGB frames."""
        return len(self.targets.rows) * self.height * self.width * 3

    def peak_bytes(self, info: StreamInfo, num_threads: int = 1) -> int:
        """An upper estimate of the bytes one decode holds: output, decoder's pictures, one picture being converted."""
        samples = {"4:0:0": 2, "4:2:0": 3, "4:2:2": 4}.get(info.chroma, 8 if info.has_alpha else 6)
        coded_pixels = info.coded_width * info.coded_height
        picture_bytes = coded_pixels * samples * (2 if info.bit_depth > 8 else 1) // 2
        held = MAX_HELD_PICTURES + max(num_threads, 1)
        return self.output_bytes + held * picture_bytes + 3 * (coded_pixels + self.width * self.height)


def plan_decode(index: FrameIndex, targets: FrameTargets, width: int, height: int) -> DecodePlan:
    """Group the target rows by the keyframe they are decoded from.

    A row is decoded from the last keyframe that comes no later than it in decode order *and* in presentation order:
    a leading picture of an open GOP follows its keyframe in the stream but is shown before it and leans on the GOP
    before, while what follows the keyframe in both orders leans on nothing before it (the rule by which H.264 and
    H.265 define a random access point). Without such a keyframe the run starts at the first packet.

    Groups whose runs touch or overlap are one group, since walking on is never dearer than seeking there; but no group
    reaches over a fresh start. Packets that no other packet refers to and that carry no target are skipped; where
    the index knows what each coded frame leans on, so is all that no target leans on, single frames of a packet too.
    """
    rows = np.unique(targets.rows)
    packets = index.packet_of_row[rows]
    starts = _start_packets(index, rows, packets)
    order = np.lexsort((packets, starts))
    rows, packets, starts = rows[order], packets[order], starts[order]
    reach = np.maximum.accumulate(packets)
    is_head = np.ones(len(rows), np.bool_)
    is_head[1:] = starts[1:] > reach[:-1] + 1
    is_head[1:] |= np.diff(np.searchsorted(index.fresh_starts, starts, side="right")) > 0
    heads = np.flatnonzero(is_head)
    tails = np.append(heads[1:], len(rows))[: len(heads)]
    groups = tuple(
        _group(index, int(starts[head]), int(reach[tail - 1]), rows[head:tail], packets[head:tail])
        for head, tail in zip(heads, tails, strict=True)
    )
    return DecodePlan(targets, groups, width, height)


def _group(index: FrameIndex, first: int, last: int, rows: Int64, packets: Int64) -> SeekGroup:
    if index.coded_frames is not None:
        entries = first + np.flatnonzero(index.packet_is_keyframe[first : last + 1])  # they bring parameters, too
        skip, cuts = index.coded_frames.left_out(first, last, np.append(entries, first), packets)
        return SeekGroup(first, last, np.sort(rows), skip, cuts)
    can_skip = ~index.packet_is_reference[first : last + 1]
    can_skip[packets - first] = False
    return SeekGroup(first, last, np.sort(rows), np.flatnonzero(can_skip) + first)


def _start_packets(index: FrameIndex, rows: Int64, packets: Int64) -> Int64:
    """[T] the packet each target's run must start at."""
    keyframes = np.flatnonzero(index.packet_is_keyframe)
    if not len(keyframes):
        return np.zeros(len(rows), np.int64)
    keyframe_rows = _rows_of(index, keyframes)
    nth = np.searchsorted(keyframes, packets, side="right") - 1
    late = np.flatnonzero(nth >= 0)
    while len(late):
        nth_late = nth[late]
        is_shown_later = np.where(
            keyframe_rows[nth_late] >= 0,
            keyframe_rows[nth_late] > rows[late],
            _is_stamped_later(index, keyframes[nth_late], packets[late]),
        )
        late = late[is_shown_later]
        nth[late] -= 1
        late = late[nth[late] >= 0]
    return np.where(nth >= 0, keyframes[nth], 0)


def _is_stamped_later(index: FrameIndex, keyframes: Int64, packets: Int64) -> Bool:
    """[T] for hidden keyframes, which have no row: whether the stamps do not prove them earlier than the packets."""
    keyframe_pts, pts = index.packet_pts[keyframes], index.packet_pts[packets]
    has_no_stamp = np.minimum(keyframe_pts, pts) == FrameIndex.NO_PTS
    may_be_later: Bool = np.logical_or(keyframe_pts > pts, has_no_stamp)
    return may_be_later


def _rows_of(index: FrameIndex, packets: Int64) -> Int64:
    """[T] the row each packet carries, -1 for hidden ones."""
    row_of_packet = np.full(len(index.packet_pts), -1, np.int64)
    row_of_packet[index.packet_of_row] = np.arange(index.num_frames)
    return row_of_packet[packets]
