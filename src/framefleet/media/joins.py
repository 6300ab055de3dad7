"""Joins: where a stream goes on that was cut elsewhere, though nothing in it says so. Pure numpy.

Tools that copy packets put parts of streams end to end at keyframes. A keyframe of an open group is shown after
pictures that lean on the group before, which is another now: they decode to mixtures, mostly without any error. The
stream's own count of its pictures (H.264, H.265: picture order count; MPEG-1/2: time codes) tells.
"""

from __future__ import annotations

import numpy as np

from framefleet.media.facts import (
    DAMAGED,
    GAP,
    LEADS_BROKEN,
    ORDER_BITS,
    ORDER_SHIFT,
    ORDERED,
    RECOVERY,
    REFERENCE,
    START,
)
from framefleet.media.index import Bool, FrameIndex, Int64

_WRAP = 1 << ORDER_BITS
_CODECS_THAT_MUST_COUNT = ("h264", "hevc")
_REGULAR_SHARE = 0.75


def find_joins(facts: Int64, codec: str) -> Int64:
    """Packets [J], each a place where decoding may begin, before which the count of pictures does not go on.

    From the last picture shown before such a place to the first one shown after it the count must make the step that
    is usual between places. A stream whose count knows no usual step (it goes with the time, say) only tells where
    the count falls back; one of a codec that need not count tells nothing, unless the count goes on at most places.
    """
    entries = np.flatnonzero((facts & (START | RECOVERY) != 0) & (facts & DAMAGED == 0))
    known = np.flatnonzero(facts & ORDERED)
    part = np.searchsorted(entries, known, side="right")
    shown = np.lexsort((unwrapped(facts)[known], part))
    known, part = known[shown], part[shown]
    steps = np.diff(facts[known] >> ORDER_SHIFT) % _WRAP
    crosses = np.flatnonzero(np.diff(part) != 0)
    entry = entries[part[crosses + 1] - 1]
    is_counted = facts[entry] & ORDERED != 0  # a picture that resets the count has none
    usual, share = _most_usual(np.delete(steps, crosses) if len(crosses) < len(steps) else steps)
    goes_on = steps[crosses] == usual
    if codec not in _CODECS_THAT_MUST_COUNT:
        is_join = ~goes_on & (2 * np.count_nonzero(goes_on) > len(crosses))
    else:
        falls_back = (steps[crosses] - 1) % _WRAP >= _WRAP // 2
        is_join = falls_back | (~goes_on & (share >= _REGULAR_SHARE))
    return np.asarray(entry[is_counted & is_join], np.int64)


def _most_usual(steps: Int64) -> tuple[int, float]:
    """The step made most often, and the share it has."""
    if not len(steps):
        return 0, 0.0
    values, counts = np.unique(steps, return_counts=True)
    return int(values[np.argmax(counts)]), float(counts.max() / len(steps))


def mark_joins(facts: Int64, codec: str, pts: Int64, dts: Int64) -> Int64:
    """The facts with `GAP` set at joins. MPEG-4 counts time: where its clock goes on by as much, it but paused."""
    found = facts.copy()
    joins = find_joins(facts, codec)
    if codec == "mpeg4" and len(joins):
        joins = joins[~_keeps_time(facts, pts, dts, joins)]
    found[joins] |= GAP
    return found


def _keeps_time(facts: Int64, pts: Int64, dts: Int64, joins: Int64) -> Bool:
    """[J] whether count and clock make the same step, by their usual ratio, from the last reference picture to this.

    Without pts, a reference picture is shown when the next one is decoded.
    """
    refs = np.flatnonzero((facts & REFERENCE != 0) & (facts & ORDERED != 0))
    clock = pts[refs] if np.all(pts[refs] != FrameIndex.NO_PTS) else np.append(dts[refs[1:]], dts[-1:])
    steps = np.diff(facts[refs] >> ORDER_SHIFT) % _WRAP
    ticks = np.diff(clock).astype(np.float64)
    at = np.searchsorted(refs, joins) - 1
    usual_step, usual_ticks = np.median(steps), np.median(ticks)
    if usual_step <= 0 or usual_ticks <= 0 or np.any(clock == FrameIndex.NO_PTS):
        return np.zeros(len(joins), np.bool_)
    off = (ticks[at] * usual_step / usual_ticks - steps[at] + _WRAP // 2) % _WRAP - _WRAP // 2
    return np.asarray(np.abs(off) < usual_step / 4, np.bool_)


def fresh_starts(facts: Int64) -> Int64:
    """Packets [J] at which a decoder must be emptied: a clean start, and what comes before is another stream's."""
    return np.flatnonzero((facts & START != 0) & (facts & GAP != 0) & (facts & DAMAGED == 0))


def leading(facts: Int64, pts: Int64) -> Bool:
    """[P] packets shown before the START they follow in the stream: by pts, where there are none by the count."""
    number = np.arange(len(facts))
    start = np.maximum.accumulate(np.where((facts & START != 0) & (facts & DAMAGED == 0), number, 0))
    has_pts = np.minimum(pts, pts[start]) != FrameIndex.NO_PTS
    has_order = facts & facts[start] & ORDERED != 0
    order = unwrapped(facts)
    leads = np.where(has_pts, pts < pts[start], has_order & (order < order[start]))
    return np.asarray(leads | (facts & LEADS_BROKEN != 0), np.bool_)


def unwrapped(facts: Int64) -> Int64:
    """[P] the count without its wraps, each from the reference picture before; continuous up to the next reset."""
    order = facts >> ORDER_SHIFT
    number = np.arange(len(facts))
    anchor = np.maximum.accumulate(np.where(facts & REFERENCE != 0, number, 0))
    before = np.concatenate(([0], anchor[:-1]))
    step = (order - order[before] + _WRAP // 2) % _WRAP - _WRAP // 2
    at_anchor = np.cumsum(np.where(facts & REFERENCE != 0, step, 0))
    return np.asarray(at_anchor[before] + step, np.int64)
