"""ClipReader: what the caption runner needs of decoding. `decode.pool.DecodePool` is one; tests have others."""

from __future__ import annotations

from typing import Protocol

from framefleet.decode.decoder import DecodedFrames, ScannedClip
from framefleet.decode.options import DecodeOptions
from framefleet.media.source import VideoSource


class ClipReader(Protocol):
    """Reads clips away from the event loop. All three raise SourceError or DecodeError and end by the deadline."""

    async def digest(self, source: VideoSource) -> str:
        """blake2b of the clip's bytes (32 hex digits)."""
        ...

    async def scan(self, source: VideoSource, options: DecodeOptions) -> ScannedClip:
        """What the header claims and the packets say."""
        ...

    async def decode(self, source: VideoSource | ScannedClip, options: DecodeOptions) -> DecodedFrames:
        """The frames; a clip that was scanned before is not scanned again. Waits while too many bytes of frames are
        in flight."""
        ...
