"""From a packet table to the frames that can be shown, and when. Pure numpy; no decoding, no files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from framefleet.media.facts import (
    DAMAGED,
    GAP,
    HIDDEN,
    INTRA_CODECS,
    IS_B,
    LAYER_MASK,
    LAYER_SHIFT,
    LEADS_SAFELY,
    NOT_ONE_PICTURE,
    RECOVERY,
    RECOVERY_MASK,
    RECOVERY_SHIFT,
    REFERENCE,
    START,
)
from framefleet.media.index import Bool, FrameIndex, Int64
from framefleet.media.joins import fresh_starts, leading
from framefleet.media.packets import NO_PTS, PacketTable
from framefleet.media.transport import Losses
from framefleet.units import NS_PER_S, ticks_to_ns

_BACKWARD_JUMP_S = Fraction(1, 2)
_BACKWARD_JUMP_FRAMES = 2
"""In a live stream, whose decode times never run backwards, this is no slack but another clock."""
_FORWARD_JUMP_S = 3600
"""In a live stream a clock that leaps an hour was set anew; files may have such gaps."""
_MAX_CREDIBLE_S = 100 * 365 * 24 * 3600
"""No clock says more, and nanoseconds would not hold much more; damaged stamps do."""


PTS_ARE_DTS = "pts are decode times"


def why_packets_cannot_tell(table: PacketTable, codec: str, *, has_b_frames: bool) -> str:
    """The reason why presentation order or times are not in the packets (on one clock), or empty."""
    facts = table.facts
    shown = (facts & HIDDEN == 0) & ~table.is_discarded
    if np.any(table.pts[shown] == NO_PTS) and not (codec in ORDERED_BY_PACKET and np.all(table.dts[shown] != NO_PTS)):
        return "packets carry no pts"
    if np.any(facts & NOT_ONE_PICTURE):
        return "packets and pictures are not one to one"
    starts = np.flatnonzero(facts & START)
    recoveries = np.flatnonzero(facts & RECOVERY)
    if not len(starts) or (len(recoveries) and recoveries[0] < starts[0]):
        return "no packet is a clean starting point"
    stamps = table.pts[(facts & HIDDEN == 0) & (table.pts != NO_PTS)]  # an edit list may show but one of many
    if has_b_frames and np.any(facts & IS_B) and np.all(np.diff(stamps) > 0):
        return PTS_ARE_DTS
    steps = np.diff(table.pts[shown])
    if has_b_frames and len(np.unique(table.pts[shown])) <= len(steps):
        return "packets share a pts"
    return ""


ORDERED_BY_PACKET = INTRA_CODECS | {
    "ffv1", "gif", "vp6", "vp6f", "flv1", "cinepak", "msvideo1", "msrle", "qtrle", "indeo3", "indeo5", "svq1", "rpza",
    "smc", "zmbv", "tscc", "cscd", "flashsv",
}  # fmt: skip
"""Codecs whose packets are in presentation order."""


def mark_losses(table: PacketTable, losses: Losses) -> Int64:
    """The table's facts with `DAMAGED` and `GAP` set where transport packets were lost."""
    facts = table.facts.copy()
    known = np.maximum.accumulate(table.pos)
    holder = np.maximum(np.searchsorted(known, losses.before, side="right") - 1, 0)
    follower = np.searchsorted(known, losses.after, side="left")
    is_cut = ~(losses.ended_unit & losses.starts_unit)
    facts[holder[is_cut]] |= DAMAGED
    follower = np.where(losses.starts_unit, follower, holder + 1)
    facts[follower[follower < len(facts)]] |= GAP
    return facts


def undecodable(facts: Int64, pts: Int64) -> Bool:
    """[P] packets whose picture cannot come out right: damaged, or leaning on something damaged or missing.

    After a loss everything is doubtful until the next START; pictures that lead that START (shown before it, decoded
    after it) stay so, unless they are known to lean on nothing before it. A RECOVERY ends doubt as many reference
    pictures later as it says.
    """
    broken = np.zeros(len(facts), np.bool_)
    trouble = (facts & (DAMAGED | GAP)) != 0
    leads = leading(facts, pts) & (facts & LEADS_SAFELY == 0)
    if facts[0] & START and not trouble.any() and not leads.any():
        return broken
    is_lost, lead_is_lost, refs_to_go = True, True, -1
    for packet, (fact, is_leading) in enumerate(zip(facts.tolist(), leads.tolist(), strict=True)):
        if fact & START and not fact & DAMAGED:
            lead_is_lost, is_lost = is_lost or bool(fact & GAP), False
            continue
        if fact & (DAMAGED | GAP):
            refs_to_go = -1
        elif refs_to_go > 0 and fact & REFERENCE:
            refs_to_go -= 1
            is_lost = is_lost and refs_to_go > 0
        broken[packet] = is_lost or fact & (DAMAGED | GAP) or (lead_is_lost and is_leading)
        if fact & GAP or (fact & DAMAGED and fact & REFERENCE):
            is_lost = True
        if is_lost and refs_to_go < 0 and fact & RECOVERY and not fact & DAMAGED:
            refs_to_go = fact >> RECOVERY_SHIFT & RECOVERY_MASK
    return broken


@dataclass(frozen=True, slots=True)
class Epochs:
    """One clock over the whole stream: `shift[p]` ticks are added to packet p's times; epochs start at `starts`."""

    shift: Int64
    starts: tuple[int, ...]


def find_epochs(table: PacketTable, time_base: Fraction, *, is_live_format: bool) -> Epochs:
    """Where the clock jumped back (or, in live formats, leapt far ahead), each part laid right after the one before."""
    clock = table.dts if np.any(table.dts != NO_PTS) else table.pts  # never mixed: pts run ahead of dts
    known = np.flatnonzero((clock != NO_PTS) & ~table.is_discarded)  # an edit's hidden lead-in overlaps the one before
    step = np.diff(clock[known])
    is_jump = (step < -int(_BACKWARD_JUMP_S / time_base)) | (step > int(_MAX_CREDIBLE_S / time_base))
    if is_live_format:
        is_jump |= step > int(_FORWARD_JUMP_S / time_base)
        is_jump |= step < -_BACKWARD_JUMP_FRAMES * _usual_step(clock)
    starts = [0, *known[1:][is_jump].tolist()]
    shift = np.zeros(len(clock), np.int64)
    if len(known) and abs(int(clock[known[0]])) > int(_MAX_CREDIBLE_S / time_base):
        shift[:] = -clock[known[0]]
    for begin, end, following in zip(starts, starts[1:], [*starts[2:], len(clock)], strict=False):
        before, after = table.pts[begin:end], table.pts[end:following]
        if not np.any(before != NO_PTS) or not np.any(after != NO_PTS):
            continue
        last = int(np.argmax(before))
        frame_end = before[last] + (table.duration[begin + last] or _usual_step(before)) + shift[begin]
        shift[end:following] = frame_end - int(after[after != NO_PTS].min())
    return Epochs(shift, tuple(starts[1:]))


def on_one_clock(table: PacketTable, epochs: Epochs) -> PacketTable:
    """The table with every epoch shifted to where it is shown."""
    pts, dts = (np.where(t != NO_PTS, t + epochs.shift, NO_PTS) for t in (table.pts, table.dts))
    return replace(table, pts=pts, dts=dts)


def _usual_step(pts: Int64) -> int:
    steps = np.diff(np.unique(pts[pts != NO_PTS]))
    return int(np.median(steps)) if len(steps) else 0


def presentable_rows(table: PacketTable, broken: Bool) -> tuple[Int64, Int64]:
    """(packet of row [N], ticks of row [N]) in presentation order, non-decreasing."""
    ticks = np.where(table.pts != NO_PTS, table.pts, table.dts)
    shown = (table.facts & HIDDEN == 0) & ~table.is_discarded & ~broken & (ticks != NO_PTS)
    packets = np.flatnonzero(shown)
    ticks = ticks[packets]
    order = np.lexsort((packets, ticks))
    return packets[order], ticks[order]


def strictly_increasing_ns(ticks: Int64, time_base: Fraction) -> tuple[Int64, int]:
    """Nanoseconds (half to even, exact) made strictly increasing, and how many had to be moved."""
    ns = ticks_to_ns_array(ticks, time_base)
    count = np.arange(len(ns))
    lifted = np.maximum.accumulate(ns - count) + count
    return lifted, int(np.count_nonzero(lifted != ns))


def ticks_to_ns_array(ticks: Int64, time_base: Fraction) -> Int64:
    """`units.ticks_to_ns` over an array: exact integers, rounded half to even."""
    numerator, denominator = time_base.numerator * NS_PER_S, time_base.denominator
    if numerator * denominator >= 1 << 62:
        return np.array([ticks_to_ns(t, time_base) for t in ticks.tolist()], np.int64)
    whole, part = np.divmod(ticks, denominator)
    scaled = part * numerator  # part < denominator, so this fits for time bases above 1 ns
    quotient, rest = np.divmod(scaled, denominator)
    doubled = 2 * rest
    round_up = (doubled > denominator) | ((doubled == denominator) & ((whole * numerator + quotient) % 2 == 1))
    return np.asarray(whole * numerator + quotient + round_up, np.int64)


def reference_flags(facts: Int64) -> Bool:
    """[P] False where nothing depends on the packet: not a reference, and on the highest temporal layer there is."""
    if np.any(facts & NOT_ONE_PICTURE):
        return np.ones(len(facts), np.bool_)  # the other field of a picture must not be left out
    layer = facts >> LAYER_SHIFT & LAYER_MASK
    return np.asarray((facts & REFERENCE != 0) | (layer < layer.max(initial=0)), np.bool_)


def make_index(
    table: PacketTable,
    facts: Int64,
    rows: tuple[Int64, Int64],
    time_base: Fraction,
    *,
    packet_pts: Int64,
    last_duration: int,
    method: str,
    num_lost: int,
    notes: list[str],
) -> FrameIndex:
    """The index of rows (packets, ticks); `packet_pts` as the demuxer gives them, to know a packet again by."""
    packets, ticks = rows
    pts_ns, num_moved = strictly_increasing_ns(ticks, time_base)
    if num_moved:
        notes = [*notes, f"{num_moved} frames share a timestamp with the one before"]
    end = ticks_to_ns_array(ticks[-1:] + max(last_duration, 0), time_base)[0]
    return FrameIndex(
        packet_pts=packet_pts,
        packet_is_keyframe=(facts & START != 0) & (facts & DAMAGED == 0),
        packet_is_reference=reference_flags(facts),
        packet_of_row=packets,
        pts_ns=pts_ns,
        end_ns=max(int(end), int(pts_ns[-1])),
        method="decoded" if method == "decoded" else "packets",
        notes=tuple(notes),
        packet_pos=table.pos,
        packet_size=table.size,
        num_lost=num_lost,
        coded_frames=table.coded_frames,
        fresh_starts=fresh_starts(facts),
    )
