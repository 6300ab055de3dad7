"""Which pictures can be believed after trouble in a decoder: damage spreads along references to a clean start. Pure."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from framefleet.media.index import Bool, FrameIndex

LOOK_BACK_PACKETS = 8
"""A decoder may notice damage late: this many packets before it, back to their keyframe, are doubted too.
Measured on H.264 with 4 bits flipped a file: 17 damaged frames of 1300 slipped through without, 2 with."""


def doubtful(index: FrameIndex, first: int, last: int, troubled: Collection[int]) -> Bool:
    """[last + 1 - first] True for packets of the run `first` to `last` whose pictures may be wrong.

    From a troubled packet on, everything is doubtful up to the next clean keyframe, and that keyframe's leading
    pictures; a troubled packet that nothing refers to spoils only itself. Trouble at the very last packet is that of a
    source cut short, so what came before it is not doubted. Pictures that lead the first packet cannot
    come out right in this run, and nothing else leans on them: trouble there means nothing.
    """
    spoilt = np.zeros(last + 1 - first, np.bool_)
    rows = np.full(len(index.packet_pts), -1, np.int64)
    rows[index.packet_of_row] = np.arange(index.num_frames)
    hits = {number for number in troubled if first <= number <= last and not 0 <= rows[number] < rows[first]}
    if not hits:
        return spoilt
    is_lost = is_lead_lost = False
    start = first
    for number in range(first, last + 1):
        is_hit = number in hits
        if index.packet_is_keyframe[number]:
            is_lead_lost, start = is_lost or is_hit, number
            is_lost = is_hit
            spoilt[number - first] = is_hit
            continue
        leads = 0 <= rows[number] < rows[start]
        spoilt[number - first] = is_hit or is_lost or (is_lead_lost and leads)
        if is_hit and number < len(rows) - 1:
            spoilt[max(start + 1, number - LOOK_BACK_PACKETS) - first : number - first] = True
        if is_hit:
            is_lost = is_lost or bool(index.packet_is_reference[number])
    return spoilt
