"""Frames that someone extracted before (`video/jpeg`), as one source with their true times.

A clip like any other: probed, sampled, decoded in a worker. Frames of a request, which were sampled already and must
all reach the model, do not take this way: `engine.jpeg_frames` opens them with Pillow, so that no FFmpeg runs on a
client's bytes in the server's own process and none of its workers is held.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction

import av

from framefleet.errors import ConfigError, SourceCorrupt, SourceUnsupported
from framefleet.media.exif import exif_orientation
from framefleet.media.source import VideoSource


def jpeg_sequence(
    jpegs: Sequence[bytes],
    *,
    fps: float = 1.0,
    frames_indices: Sequence[int] | None = None,
    total_num_frames: int | None = None,
    duration_s: float | None = None,
) -> VideoSource:
    """A source of these JPEG files, frame i shown at `frames_indices[i] / fps` (at `i / fps` without indices).

    `fps` and `frames_indices` are those of the clip the frames were taken from. The last frame lasts until
    `duration_s`, or until `total_num_frames / fps`. The bytes are wrapped (NUT, MJPEG), not coded again.

    Raises ConfigError for a clock that does not fit, SourceCorrupt for what is no JPEG, SourceUnsupported for frames
    whose Exif turns them in different ways.
    """
    indices = list(range(len(jpegs))) if frames_indices is None else list(frames_indices)
    end = _checked_end(jpegs, fps, indices, total_num_frames, duration_s)
    if len(turns := sorted({exif_orientation(jpeg) for jpeg in jpegs})) > 1:
        raise SourceUnsupported("the frames are not all turned alike", given=f"Exif orientations {turns}")
    rate = Fraction(fps).limit_denominator(100_000)
    wrapped = io.BytesIO()
    with av.open(wrapped, "w", format="nut") as container:
        stream = container.add_stream("mjpeg", rate=rate)
        stream.width, stream.height = _size_of(jpegs[0])
        stream.pix_fmt = "yuvj420p"
        stream.time_base = 1 / rate
        for number, (jpeg, index) in enumerate(zip(jpegs, indices, strict=True)):
            if not jpeg.startswith(b"\xff\xd8"):
                raise SourceCorrupt("a frame is no JPEG", given=f"frame {number}")
            packet = av.Packet(jpeg)
            packet.stream, packet.time_base = stream, 1 / rate
            packet.pts = packet.dts = index
            packet.duration = (indices[number + 1] if number + 1 < len(indices) else end) - index
            packet.is_keyframe = True
            container.mux(packet)
    return VideoSource.of(wrapped.getvalue())


def _checked_end(
    jpegs: Sequence[bytes], fps: float, indices: list[int], total_num_frames: int | None, duration_s: float | None
) -> int:
    """Where the last frame ends, in frames of the clip."""
    if not jpegs or len(indices) != len(jpegs):
        raise ConfigError("frames and frames_indices differ", given=f"{len(jpegs)} and {len(indices)}")
    if not fps > 0:
        raise ConfigError("fps must be positive", given=str(fps))
    if any(later <= earlier for earlier, later in zip([-1, *indices], indices, strict=False)):
        raise ConfigError("frames_indices must increase from 0 up", given=str(indices[:8]))
    end = round(duration_s * fps) if duration_s is not None else total_num_frames
    if end is not None and end <= indices[-1]:
        raise ConfigError("the clip ends before its last frame", given=f"{end} <= {indices[-1]}")
    return indices[-1] + 1 if end is None else end


def _size_of(jpeg: bytes) -> tuple[int, int]:
    """(width, height) from the frame header (ITU-T T.81, B.2.2)."""
    at = 2
    while at + 9 < len(jpeg) and jpeg[at] == 0xFF:
        marker, length = jpeg[at + 1], int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(jpeg[at + 7 : at + 9], "big"), int.from_bytes(jpeg[at + 5 : at + 7], "big")
        at += 2 + length
    raise SourceCorrupt("a frame is no JPEG", given="frame 0")
