"""Frames that a client decoded: `data:video/jpeg;base64,F1,F2,...` with their clock, as vLLM's loader takes them."""

from __future__ import annotations

import base64
import binascii
import io
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.options import DecodeOptions
from framefleet.decode.targets import output_size
from framefleet.errors import CaptionRejected, SourceCorrupt, SourceTooLarge
from framefleet.media.exif import exif_orientation
from framefleet.media.info import StreamInfo
from framefleet.units import format_bytes

_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
"""Pillow's names of what makes pictures of Exif orientation 2 and up upright."""
CLOCK_FIELDS = ("num_frames", "fps", "frames_indices", "total_num_frames", "duration", "do_sample_frames")


def jpeg_frames(payload: str, clock: dict[str, Any], policy: DecodeOptions) -> DecodedFrames:
    """The frames of the comma-separated base64 JPEGs, all of them, upright by their Exif, at the policy's size.

    `clock` holds CLOCK_FIELDS, as vLLM's `media_io_kwargs.video`. Raises CaptionRejected for a clock that does not fit,
    SourceCorrupt for what is no JPEG, SourceTooLarge above `policy.max_output_bytes`.
    """
    started_s = time.perf_counter()
    parts = payload.split(",")
    indices, fps, total = _checked_clock(clock, len(parts))
    pictures = [_Picture.of(part, number) for number, part in enumerate(parts)]
    if len({picture.size for picture in pictures}) != 1:
        raise SourceCorrupt("the frames differ in size", given=str(sorted({p.size for p in pictures})))
    _refuse_large(pictures[0].size, len(pictures), policy)
    info = _info(*pictures[0].size)
    size = output_size(info, len(pictures), policy)
    data = np.stack([picture.pixels(size) for picture in pictures])
    return DecodedFrames(
        data=data,
        pts_s=indices / fps,
        indices=indices,
        info=info,
        stats=DecodeStats(backend="jpeg_frames", seconds={"decode": time.perf_counter() - started_s}),
        duration_s=float(clock.get("duration") or total / fps),
        fps=fps,
        total_num_frames=total,
    )


def _checked_clock(clock: dict[str, Any], num_frames: int) -> tuple[npt.NDArray[np.int64], float, int]:
    """(frames_indices [T], fps, total_num_frames), with vLLM's defaults: consecutive frames at one a second."""
    if unknown := sorted(set(clock) - set(CLOCK_FIELDS)):
        raise CaptionRejected(
            "unknown fields of media_io_kwargs.video", given=", ".join(unknown), allowed=", ".join(CLOCK_FIELDS)
        )
    if clock.get("num_frames", -1) not in (-1, num_frames) or clock.get("do_sample_frames"):
        raise CaptionRejected("frames that were sampled already are not sampled again", given=str(clock))
    try:
        indices = np.asarray(clock.get("frames_indices", list(range(num_frames))), np.int64)
        fps, total = float(clock.get("fps", 1)), int(clock.get("total_num_frames", num_frames))
    except (TypeError, ValueError, OverflowError) as error:
        raise CaptionRejected("the frames' clock is not made of numbers", given=str(clock)) from error
    is_ordered = indices.shape == (num_frames,) and bool(np.all(np.diff(indices) >= 0)) and indices[0] >= 0
    if not is_ordered or not 0 < fps < 1e6 or total < num_frames:
        raise CaptionRejected(
            "the frames' clock does not fit the frames",
            given=f"{num_frames} frames, {clock}",
            allowed="one index a frame, not decreasing; fps above 0; total_num_frames at least the frames sent",
        )
    return indices, fps, total


@dataclass(frozen=True, slots=True)
class _Picture:
    """A JPEG that is opened but not decoded, and the number of its Exif orientation."""

    jpeg: Any
    orientation: int

    @classmethod
    def of(cls, part: str, number: int) -> _Picture:
        from PIL import Image

        try:
            content = base64.b64decode(part, validate=True)
            return cls(Image.open(io.BytesIO(content), formats=("JPEG",)), exif_orientation(content))
        except (binascii.Error, OSError, Image.DecompressionBombError) as error:
            raise SourceCorrupt("a frame is no JPEG", given=f"frame {number} ({type(error).__name__})") from error

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), upright."""
        width, height = self.jpeg.size
        return (height, width) if self.orientation > 4 else (width, height)

    def pixels(self, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """uint8 RGB [H, W, 3] of `size` (width, height), upright."""
        from PIL import Image

        try:
            rgb = self.jpeg.convert("RGB")
        except (OSError, SyntaxError) as error:
            raise SourceCorrupt("a frame is a damaged JPEG", given=str(error)) from error
        if self.orientation > 1:
            rgb = rgb.transpose(Image.Transpose[_TURNS[self.orientation - 2]])
        return np.asarray(rgb if rgb.size == size else rgb.resize(size, Image.Resampling.BICUBIC))


def _refuse_large(size: tuple[int, int], num_frames: int, policy: DecodeOptions) -> None:
    num_bytes = size[0] * size[1] * 3 * num_frames
    if size[0] * size[1] > policy.max_source_pixels or num_bytes > policy.max_output_bytes:
        raise SourceTooLarge(
            "the frames are too large",
            given=f"{num_frames} of {size[0]}x{size[1]}",
            allowed=format_bytes(policy.max_output_bytes),
        )


def _info(width: int, height: int) -> StreamInfo:
    return StreamInfo(
        container="jpeg_frames", stream_index=0, codec="mjpeg", profile="", pix_fmt="yuvj444p", bit_depth=8,
        chroma="4:4:4", has_alpha=False, coded_width=width, coded_height=height, width=width, height=height,
        rotation_deg=0, hflip=False, sample_aspect_ratio=Fraction(1), is_interlaced_from_header=False,
        colour_matrix="bt601", is_full_range=True, transfer="sdr", time_base=Fraction(1, 1000),
        start_ns_from_header=None, duration_s_from_header=None, fps_from_header=None, num_frames_from_header=None,
        has_b_frames=False, has_audio=False, size_bytes=None,
    )  # fmt: skip
