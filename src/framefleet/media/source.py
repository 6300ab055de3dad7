"""VideoSource: where a clip's bytes are. Holds no handle, so it hashes and pickles."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

SourceLike = "str | os.PathLike[str] | bytes | BinaryIO | VideoSource"


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A file, bytes or a URL (http, https, s3, gs, az ...)."""

    kind: Literal["file", "bytes", "url"]
    location: str
    """Path as given, URL, or a name for bytes."""
    content: bytes | None = None
    title: str = ""
    """What people know it by, where that is not the location (a copy of a URL, a file that shows bytes)."""

    @classmethod
    def of(cls, thing: str | os.PathLike[str] | bytes | BinaryIO | VideoSource) -> VideoSource:
        """Whatever a user hands over: a path (taken literally, nothing is unquoted), bytes, a file object or a URL.

        A file object is read to its end.
        """
        if isinstance(thing, VideoSource):
            return thing
        if isinstance(thing, bytes):
            return cls("bytes", f"bytes:{hashlib.blake2b(thing, digest_size=8).hexdigest()}", thing)
        if hasattr(thing, "read"):
            return cls.of(thing.read())
        path = os.fspath(thing)
        if "://" in path and not Path(path).exists():
            return cls("url", path)
        return cls("file", path)

    def shown_at(self, path: str) -> VideoSource:
        """This clip of bytes, to be read from a file that shows them; it keeps its name."""
        return VideoSource("file", path, title=self.name)

    @property
    def name(self) -> str:
        """For people: the path, URL or bytes' name."""
        return self.title or self.location
