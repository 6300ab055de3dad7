"""What every backend does at the end: lay the pictures it got along the rows that were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.errors import DecodeError
from framefleet.media.clip import ScannedClip
from framefleet.media.index import Int64
from framefleet.units import NS_PER_S


def deliver(clip: ScannedClip, wanted: Int64, rows: Int64, pictures: Any, stats: DecodeStats) -> DecodedFrames:
    """DecodedFrames from `pictures` [R, H, W, 3] of the unique, increasing `rows` [R] that came out.

    Those of the rows `wanted` [T] that are among them are given in that order, as often as asked; the rest is counted
    in `stats.num_missing`. Raises DecodeError when none came out.
    """
    given = wanted[np.isin(wanted, rows)]
    if not len(given):
        raise DecodeError("no asked-for frame could be decoded", given=repr(clip.source.name))
    slots = np.searchsorted(rows, given)
    data = pictures if np.array_equal(slots, np.arange(len(pictures))) else pictures[slots]
    stats.num_missing += len(wanted) - len(given)
    stats.index_method = clip.index.method
    stats.output_bytes = data.nbytes
    return DecodedFrames(
        data=data,
        pts_s=clip.index.pts_ns[given] / NS_PER_S,
        indices=given,
        info=clip.info,
        stats=stats,
        duration_s=clip.index.duration_s,
        fps=clip.index.fps,
        total_num_frames=clip.index.num_frames,
    )
