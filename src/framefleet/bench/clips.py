"""The clips that a load asks about: where they are, what they hold, and how a request names each of them.

A server that has seen a clip answers from a cache. So a request may carry a number of its own in two places: vLLM's
`uuid` beside the video (the key of its processor and encoder caches), and an empty box at the end of the clip's bytes
(for caches that look at content). Containers that have no such box go with the `uuid` alone.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from framefleet.caption.inputs import Inputs
from framefleet.engine.openai_wire import clip_url, local_path
from framefleet.errors import SourceNotFound

Send = Literal["url", "bytes"]
"""`url`: the clip's address (`file://` for local ones), for a server that may open it. `bytes`: the clip as base64."""
_PAD = 3
"""Bytes that base64 takes together: a clip padded to a multiple of it can be followed by more base64."""


class LoadClip(msgspec.Struct, frozen=True):
    """One clip, ready to be asked about."""

    name: str
    digest: str
    """Of its bytes; of the address where it is a URL."""
    num_bytes: int
    head: bytes
    """The video's URL as a request has it, up to where the fresh bytes go."""
    can_be_fresh: bool
    """Whether bytes may follow `head`."""

    def tail(self, number: int) -> bytes:
        """What follows `head` in the request of this number, so that its bytes are unlike all others'."""
        return base64.b64encode(_free_box(b"\0" * 6 + number.to_bytes(9, "big"))) if self.can_be_fresh else b""


def load_clips(inputs: Iterable[str], send: Send) -> list[LoadClip]:
    """The clips that files, folders, patterns and URLs name, in a stable order.

    Raises SourceNotFound for none at all, or one that cannot be read, ConfigError for a wrong pattern.
    """
    clips = [_clip(source.location, send) for source in Inputs(list(inputs))]
    if not clips:
        raise SourceNotFound("no clips", given=", ".join(inputs), remedy="a folder with videos, or their names")
    return clips


def _clip(location: str, send: Send) -> LoadClip:
    path = local_path(location)
    if path is None:
        digest = hashlib.blake2b(location.encode(), digest_size=16).hexdigest()
        return LoadClip(location, digest, 0, location.encode(), can_be_fresh=False)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceNotFound("cannot read the clip", given=f"{location!r} ({error.strerror})") from error
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    if send == "url":
        return LoadClip(path.name, digest, len(content), clip_url(location).encode(), can_be_fresh=False)
    return _inline(path, content, digest)


def _inline(path: Path, content: bytes, digest: str) -> LoadClip:
    kind = mimetypes.guess_type(path.name)[0] or ""
    scheme = f"data:{kind if kind.startswith('video/') else 'video/mp4'};base64,".encode()
    padded = content
    if is_iso := _is_iso(content):
        padded += _free_box(b"\0" * (-len(content) % _PAD))
    return LoadClip(path.name, digest, len(content), scheme + base64.b64encode(padded), can_be_fresh=is_iso)


def _is_iso(content: bytes) -> bool:
    """ISO base media (mp4, mov): its boxes may be followed by a `free` one, unless the last runs to the end."""
    at = 0
    if content[4:8] not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        return False
    while at + 8 <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(content[at + 8 : at + 16], "big")
        if size < 8:
            return False
        at += size
    return at == len(content)


def _free_box(payload: bytes) -> bytes:
    """A box that every reader passes over: 9 bytes and the payload."""
    return (9 + len(payload)).to_bytes(4, "big") + b"free\0" + payload
