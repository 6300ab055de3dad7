"""scan: which frames can be shown, when, and from where. Packets are walked, not decoded, wherever they can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from framefleet.errors import SourceCorrupt
from framefleet.media.clip import ScannedClip
from framefleet.media.colour import ColourTags
from framefleet.media.edit_list import on_movie_clock
from framefleet.media.facts import DAMAGED, GAP, HIDDEN, IS_B, NOT_ONE_PICTURE, RECOVERY, REFERENCE, START
from framefleet.media.index import Bool, FrameIndex, Int64
from framefleet.media.info import StreamInfo
from framefleet.media.joins import fresh_starts, mark_joins
from framefleet.media.limits import ScanLimits
from framefleet.media.opening import open_container, open_file
from framefleet.media.packets import NO_PTS, PacketTable, avi_times, dirac_times, read_packets, table_of
from framefleet.media.pictures import PictureFeed, fill_ticks, first_picture, presented, shown_by_clock, with_lost
from framefleet.media.probe import MIN_CREDIBLE_FPS, check_pixels, choose_stream, describe, probe
from framefleet.media.promises import Promise, promise_of
from framefleet.media.source import VideoSource
from framefleet.media.timeline import (
    PTS_ARE_DTS,
    Epochs,
    find_epochs,
    make_index,
    mark_losses,
    on_one_clock,
    presentable_rows,
    undecodable,
    why_packets_cannot_tell,
)
from framefleet.media.transport import find_losses
from framefleet.units import NS_PER_S, s_to_ns

_HOLE_BYTES = 256
_INDEX_BYTES_PER_PACKET = 32
_LIVE_FORMATS = ("mpegts", "mpeg", "flv")
_NOTHING_BETWEEN = ("obu", "yuv4mpegpipe")
"""Formats without an end of their own, whose demuxers leave out a last picture that is torn."""
_PICTURE_TRIES = 8
_ASSUMED_FPS = 25.0
_MAX_GUESSED_FPS = 480
"""Above this the demuxer is naming a time base, not a rate."""


def scan(source: VideoSource, limits: ScanLimits | None = None) -> ScannedClip:
    """Info and index of a source.

    Raises SourceError, or DecodeTimeout when the deadline of `limits` passes.
    """
    limits = limits or ScanLimits()
    if limits.header_only:
        info = probe(source, limits)
        return ScannedClip(source, info, header_index(info, source.name))
    if source.kind == "url":
        from framefleet.media.fetch import local_copy

        with local_copy(source, limits) as local:
            return replace(scan(local, limits), source=source)
    with open_container(source, limits) as container:
        stream = choose_stream(container, source.name)
        check_pixels(stream.width, stream.height, source.name, limits)
        keys: list[Any] = []
        packets = read_packets(container, stream, source.name, limits)
        table, pid = table_of(_keep_keys(packets, keys), stream, source.name), stream.id
        colours = ColourTags.of(stream.codec_context)
        picture = first_picture(stream, keys, limits.max_source_pixels)
        info = describe(container, stream, source, limits, picture, colours=colours)
        guessed_fps = float(stream.guessed_rate or 0)
        with open_file(source, limits) as file:
            promise = promise_of(container, stream, file)
        raw_pts = table.pts
        if info.container == "avi":
            table = avi_times(table, stream)
        elif info.container == "dirac":
            table = dirac_times(table, stream)
    facts, notes = _facts_with_losses(source, info, table, pid, limits)
    if info.codec == "av1" and table.coded_frames is None:
        facts = facts | REFERENCE
        notes.append("AV1 of an unusual kind: no packet is left out")
    edits: list[str] = []
    if info.container.startswith("mov"):
        table, edits = on_movie_clock(source, info, table, pid, limits)
        notes.extend(edits)
    if info.container == "mpegvideo":  # what pts there are, the demuxer made up
        table = replace(table, pts=np.full(len(table), NO_PTS, np.int64))
    epochs = find_epochs(table, info.time_base, is_live_format=info.container in _LIVE_FORMATS)
    table = on_one_clock(table, epochs)
    has_gap = facts & GAP != 0  # a join is none: what was cut off there was not lost
    facts = facts if edits else mark_joins(facts, info.codec, table.pts, table.dts)
    fps = guessed_fps if MIN_CREDIBLE_FPS <= guessed_fps <= _MAX_GUESSED_FPS else info.fps_from_header or _ASSUMED_FPS
    walked = _Walked(source, info, table, epochs, facts, fps, limits, promise, raw_pts, has_gap, notes)
    reason = why_packets_cannot_tell(table, info.codec, has_b_frames=info.has_b_frames)
    return _by_decoding(walked, reason) if reason else ScannedClip(source, info, _by_packets(walked))


def header_index(info: StreamInfo, name: str) -> FrameIndex:
    """An index that believes the header: even spacing, one packet a frame, one keyframe. For estimates, not decoding.

    Raises SourceCorrupt when the header tells neither a count nor a duration and rate.
    """
    count = info.num_frames_from_header or round((info.duration_s_from_header or 0) * (info.fps_from_header or 0))
    if count < 1:
        raise SourceCorrupt("the header tells no frame count", given=repr(name), remedy="a full scan")
    start_ns = info.start_ns_from_header or 0
    length_s = info.duration_s_from_header or count / (info.fps_from_header or _ASSUMED_FPS)
    pts_ns = start_ns + np.rint(np.arange(count) * (length_s * NS_PER_S / count)).astype(np.int64)
    return FrameIndex(
        packet_pts=np.full(count, NO_PTS, np.int64),
        packet_is_keyframe=np.arange(count) == 0,
        packet_is_reference=np.ones(count, np.bool_),
        packet_of_row=np.arange(count, dtype=np.int64),
        pts_ns=pts_ns,
        end_ns=start_ns + s_to_ns(length_s),
        method="header",
        notes=("times and count are the header's",),
    )


@dataclass(frozen=True, slots=True)
class _Walked:
    """A source whose packets were walked once. The table is on one clock; `raw_pts` are as the demuxer gives them."""

    source: VideoSource
    info: StreamInfo
    table: PacketTable
    epochs: Epochs
    facts: Int64
    fps: float
    limits: ScanLimits
    promise: Promise
    raw_pts: Int64
    has_gap: Bool
    notes: list[str]

    @property
    def step(self) -> float:
        """Ticks of a frame at the stream's nominal rate, which may be that of its fields: then of a packet."""
        lengths = self.table.duration[self.table.duration > 0]
        of_packet = float(np.median(lengths)) if len(lengths) else 0.0
        return max(of_packet, float(1 / (Fraction(self.fps).limit_denominator(10**6) * self.info.time_base)))


def _keep_keys(packets: Iterator[Any], keys: list[Any]) -> Iterator[Any]:
    for packet in packets:
        if packet.is_keyframe and len(keys) < _PICTURE_TRIES:
            keys.append(packet)
        yield packet


def _facts_with_losses(
    source: VideoSource, info: StreamInfo, table: PacketTable, pid: int, limits: ScanLimits
) -> tuple[Int64, list[str]]:
    facts = table.facts
    if _leans_on_first_packets(info, facts):
        facts = np.where(np.arange(len(facts)) > 0, facts & ~START, facts) | REFERENCE
    if info.container != "mpegts":
        return facts | np.where(table.is_corrupt, DAMAGED, 0), []
    limits.deadline.check("scanning", source.name)
    with open_file(source, limits) as stream:
        losses = find_losses(stream, pid)
    if not len(losses):
        return facts, []
    return mark_losses(table, losses), [f"transport packets are missing in {len(losses)} places"]


def _leans_on_first_packets(info: StreamInfo, facts: Int64) -> bool:
    """A palette may come but once, with the first packet; of interlaced MPEG-4, FFmpeg measures the distances between
    pictures by the first B-VOP, and leaves out all others where it did not start with the stream.
    """
    if info.codec == "mpeg4":
        return info.is_interlaced_from_header and bool(np.any(facts & IS_B))
    return info.pix_fmt == "pal8" and info.codec != "png"


def _by_packets(walked: _Walked) -> FrameIndex:
    broken = undecodable(walked.facts, walked.table.pts)
    rows = presentable_rows(replace(walked.table, facts=walked.facts), broken)
    if not len(rows[0]):
        raise SourceCorrupt("no frame of the clip can be decoded", given=f"{walked.source.name!r}: no clean keyframe")
    walked.notes.extend(_resets(walked.epochs, rows[0]))
    if walked.info.container == "obu":  # the demuxer counts pictures
        walked.notes.append(_no_clock(walked.fps))
    return _finish(walked, rows, broken, "packets")


def _no_clock(fps: float) -> str:
    return f"the source has no clock: {fps:g} frames per second are assumed"


def _resets(epochs: Epochs, packets: Int64) -> list[str]:
    return [f"timestamps reset at row {np.count_nonzero(packets < start)}" for start in epochs.starts]


def _by_decoding(walked: _Walked, reason: str) -> ScannedClip:
    """Decode everything once, keeping nothing but which packet came out when."""
    source, info, table, limits = walked.source, walked.info, walked.table, walked.limits
    has_pts = table.pts != NO_PTS if reason != PTS_ARE_DTS else np.zeros(len(table), np.bool_)
    origins: list[int] = []
    ticks: dict[int, int | None] = {}
    with open_container(source, limits) as container:
        stream = container.streams[info.stream_index]
        feed = PictureFeed(stream, max_pixels=limits.max_source_pixels)
        packets = read_packets(container, stream, source.name, limits)
        for origin, pts, picture in presented(feed, packets, fresh_starts(walked.facts).tolist()):
            limits.deadline.check("decoding to find the frames", source.name)
            if not origins:
                info = describe(container, stream, source, limits, picture, colours=info.container_colours)
            origins.append(origin)
            is_known = has_pts[origin] and pts is not None
            ticks[origin] = (pts or 0) + int(walked.epochs.shift[origin]) if is_known else None
    facts, broken = _broken_by_decoding(walked.facts, table.pts, feed.troubled)
    is_one_to_one = not np.any(facts & (NOT_ONE_PICTURE | HIDDEN))
    order = with_lost(origins, (facts & IS_B != 0).tolist()) if is_one_to_one else origins
    decode_times = table.pts if reason == PTS_ARE_DTS else table.dts
    clock = sorted(t for t in decode_times[order].tolist() if t != NO_PTS)
    times = fill_ticks([ticks.get(number) for number in order], walked.step, shown_by_clock(clock, order))
    came = set(origins)
    kept = [at for at, n in enumerate(order) if n in came and not broken[n] and not table.is_discarded[n]]
    if not kept:
        raise SourceCorrupt("no frame of the clip can be decoded", given=repr(source.name))
    walked.notes.append(f"{reason}: decoded to find the frames")
    if not clock and not any(t is not None for t in ticks.values()):
        walked.notes.append(_no_clock(walked.fps))
    shown_at = table.pts.copy()
    shown_at[order] = times
    seen = replace(walked, info=info, facts=facts, table=replace(table, pts=shown_at))
    rows = np.array(order, np.int64)[kept], times[kept]
    walked.notes.extend(_resets(walked.epochs, rows[0]))
    lost = broken | ~np.isin(np.arange(len(table)), origins) if is_one_to_one else broken
    return ScannedClip(source, info, _finish(seen, rows, lost, "decoded"))


def _broken_by_decoding(facts: Int64, pts: Int64, troubled: set[int]) -> tuple[Int64, Bool]:
    """The facts with what troubled the decoder, and what `undecodable` makes of them.

    Where a stream that has no clean start recovers, trouble before that was to be expected. One that has neither is
    left to the decoder, which shows what it takes for recovered.
    """
    is_troubled = np.isin(np.arange(len(facts)), list(troubled))
    if facts[0] & START or np.any((facts & START != 0) & (facts & DAMAGED == 0) & ~is_troubled):
        facts = np.where(is_troubled, facts | DAMAGED, facts)
        return facts, undecodable(facts, pts)
    if not np.any(facts & RECOVERY):
        return np.where(is_troubled, facts | DAMAGED, facts), is_troubled
    facts = np.where(is_troubled & ~undecodable(facts, pts), facts | DAMAGED, facts)
    return facts, undecodable(facts, pts)


def _finish(
    walked: _Walked, rows: tuple[Int64, Int64], broken: Bool, method: Literal["packets", "decoded"]
) -> FrameIndex:
    """The index of rows (packets, ticks), with what was lost counted."""
    table, facts, (packets, ticks) = walked.table, walked.facts, rows
    steps = np.diff(ticks)
    usual = int(np.median(steps)) if len(steps) else round(walked.step)
    is_shown = (facts & HIDDEN == 0) & ~table.is_discarded
    num_lost = int(np.count_nonzero(broken & is_shown)) + max(0, walked.promise.num_packets - len(table))
    num_lost += _num_behind_gaps(walked, rows, broken & is_shown, usual)
    num_lost += _num_unread(walked, rows, usual)
    walked.notes.extend(f"decoding begins anew at row {row}" for row in _rows_of(fresh_starts(facts), packets))
    if tilt_deg := walked.info.tilt_deg:
        turn = f"turned by {walked.info.rotation_deg} degrees"
        walked.notes.append(f"{turn}, though the display matrix asks for {tilt_deg:+g} more")
    if num_lost:
        walked.notes.append(f"{num_lost} frames cannot be decoded")
    return make_index(
        table, facts, rows, walked.info.time_base, packet_pts=walked.raw_pts,
        last_duration=int(table.duration[packets[-1]]) or usual, method=method, num_lost=num_lost, notes=walked.notes,
    )  # fmt: skip


def _rows_of(starts: Int64, packets: Int64) -> list[int]:
    """The rows of those of the `starts` that have one, but for the first row."""
    rows = np.flatnonzero(np.isin(packets, starts))
    return [int(row) for row in rows if row]


def _num_behind_gaps(walked: _Walked, rows: tuple[Int64, Int64], broken: Bool, usual: int) -> int:
    """Frames whose packets are gone: what the pauses at gaps have room for, less those whose packets are here."""
    packets, ticks = rows
    gap_rows = np.flatnonzero(walked.has_gap[packets])
    gap_rows = gap_rows[gap_rows > 0]
    here = np.sort(walked.table.pts[broken])
    num_here = np.searchsorted(here, ticks[gap_rows]) - np.searchsorted(here, ticks[gap_rows - 1])
    pauses = ticks[gap_rows] - ticks[gap_rows - 1] - num_here * usual
    return int(np.maximum(np.rint(pauses / usual) - 1, 0).sum()) if usual > 0 else 0


def _num_missing_at(gap_rows: Int64, steps: Int64, usual: int) -> int:
    """How many frames of the `usual` length fit into the pauses before these rows."""
    if usual <= 0:
        return 0
    pauses = steps[gap_rows[gap_rows > 0] - 1]
    return int(np.maximum(np.rint(pauses / usual) - 1, 0).sum())


def _num_unread(walked: _Walked, rows: tuple[Int64, Int64], usual: int) -> int:
    """Frames that a torn or cut container kept back, by its own account of where the stream ends."""
    table, promise, time_base = walked.table, walked.promise, walked.info.time_base
    size = walked.info.size_bytes or 0
    if promise.num_packets > len(table):
        return 0
    overhead = table.pos[1:] - table.pos[:-1] - table.size[:-1]
    holes = np.flatnonzero(overhead > np.median(overhead) + _HOLE_BYTES) if len(overhead) else overhead
    rest_bytes = size - int(table.pos[-1] + table.size[-1])
    is_stopped = table.pos[-1] > 0 and rest_bytes > _HOLE_BYTES + _INDEX_BYTES_PER_PACKET * len(table)
    num_lost = 0
    if promise.end_ns is not None:
        if len(holes) and not walked.info.has_audio:
            at_hole = np.flatnonzero(np.isin(rows[0], holes + 1))
            num_lost += _num_missing_at(at_hole, np.diff(rows[1]), usual)
        if promise.is_cut_short or is_stopped:
            behind = Fraction(promise.end_ns, NS_PER_S) / time_base - int(rows[1][-1]) - usual
            num_lost += max(0, round(behind / usual)) if usual else 0
    is_torn = walked.info.container in _NOTHING_BETWEEN and rest_bytes > 0
    return max(num_lost, 1) if promise.is_cut_short or is_torn else num_lost
