"""What a clip's bytes are known by."""

from __future__ import annotations

import hashlib
from pathlib import Path

from framefleet.errors import SourceNotFound
from framefleet.media.fetch import local_copy
from framefleet.media.limits import ScanLimits
from framefleet.media.source import VideoSource

_NUM_BYTES = 16


def content_digest(source: VideoSource) -> str:
    """blake2b of all the clip's bytes (hex, 128 bits). A URL is fetched for it. Raises SourceError."""
    with local_copy(source, ScanLimits()) as local:
        if local.content is not None:
            return hashlib.blake2b(local.content, digest_size=_NUM_BYTES).hexdigest()
        try:
            with Path(local.location).open("rb") as stream:
                return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=_NUM_BYTES)).hexdigest()
        except OSError as error:
            raise SourceNotFound("cannot read the clip", given=f"{source.location!r} ({error.strerror})") from error
