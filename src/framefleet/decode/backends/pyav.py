"""The `pyav` backend: FFmpeg by packets. Takes every clip, and walks no further than the plan says."""

from __future__ import annotations

import time
from typing import Any

import av
import numpy as np

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.options import DecodeOptions
from framefleet.decode.picture import PictureWriter
from framefleet.decode.plan import DecodePlan
from framefleet.errors import DecodeError
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import Deadline, ScanLimits
from framefleet.media.opening import open_container
from framefleet.units import NS_PER_S


class PyAvBackend:
    """Frames through PyAV."""

    name = "pyav"

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:  # noqa: ARG002
        """Never."""
        return None

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """The plan's frames."""
        started_s = time.monotonic()
        deadline = Deadline(options.timeout_s)
        rows = np.unique(plan.targets.rows)
        frames = np.empty((len(rows), plan.height, plan.width, 3), np.uint8)
        writer = PictureWriter(clip.info, plan.width, plan.height)
        slot_of_packet = {int(clip.index.packet_of_row[row]): slot for slot, row in enumerate(rows)}
        got = np.zeros(len(rows), np.bool_)
        walked = 0
        with open_container(clip.source, ScanLimits(deadline=deadline)) as container:
            stream = container.streams[clip.info.stream_index]
            context = stream.codec_context
            context.thread_count = options.num_ffmpeg_threads
            context.copy_opaque = True
            last = plan.groups[-1].last_packet
            for number, packet in enumerate(p for p in container.demux(stream)):
                deadline.check("decoding", clip.source.name)
                if packet.size:
                    packet.opaque = number
                if number > last:
                    packet = None  # noqa: PLW2901
                for picture in context.decode(packet):
                    walked += 1
                    slot = slot_of_packet.get(picture.opaque)
                    if slot is not None and not got[slot]:
                        writer.write(picture, frames[slot])
                        got[slot] = True
                if packet is None:
                    break
        return _gather(clip, plan, rows, frames, got, DecodeStats(
            backend=self.name, frames_walked=walked, seconds={"decode": time.monotonic() - started_s},
        ))  # fmt: skip


def _gather(clip: ScannedClip, plan: DecodePlan, rows: Any, frames: Any, got: Any, stats: DecodeStats) -> DecodedFrames:
    slots = np.searchsorted(rows, plan.targets.rows)
    slots = slots[got[slots]]
    stats.num_missing = len(plan.targets.rows) - len(slots)
    if not len(slots):
        raise DecodeError("no asked-for frame could be decoded", given=repr(clip.source.name))
    data = frames if len(slots) == len(frames) else frames[slots]
    stats.output_bytes = data.nbytes
    stats.index_method = clip.index.method
    return DecodedFrames(
        data=data,
        pts_s=clip.index.pts_ns[rows[slots]] / NS_PER_S,
        indices=rows[slots],
        info=clip.info,
        stats=stats,
        duration_s=clip.index.duration_s,
        fps=clip.index.fps,
        total_num_frames=clip.index.num_frames,
    )
