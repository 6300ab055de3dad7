"""probe: what the header claims about the stream a person would call the video.

Orientation lives in side data that only comes with a decoded picture, so one picture is decoded (never above
`max_source_pixels`); nothing else is.
"""

from __future__ import annotations

import os
from fractions import Fraction
from itertools import islice
from typing import Any, BinaryIO

import av

from framefleet.errors import SourceCorrupt, SourceTooLarge, SourceUnsupported
from framefleet.media.colour import ColourTags, colour_claims
from framefleet.media.info import StreamInfo
from framefleet.media.limits import ScanLimits
from framefleet.media.nal import H264Reader
from framefleet.media.opening import open_container
from framefleet.media.orientation import UPRIGHT, Orientation, orientation_of
from framefleet.media.packets import read_packets
from framefleet.media.pictures import first_picture
from framefleet.media.source import VideoSource
from framefleet.units import ticks_to_ns

_PICTURE_CODECS = frozenset(("mjpeg", "png", "bmp", "tiff", "webp", "gif", "apng", "jpeg2000", "jpegxl"))
_PACKETS_TO_TRY = 128
_DOLBY_VISION_TAGS = frozenset(("dvh1", "dvhe", "dav1"))
_ALIGNMENT_BYTES = 32
"""To which FFmpeg crops on the left unless told to be exact."""
_MAX_CREDIBLE_FPS = 1000
MIN_CREDIBLE_FPS = 1e-5
"""About a frame a day; damaged headers tell of a frame a century."""


def probe(
    source: str | os.PathLike[str] | bytes | BinaryIO | VideoSource, limits: ScanLimits | None = None
) -> StreamInfo:
    """The header's claims. Raises SourceError or DecodeTimeout."""
    limits = limits or ScanLimits()
    of = VideoSource.of(source, limits.max_source_bytes)
    with open_container(of, limits) as container:
        stream = choose_stream(container, of.name)
        check_pixels(stream.width, stream.height, of.name, limits)
        packets = islice(read_packets(container, stream, of.name, limits), _PACKETS_TO_TRY)
        colours = ColourTags.of(stream.codec_context)
        picture = first_picture(stream, (packet for packet in packets if packet.is_keyframe), limits.max_source_pixels)
        return describe(container, stream, of, limits, picture, colours=colours)


def choose_stream(container: Any, name: str) -> Any:
    """The stream a person would call the video: no cover art, no thumbnails; the default one, then the largest.

    Picture codecs (a still, or a camera's JPEG preview) come after film codecs even where they are the default.

    Raises SourceUnsupported when there is none, or none that can be decoded here.
    """
    kind = av.stream.Disposition
    no_video = kind.attached_pic | kind.timed_thumbnails | kind.still_image | kind.dependent
    real = [s for s in container.streams.video if not s.disposition & no_video]
    if not real:
        others = [s.type for s in container.streams]
        if not set(others) & {"video", "audio"}:
            raise SourceCorrupt("the clip's streams cannot be made out", given=repr(name), remedy="fetch it again")
        cover = "; an attached picture is no video" if container.streams.video else ""
        raise SourceUnsupported(
            "the clip has no video stream",
            given=f"{name!r} with {', '.join(others) or 'no'} stream{'s' * (len(others) != 1)}{cover}",
        )
    usable = [s for s in real if s.codec_context is not None]
    if not usable:
        raise SourceUnsupported("no decoder for the clip's codec", given=repr(name))
    return max(
        usable, key=lambda s: (not _is_picture(s), bool(s.disposition & kind.default), s.width * s.height, -s.index)
    )


def _is_picture(stream: Any) -> bool:
    return stream.codec_context.codec.canonical_name in _PICTURE_CODECS


def describe(
    container: Any, stream: Any, source: VideoSource, limits: ScanLimits, picture: Any | None, *, colours: ColourTags
) -> StreamInfo:
    """StreamInfo of the chosen stream, with what only a picture of it tells: size, orientation, interlacing. `colours`
    are the container's: the stream's codec context before anything was decoded with it.
    """
    context = stream.codec_context
    width = picture.width if picture else context.width
    height = picture.height if picture else context.height
    check_pixels(width, height, source.name, limits)
    if not width or not height:
        raise SourceUnsupported("the clip's picture size is unknown", given=f"{source.name!r} ({context.name})")
    turn = orientation_of(picture) if picture else UPRIGHT
    pixel_shape = _pixel_shape(stream)
    pix_fmt = (picture.format.name if picture else context.pix_fmt) or ""
    shown_width, shown_height = upright_size(width, height, pixel_shape, turn)
    try:
        claims = colour_claims(ColourTags.of(picture or context), colours, pix_fmt, width, height)
    except SourceUnsupported as error:
        given = f"{source.name!r} ({error.given})"
        raise SourceUnsupported(error.what, given=given, remedy=error.remedy) from error
    if context.codec_tag in _DOLBY_VISION_TAGS and not claims.is_matrix_tagged:
        raise SourceUnsupported(
            "the clip's colours cannot be converted",
            given=f"{source.name!r} (Dolby Vision without a base layer for others)",
            remedy="convert it to HDR10 or BT.709",
        )
    return StreamInfo(
        container=container.format.name,
        stream_index=stream.index,
        codec=context.codec.canonical_name if hasattr(context.codec, "canonical_name") else context.name,
        profile=context.profile or "",
        pix_fmt=pix_fmt,
        bit_depth=claims.bit_depth,
        chroma=claims.chroma,
        has_alpha=claims.has_alpha or stream.metadata.get("alpha_mode") == "1",
        coded_width=width,
        coded_height=height,
        width=shown_width,
        height=shown_height,
        rotation_deg=turn.rotation_deg,
        hflip=turn.hflip,
        tilt_deg=turn.tilt_deg,
        sample_aspect_ratio=pixel_shape,
        is_interlaced_from_header=bool(picture and picture.interlaced_frame) or context.field_order in (2, 3, 4, 5),
        colour_matrix=claims.matrix,
        is_full_range=claims.is_full_range,
        transfer=claims.transfer,
        time_base=stream.time_base,
        start_ns_from_header=None if stream.start_time is None else ticks_to_ns(stream.start_time, stream.time_base),
        duration_s_from_header=_duration_s(container, stream),
        fps_from_header=_fps(container, stream),
        num_frames_from_header=stream.frames if stream.frames > 0 else None,
        has_b_frames=bool(context.has_b_frames),
        has_audio=bool(container.streams.audio),
        size_bytes=container.size if container.size > 0 else None,
        is_matrix_tagged=claims.is_matrix_tagged,
        num_video_streams=len(container.streams.video),
        container_colours=colours,
        is_coded_grey=context.name == "h264" and not H264Reader(context.extradata or b"").has_chroma,
        is_cropped_at_left=context.coded_width > width and picture is not None and _starts_unaligned(picture),
    )


def _starts_unaligned(picture: Any) -> bool:
    return any(plane.buffer_ptr % _ALIGNMENT_BYTES for plane in picture.planes)


def check_pixels(width: int, height: int, name: str, limits: ScanLimits) -> None:
    """Raise SourceTooLarge when a picture of this size is above the limit."""
    if width * height > limits.max_source_pixels:
        raise SourceTooLarge(
            "the clip's pictures are too large",
            given=f"{name!r} ({width}x{height})",
            allowed=f"max_source_pixels {limits.max_source_pixels}",
            remedy="a larger max_source_pixels",
        )


def upright_size(width: int, height: int, pixel_shape: Fraction, turn: Orientation) -> tuple[int, int]:
    """(width, height) as shown: square pixels (the wider side is kept or stretched, never shrunk), then turned."""
    if pixel_shape > 1:
        width = max(1, round(width * pixel_shape))
    elif pixel_shape < 1:
        height = max(1, round(height / pixel_shape))
    return (height, width) if turn.swaps_sides else (width, height)


def _pixel_shape(stream: Any) -> Fraction:
    shape = stream.sample_aspect_ratio
    return shape if shape and Fraction(1, 16) <= shape <= 16 else Fraction(1)


def _duration_s(container: Any, stream: Any) -> float | None:
    if stream.duration and stream.duration > 0:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration and container.duration > 0 else None


def _fps(container: Any, stream: Any) -> float | None:
    is_raw_dirac = container.format.name == "dirac"  # FFmpeg says 25 whatever the stream says
    rate = stream.codec_context.framerate if is_raw_dirac else stream.average_rate
    return float(rate) if rate and MIN_CREDIBLE_FPS <= rate < _MAX_CREDIBLE_FPS else None
