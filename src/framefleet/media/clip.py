"""ScannedClip: a source with its header's claims and its packets' truth."""

from __future__ import annotations

from dataclasses import dataclass

from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.source import VideoSource


@dataclass(frozen=True, slots=True)
class ScannedClip:
    """All that a backend needs besides the plan."""

    source: VideoSource
    info: StreamInfo
    index: FrameIndex
