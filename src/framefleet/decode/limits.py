"""The limits on one source, from DecodeOptions."""

from __future__ import annotations

from framefleet.decode.options import DecodeOptions
from framefleet.media.limits import Deadline, FetchPolicy, ScanLimits


def limits_of(options: DecodeOptions) -> ScanLimits:
    """A fresh deadline of `timeout_s` starts now."""
    return ScanLimits(
        deadline=Deadline(options.timeout_s),
        max_source_bytes=options.max_source_bytes,
        max_source_pixels=options.max_source_pixels,
        max_source_frames=options.max_source_frames,
        fetch=FetchPolicy(allowed_hosts=options.allowed_hosts),
    )
