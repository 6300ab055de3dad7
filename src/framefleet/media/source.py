"""VideoSource: where a clip's bytes are. Holds no handle, so it hashes and pickles."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal
from urllib.parse import unquote_to_bytes

from framefleet.errors import ConfigError, SourceTooLarge, SourceUnavailable
from framefleet.units import GIB, MIB, format_bytes

SourceLike = "str | os.PathLike[str] | bytes | BinaryIO | VideoSource"
_KINDS = "a path, a URL, bytes, a binary file object"
_BLOCK_BYTES = 64 * MIB


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
    def of(
        cls, thing: str | os.PathLike[str] | bytes | BinaryIO | VideoSource, max_bytes: int = 16 * GIB
    ) -> VideoSource:
        """Whatever a user hands over: a path (taken literally, nothing is unquoted), bytes, a file object or a URL;
        `file:///a%20b.mp4` is the file `/a b.mp4`.

        A file object is read to its end. Raises ConfigError for things of no such kind, text files among them;
        SourceUnavailable when a file object fails, SourceTooLarge when it gives more than `max_bytes`.
        """
        if isinstance(thing, VideoSource):
            return thing
        if isinstance(thing, bytes | bytearray | memoryview):
            content = bytes(thing)
            return cls("bytes", f"bytes:{hashlib.blake2b(content, digest_size=8).hexdigest()}", content)
        if hasattr(thing, "read"):
            return cls.of(_read_whole(thing, max_bytes))
        path = os.fspath(thing) if isinstance(thing, str | os.PathLike) else None
        if not isinstance(path, str):
            raise ConfigError("not a clip", given=type(thing).__name__, allowed=_KINDS, remedy="one clip at a time")
        if path.startswith("data:") and "," in path and not os.path.exists(path):  # noqa: PTH110 (as below)
            raise ConfigError("not a clip", given=f"{path[:40]}...", allowed=_KINDS, remedy="the bytes in the data URL")
        if "://" in path and not os.path.exists(path):  # noqa: PTH110 (Path raises for names that cannot be)
            local = path_of_uri(path)
            return cls("url", path) if local == path else cls("file", local)
        return cls("file", path)

    def shown_at(self, path: str) -> VideoSource:
        """This clip of bytes, to be read from a file that shows them; it keeps its name."""
        return VideoSource("file", path, title=self.name)

    @property
    def name(self) -> str:
        """For people: the path, URL or bytes' name."""
        return self.title or self.location


def path_of_uri(place: str) -> str:
    """The path of a `file:///` URI; anything else as it is."""
    return os.fsdecode(unquote_to_bytes(place.removeprefix("file://"))) if place.startswith("file:///") else place


def _read_whole(file: Any, max_bytes: int) -> bytes:
    """Every byte of a file object from where it stands; one that gives less than it was asked for is asked again."""
    blocks, num_bytes = [], 0
    while block := _read_block(file):
        blocks.append(block)
        num_bytes += len(block)
        if num_bytes > max_bytes:
            raise SourceTooLarge(
                "the clip is too large",
                given=f"{_name_of(file)} ({format_bytes(num_bytes)} and more)",
                allowed=f"max_source_bytes {format_bytes(max_bytes)}",
                remedy="a larger max_source_bytes, or cut the clip",
            )
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _read_block(file: Any) -> bytes:
    try:
        block = file.read(_BLOCK_BYTES)
    except Exception as error:  # file objects of others raise whatever they like
        given = f"{_name_of(file)} ({type(error).__name__}: {error})"
        raise SourceUnavailable("reading the file object failed", given=given, remedy="open it again") from error
    if not isinstance(block, bytes):
        given = f"{_name_of(file)}, which gives {type(block).__name__}"
        raise ConfigError("not a binary file object", given=given, allowed=_KINDS, remedy='open(path, "rb")')
    return block


def _name_of(file: Any) -> str:
    return repr(getattr(file, "name", type(file).__name__))
