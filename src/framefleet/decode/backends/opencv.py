"""The `opencv` backend: walks from the first frame as vLLM does, and checks every step against the index.

Right or silent: what OpenCV is known to get wrong is refused before anything opens, and what goes wrong on the way
raises before a frame is given. Its pictures are within 3 levels of the `pyav` backend's at native size.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.decode.backends.ffmpeg_log import hear_errors
from framefleet.decode.backends.plain_path import plain_path
from framefleet.decode.backends.rgb_size import resize_rgb
from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.deliver import deliver
from framefleet.decode.options import DecodeOptions
from framefleet.decode.picture import turn_upright
from framefleet.decode.plan import DecodePlan
from framefleet.errors import DecodeError, SeekFailed
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import Deadline

CONTAINERS = ("mov,mp4", "matroska")
CODECS = ("h264", "hevc", "vp8", "vp9")
FIRST_VERSION_WITH_COLOUR_TAGS = (4, 13)
_TIME_SLACK_MS = 0.6
_UInt8 = npt.NDArray[np.uint8]


class OpenCvBackend:
    """Frames through cv2.VideoCapture."""

    name = "opencv"

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """The first thing that OpenCV would get wrong, or cannot."""
        return _refuse_library(info) or _refuse_clip(info, index)

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """The plan's frames, all of them. Raises DecodeError for a clip that is damaged up to the last one."""
        started_s = time.monotonic()
        if options.deinterlace:
            raise DecodeError("opencv does not deinterlace", remedy="the pyav backend")
        rows = np.unique(plan.targets.rows)
        pictures = np.empty((len(rows), plan.height, plan.width, 3), np.uint8)
        import cv2  # noqa: F401 (its FFmpeg must be loaded before it can be listened to)

        with plain_path(clip.source) as path, hear_errors("cv2") as heard:
            with _capture(path, options.num_ffmpeg_threads) as capture:
                _walk(capture, clip, rows, pictures, Deadline(options.timeout_s))
            if heard:
                raise DecodeError("the clip is damaged, and opencv does not say where", given=str(heard))
        stats = DecodeStats(
            backend=self.name,
            frames_walked=int(rows[-1]) + 1,
            peak_bytes=plan.peak_bytes(clip.info, options.num_ffmpeg_threads),
            is_interlaced=clip.info.is_interlaced_from_header,
            seconds={"decode": time.monotonic() - started_s},
        )
        return deliver(clip, plan.targets.rows, rows, pictures, stats)


def _refuse_library(info: StreamInfo) -> str | None:
    if importlib.util.find_spec("cv2") is None:
        return "OpenCV is not installed; try: pip install 'framefleet[opencv]'"
    if info.colour_matrix == "bt709" and _library_version() < FIRST_VERSION_WITH_COLOUR_TAGS:
        return "OpenCV before 4.13 takes every clip for BT.601"
    return None


def _library_version() -> tuple[int, ...]:
    for name in ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python"):
        try:
            return tuple(int(part) for part in version(name).split(".")[:2])
        except PackageNotFoundError:
            continue
    return (0, 0)


def _refuse_clip(info: StreamInfo, index: FrameIndex) -> str | None:
    num_hidden = len(index.packet_pts) - index.num_frames
    reasons = {
        f"only MP4 and Matroska, not {info.container}": not info.container.startswith(CONTAINERS),
        f"only {', '.join(CODECS)}, not {info.codec}": info.codec not in CODECS,
        "takes the first of several video streams, whichever it is": info.num_video_streams != 1,
        "leaves transparency out": info.has_alpha,
        "does not crop on the left": info.is_cropped_at_left,
        f"no tone mapping for {info.transfer}": info.transfer != "sdr",
        "may not see that the container says full range": _is_full_range_by_container(info),
        "takes limited grey for full range": info.chroma == "4:0:0" and not info.is_full_range,
        "turns BT.2020 colours into others": info.colour_matrix == "bt2020",
        "takes untagged colours for BT.601": not info.is_matrix_tagged and info.colour_matrix != "bt601",
        "its colour conversion rejects interlaced pictures": info.is_interlaced_from_header,
        f"needs an index from packets, not one that was {index.method}": index.method != "packets",
        f"the clip is irregular: {', '.join(index.notes)}": bool(index.notes),
        f"{num_hidden} packets are not shown": num_hidden != 0,
        "the clip does not begin with a keyframe": not index.packet_is_keyframe[:1].all(),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _is_full_range_by_container(info: StreamInfo) -> bool:
    return info.is_full_range and not info.is_matrix_tagged and not info.pix_fmt.startswith("yuvj")


@contextmanager
def _capture(path: str, num_threads: int) -> Iterator[Any]:
    import cv2

    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, num_threads])
    try:
        if not capture.isOpened():
            raise DecodeError("opencv cannot open the clip")
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)  # it turns mirrors wrongly; we turn
        yield capture
    finally:
        capture.release()


def _walk(capture: Any, clip: ScannedClip, rows: npt.NDArray[np.int64], pictures: _UInt8, deadline: Deadline) -> None:
    """Grab every frame up to the last wanted one, checking each one's time, and keep the wanted ones."""
    import cv2

    times_ms = (clip.index.pts_ns - clip.index.pts_ns[0]) / 1e6
    slots = {int(row): slot for slot, row in enumerate(rows)}
    for row in range(int(rows[-1]) + 1):
        deadline.check("decoding", clip.source.name)
        if not capture.grab():
            raise DecodeError(
                "opencv stops before the last frame asked for", given=f"{clip.source.name!r} at row {row}"
            )
        time_ms = capture.get(cv2.CAP_PROP_POS_MSEC)
        if abs(time_ms - times_ms[row]) > _TIME_SLACK_MS:
            raise SeekFailed(
                "opencv gave another frame", given=f"{time_ms:.2f} ms at row {row}", allowed=f"{times_ms[row]:.2f} ms"
            )
        if row in slots:
            pictures[slots[row]] = _picture(capture, clip.info, pictures.shape[2], pictures.shape[1])


def _picture(capture: Any, info: StreamInfo, width: int, height: int) -> _UInt8:
    import cv2

    ok, bgr = capture.retrieve()
    if not ok or bgr.shape != (info.coded_height, info.coded_width, 3):
        raise DecodeError("opencv gave a picture of another size", given=str(getattr(bgr, "shape", None)))
    if info.rotation_deg in (90, 270):
        width, height = height, width
    return turn_upright(resize_rgb(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), width, height), info)
