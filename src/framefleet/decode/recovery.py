"""frame_recovery: the nearest frame that decodes cleanly, in place of one that does not."""

from __future__ import annotations

import dataclasses

import numpy as np

from framefleet.decode.decoder import DecodeBackend, DecodedFrames
from framefleet.decode.limits import limits_of
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan, plan_decode
from framefleet.decode.trust import doubtful
from framefleet.media.clip import ScannedClip
from framefleet.media.index import Int64
from framefleet.media.opening import open_container
from framefleet.media.packets import read_packets
from framefleet.media.pictures import PictureFeed, presented
from framefleet.sampling.sampler import FrameTargets


def recover(
    clip: ScannedClip, plan: DecodePlan, options: DecodeOptions, frames: DecodedFrames, backend: DecodeBackend
) -> DecodedFrames:
    """`frames` with each missing target replaced by its nearest clean neighbour in time.

    The neighbours carry their own times and rows; `stats.recovered_rows` names the targets they stand for. The clip
    is decoded once more to learn which rows are clean. Frames are returned as they are if none is.
    """
    missing = np.setdiff1d(plan.targets.rows, frames.indices)
    clean = clean_rows(clip, options)
    if not len(clean) or not len(missing):
        return frames
    stand_in = {int(row): nearest(int(row), clean, clip.index.pts_ns) for row in missing}
    wanted = np.sort(np.array([stand_in.get(row, row) for row in plan.targets.rows.tolist()], np.int64))
    again = plan_decode(clip.index, FrameTargets(wanted), plan.width, plan.height)
    recovered = backend.decode(clip, again, options)
    recovered.stats.recovered_rows = tuple(stand_in)
    recovered.stats.num_corrupt = max(recovered.stats.num_corrupt, frames.stats.num_corrupt)
    recovered.stats.frames_walked += frames.stats.frames_walked
    return dataclasses.replace(recovered, stats=recovered.stats)


def clean_rows(clip: ScannedClip, options: DecodeOptions) -> Int64:
    """Rows whose pictures come out undamaged when the whole clip is decoded."""
    index = clip.index
    limits = limits_of(options)
    came: set[int] = set()
    with open_container(clip.source, limits) as container:
        stream = container.streams[clip.info.stream_index]
        feed = PictureFeed(stream, max_pixels=options.max_source_pixels)
        packets = read_packets(container, stream, clip.source.name, limits)
        for origin, _, _ in presented(feed, packets, index.fresh_starts.tolist()):
            limits.deadline.check("looking for clean frames", clip.source.name)
            came.add(origin)
    silent = set(index.packet_of_row.tolist()) - came
    spoilt = doubtful(index, 0, len(index.packet_pts) - 1, feed.troubled | silent)
    return np.flatnonzero(~spoilt[index.packet_of_row])


def nearest(row: int, rows: Int64, pts_ns: Int64) -> int:
    """Of `rows`, the one shown nearest to `row`; the earlier of two equals."""
    return int(rows[np.argmin(np.abs(pts_ns[rows] - pts_ns[row]))])
