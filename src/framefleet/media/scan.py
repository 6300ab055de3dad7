"""scan: walk the packets without decoding, and say which frames can be shown, when, and from where."""

from __future__ import annotations

from typing import Any

import numpy as np

from framefleet.errors import SourceCorrupt, SourceTooLarge
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.limits import ScanLimits
from framefleet.media.opening import open_container
from framefleet.media.probe import choose_stream, describe
from framefleet.media.source import VideoSource
from framefleet.units import ticks_to_ns

_DEADLINE_EVERY = 256


def scan(source: VideoSource, limits: ScanLimits | None = None) -> ScannedClip:
    """Info and index. Raises SourceError or DecodeTimeout."""
    limits = limits or ScanLimits()
    with open_container(source, limits) as container:
        stream = choose_stream(container, source.name)
        info = describe(container, stream, source, limits)
    with open_container(source, limits) as container:
        index = _index(container.streams[info.stream_index], container, source, limits)
    return ScannedClip(source, info, index)


def _index(stream: Any, container: Any, source: VideoSource, limits: ScanLimits) -> FrameIndex:
    pts, keys, shown, end = [], [], [], 0
    for number, packet in enumerate(container.demux(stream)):
        if number % _DEADLINE_EVERY == 0:
            limits.deadline.check("scanning", source.name)
        if number > limits.max_source_frames:
            raise SourceTooLarge(
                "too many frames", given=repr(source.name), allowed=f"max_source_frames {limits.max_source_frames}"
            )
        if not packet.size:
            continue
        ticks = FrameIndex.NO_PTS if packet.pts is None else packet.pts
        pts.append(ticks)
        keys.append(packet.is_keyframe)
        shown.append(not packet.is_discard and packet.pts is not None)
        end = max(end, ticks + (packet.duration or 0))
    rows = sorted((p for p in range(len(pts)) if shown[p]), key=lambda p: pts[p])
    if not rows:
        raise SourceCorrupt("the clip holds no frames", given=repr(source.name))
    return FrameIndex(
        packet_pts=np.array(pts, np.int64),
        packet_is_keyframe=np.array(keys, np.bool_),
        packet_is_reference=np.ones(len(pts), np.bool_),
        packet_of_row=np.array(rows, np.int64),
        pts_ns=np.array([ticks_to_ns(pts[p], stream.time_base) for p in rows], np.int64),
        end_ns=ticks_to_ns(end, stream.time_base),
        method="packets",
    )
