"""Remote clips that are cut into windows: fetched once, kept until their last window is done."""

from __future__ import annotations

import asyncio
import shutil
from hashlib import blake2b
from pathlib import Path

from framefleet.decode.limits import limits_of
from framefleet.decode.options import DecodeOptions
from framefleet.media.fetch import open_url
from framefleet.media.source import VideoSource


class LocalCopies:
    """Copies in a folder that somebody else makes and removes. As many as there are clips with windows in flight."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    async def of(self, source: VideoSource, options: DecodeOptions) -> VideoSource:
        """The clip as a local file; a local clip as it is. Raises as `open_url`."""
        if source.kind != "url":
            return source
        path = self._path(source.location)
        if not path.exists():
            await asyncio.to_thread(_fetch, source.location, path, options)
        return VideoSource("file", str(path), title=source.location)

    def let_go(self, url: str) -> None:
        """The copy is wanted no more. Also for what was never copied."""
        self._path(url).unlink(missing_ok=True)

    def _path(self, url: str) -> Path:
        return self.folder / blake2b(url.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _fetch(url: str, path: Path, options: DecodeOptions) -> None:
    part = path.with_suffix(".part")
    try:
        with open_url(url, limits_of(options)) as there, part.open("wb") as here:
            shutil.copyfileobj(there, here, 1 << 20)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
