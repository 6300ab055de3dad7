"""decode: from a path to checked frames, in this process. `decode.pool` does the same in workers that can be killed."""

from __future__ import annotations

import os
import time
from typing import Any, BinaryIO

import msgspec

from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.decode.targets import choose_targets, output_size
from framefleet.errors import ConfigError
from framefleet.media.clip import ScannedClip
from framefleet.media.limits import Deadline, ScanLimits
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource


def decode(
    source: str | os.PathLike[str] | bytes | BinaryIO | VideoSource, options: DecodeOptions | None = None, **asked: Any
) -> DecodedFrames:
    """Sampled frames of one clip: `decode(path, num_frames=16)`. Any field of DecodeOptions may be named.

    Raises ConfigError for a wrong option, SourceError, DecodeError.
    """
    options = parse_options(options, asked)
    clip, probe_s = scan_timed(VideoSource.of(source), options)
    return decode_scanned(clip, options, probe_s=probe_s)


def parse_options(options: DecodeOptions | None, asked: dict[str, Any]) -> DecodeOptions:
    """`options` with the fields in `asked` set. Raises ConfigError for unknown names and wrong types."""
    merged = {**(msgspec.structs.asdict(options) if options else {}), **asked}
    try:
        return msgspec.convert(merged, DecodeOptions)
    except msgspec.ValidationError as error:
        raise ConfigError("wrong decode option", given=str(error)) from error


def scan_timed(source: VideoSource, options: DecodeOptions) -> tuple[ScannedClip, float]:
    """The scanned clip and the seconds it took."""
    started_s = time.monotonic()
    clip = scan(
        source,
        ScanLimits(
            deadline=Deadline(options.timeout_s),
            max_source_bytes=options.max_source_bytes,
            max_source_pixels=options.max_source_pixels,
            max_source_frames=options.max_source_frames,
        ),
    )
    return clip, time.monotonic() - started_s


def decode_scanned(clip: ScannedClip, options: DecodeOptions, *, probe_s: float = 0.0) -> DecodedFrames:
    """Sample, size, plan, choose, decode and verify one scanned clip."""
    targets = choose_targets(clip.index, options)
    width, height = output_size(clip.info, len(targets.rows), options)
    plan = plan_decode(clip.index, targets, width, height)
    frames = PyAvBackend().decode(clip, plan, options)
    frames.stats.seconds["probe"] = probe_s
    return frames
