"""The `pyav` backend: FFmpeg by packets. Takes every clip, and walks no further than the plan says.

Pictures are known by the packet they came from, not by their times. What a decoder marks, or fails at, is not given,
nor what leans on it (`decode.trust`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.deliver import deliver
from framefleet.decode.limits import limits_of
from framefleet.decode.options import DecodeOptions
from framefleet.decode.picture import Deinterlacer, PictureWriter
from framefleet.decode.plan import DecodePlan, SeekGroup
from framefleet.decode.trust import doubtful
from framefleet.decode.walk import PacketWalk, require_packets
from framefleet.media.clip import ScannedClip
from framefleet.media.fact_readers import reads_packets_of
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import ScanLimits
from framefleet.media.pictures import PictureFeed, origin_of

_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""FFmpeg's own VP8 and VP9 decoders leave the alpha plane out."""


_KEYFRAMES_TRIED = 3
_NONE = np.empty(0, np.int64)


class PyAvBackend:
    """Frames through PyAV."""

    name = "pyav"
    sees_damage = True

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """Only an index that was never scanned."""
        del info
        return "the index is the header's, not a scan's" if index.method == "header" else None

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """The plan's frames [T, H, W, 3]. Damaged ones are left out and counted.

        Raises DecodeError when none can be had, DecodeTimeout, SourceError.
        """
        started_s = time.monotonic()
        run = _Run(clip, plan, options, limits_of(options))
        run.walk(is_strict=True)
        if not run.is_given.any() and run.breaks_standard():
            run.walk(is_strict=False)
        return run.frames(self.name, started_s)


class _Run:
    """One clip being decoded."""

    def __init__(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions, limits: ScanLimits) -> None:
        self._clip, self._plan, self._options, self._limits = clip, plan, options, limits
        self._rows = np.unique(plan.targets.rows)
        self._slot_of_packet = {int(p): slot for slot, p in enumerate(clip.index.packet_of_row[self._rows])}
        self._is_shown = np.zeros(len(clip.index.packet_pts), np.bool_)
        self._is_shown[clip.index.packet_of_row] = True
        self._data = np.empty((len(self._rows), plan.height, plan.width, 3), np.uint8)
        self.is_given = np.zeros(len(self._rows), np.bool_)
        self._is_false_start = False
        self._writer = PictureWriter(clip.info, plan.width, plan.height)
        self._is_deinterlacing = options.deinterlace and clip.info.is_interlaced_from_header
        self.stats = DecodeStats(
            is_interlaced=clip.info.is_interlaced_from_header,
            peak_bytes=plan.peak_bytes(clip.info, options.num_ffmpeg_threads),
        )

    def walk(self, *, is_strict: bool) -> None:
        """Decode every group; a strict decoder gives up a picture at the first sign of damage."""
        if not is_strict:
            self.stats.notes.append("the stream breaks its standard: decoded leniently")
        with PacketWalk(self._clip, self._limits) as walk:
            feed = None
            for group in self._plan.groups:
                feed = self._decode_group(walk, group, feed, is_strict=is_strict)
                if self._is_false_start:
                    self._is_false_start = False
                    feed = self._decode_group(walk, replace(group, first_packet=0).whole(), feed, is_strict=is_strict)

    def breaks_standard(self) -> bool:
        """Whether a strict decoder takes none of some keyframes far apart: then its refusals are no sign of damage."""
        keyframes = np.flatnonzero(self._clip.index.packet_is_keyframe)
        if len(keyframes) < 2:
            return False
        few = keyframes[np.linspace(0, len(keyframes) - 1, _KEYFRAMES_TRIED).astype(np.int64)]
        return not any(self._decodes(int(number)) for number in np.unique(few))

    def _decodes(self, keyframe: int) -> bool:
        with PacketWalk(self._clip, self._limits) as walk:
            for number, packet in walk.run(SeekGroup(keyframe, keyframe, _NONE, _NONE)):
                feed = self._new_feed(walk.stream, is_strict=True)
                came = [*feed.feed(number, packet), *feed.drain(number)]
                return bool(came) and not feed.troubled
        return False

    def _decode_group(
        self, walk: PacketWalk, group: SeekGroup, feed: PictureFeed | None, *, is_strict: bool
    ) -> PictureFeed:
        if self._is_deinterlacing:
            group = group.whole()
        deinterlacer = Deinterlacer() if self._is_deinterlacing else None
        stream = walk.stream
        came: set[int] = set()
        fed: list[int] = []
        for number, packet in walk.feed(self._with_second_field(group)):
            if feed is None or walk.stream is not stream:
                stream, feed = walk.stream, self._new_feed(walk.stream, is_strict=is_strict)
            self._limits.deadline.check("decoding", self._clip.source.name)
            fed.append(number)
            for origin, picture in feed.feed(number, packet):
                self._note_false_start(group, origin, picture)
                self._take(origin, picture, came, deinterlacer)
        require_packets(len(fed), self._clip)
        assert feed is not None
        for origin, picture in feed.drain(fed[-1]):
            self._note_false_start(group, origin, picture)
            self._take(origin, picture, came, deinterlacer)
        if deinterlacer:
            self._write_all(deinterlacer.drain())
        self._withdraw_doubtful(group, feed, fed, came)
        self.stats.frames_walked += feed.num_pictures
        self.stats.num_corrupt += feed.num_corrupt
        feed.num_pictures = feed.num_corrupt = 0
        return feed

    def _note_false_start(self, group: SeekGroup, origin: int, picture: Any) -> None:
        """Containers call packets keyframes that are none; where packets are not read, the decoder tells."""
        if origin == group.first_packet > 0 and not picture.key_frame and not reads_packets_of(self._clip.info.codec):
            self._is_false_start = True
            self.stats.notes.append(
                f"packet {origin} is no keyframe, whatever the container says: decoded from the first"
            )

    def _with_second_field(self, group: SeekGroup) -> SeekGroup:
        """Where packets may be single fields (then the index was made by decoding), one more is needed at the end."""
        index, following = self._clip.index, group.last_packet + 1
        if index.method != "decoded" or index.coded_frames is not None or following == len(index.packet_pts):
            return group
        return group if following in index.fresh_starts else replace(group, last_packet=following)

    def _new_feed(self, stream: Any, *, is_strict: bool) -> PictureFeed:
        info = self._clip.info
        decoder = _ALPHA_DECODERS.get(info.codec, "") if info.has_alpha else ""
        return PictureFeed(
            stream,
            max_pixels=self._options.max_source_pixels,
            num_threads=self._options.num_ffmpeg_threads,
            is_strict=is_strict,
            decoder=decoder,
        )

    def _take(self, origin: int, picture: Any, came: set[int], deinterlacer: Deinterlacer | None) -> None:
        came.add(origin)
        if deinterlacer:
            self._write_all(deinterlacer.push(picture))
        elif origin in self._slot_of_packet:
            self._write(origin, picture)

    def _write_all(self, pictures: list[Any]) -> None:
        for picture in pictures:
            if (origin := origin_of(picture)) in self._slot_of_packet:
                self._write(origin, picture)

    def _write(self, origin: int, picture: Any) -> None:
        slot = self._slot_of_packet[origin]
        if not self.is_given[slot]:
            self._writer.write(picture, self._data[slot])
            self.is_given[slot] = True

    def _withdraw_doubtful(self, group: SeekGroup, feed: PictureFeed, fed: list[int], came: set[int]) -> None:
        index, last = self._clip.index, fed[-1]
        if self._is_false_start:
            self.is_given[np.searchsorted(self._rows, group.rows)] = False
            return
        whole = set(fed) - set(group.cuts[:, 0].tolist())
        silent = {number for number in whole - came if self._is_shown[number]}
        if not silent and not feed.troubled:
            return
        spoilt = doubtful(index, group.first_packet, last, feed.troubled | silent)
        for row in group.rows.tolist():
            packet = int(index.packet_of_row[row])
            if packet <= last and spoilt[packet - group.first_packet]:
                self.is_given[self._slot_of_packet[packet]] = False

    def frames(self, backend: str, started_s: float) -> DecodedFrames:
        """What was given, in the order of the targets. Raises DecodeError when that is nothing."""
        stats = self.stats
        stats.backend = backend
        stats.tone_mapped = self._writer.tone_mapped
        stats.notes += self._writer.notes
        resize_s = self._writer.seconds
        stats.seconds = {"decode": time.monotonic() - started_s - resize_s, "resize": resize_s}
        pictures = self._data if self.is_given.all() else self._data[self.is_given]
        return deliver(self._clip, self._plan.targets.rows, self._rows[self.is_given], pictures, stats)
