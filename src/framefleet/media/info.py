"""StreamInfo: what the container's header *claims* about the video stream a person would call the video."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from framefleet.media.colour import NO_TAGS, ColourTags


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """Claims of the header, read without decoding. Doubtful fields end in `_from_header`; `FrameIndex` has the truth.

    `width` and `height` are upright: after cropping, rotation and sample aspect ratio. `coded_width` and
    `coded_height` are what the decoder puts out before any of these. `rotation_deg` is the clockwise turn
    (0, 90, 180, 270) the decoded picture needs, applied after `hflip` (a left-right mirror).
    """

    container: str
    stream_index: int
    codec: str
    profile: str
    pix_fmt: str
    bit_depth: int
    chroma: str
    """`4:0:0`, `4:2:0`, `4:2:2`, `4:4:4` or `rgb`."""
    has_alpha: bool
    coded_width: int
    coded_height: int
    width: int
    height: int
    rotation_deg: int
    hflip: bool
    sample_aspect_ratio: Fraction
    is_interlaced_from_header: bool
    colour_matrix: str
    """`bt601`, `bt709`, `smpte240m`, `bt2020`, `rgb`: the tag, or the rule for untagged video (SD 601, HD 709)."""
    is_full_range: bool
    transfer: str
    """`sdr`, `pq` or `hlg`."""
    time_base: Fraction
    start_ns_from_header: int | None
    duration_s_from_header: float | None
    fps_from_header: float | None
    num_frames_from_header: int | None
    has_b_frames: bool
    has_audio: bool
    size_bytes: int | None
    is_matrix_tagged: bool = True
    """Whether `colour_matrix` is the pictures' own tag; libraries differ in what they make of video without one."""
    num_video_streams: int = 1
    """All of them, pictures attached as cover art included; some libraries simply take the first."""
    container_colours: ColourTags = NO_TAGS
    """What the container says of colours; it holds where the pictures say nothing."""
    is_cropped_at_left: bool = False
    """By a width that suits no processor's alignment: libraries that do not ask for it leave that part in."""
    is_coded_grey: bool = False
    """H.264 without chroma. FFmpeg puts out 4:2:0 with grey chroma (so `chroma` says), NVDEC leaves it undefined."""
    tilt_deg: float = 0.0
    """What a display matrix asks for beyond `rotation_deg`, clockwise, -45 to 45: not done. 0 below one degree."""
