"""From the video URL of a request to frames at the model's size, within what the server was told it may open."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import urllib.parse
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.engine.jpeg_frames import jpeg_frames
from framefleet.errors import CaptionRejected, ConfigError, SourceNotFound, SourceTooLarge, SourceUnavailable
from framefleet.media.source import VideoSource
from framefleet.units import MIB, format_bytes

MEDIA_FIELDS = {
    "num_frames": "num_frames",
    "fps": "fps",
    "min_frames": "min_frames",
    "max_frames": "max_frames",
    "max_duration": "max_duration_s",
}
"""Fields of `media_io_kwargs.video` -> of DecodeOptions. Where a field is not known the request is refused."""


class MayOpen(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may have the server open. Nothing but what they send, unless told."""

    local_folder: str = ""
    """`file://` URLs must lie in it, after symbolic links."""
    domains: tuple[str, ...] = ()
    """Hosts of http(s) URLs. A redirect is refused."""
    max_fetch_bytes: int = 512 * MIB
    """Of one http(s) URL."""
    fetch_timeout_s: float = 60.0
    """For the whole of one http(s) URL."""


class Decodes(Protocol):
    """A DecodePool, or a test's own."""

    async def decode(self, source: VideoSource, options: DecodeOptions | None = None) -> DecodedFrames:
        """The frames."""
        ...


def decode_pool(workers: int | None = None) -> DecodePool:
    """A pool of killable decode processes, to be entered (see decode.pool)."""
    return DecodePool(workers=workers)


def frame_policy_of(engine: object) -> DecodeOptions:
    """How the engine wants its frames, where it says so (`frame_policy`); else the plain defaults."""
    policy = getattr(engine, "frame_policy", None)
    return policy if isinstance(policy, DecodeOptions) else DecodeOptions()


class VideoReader:
    """Reads the video of a request under the model's frame policy."""

    def __init__(self, policy: DecodeOptions, pool: Decodes, may_open: MayOpen | None = None) -> None:
        self.policy = policy
        self._pool = pool
        self._may_open = may_open or MayOpen()

    async def read(self, url: str, media_io: dict[str, Any]) -> DecodedFrames:
        """The frames of a `data:`, `file:` or http(s) URL; `media_io` is `media_io_kwargs.video`.

        Raises CaptionRejected for what may not or cannot be opened, SourceError and DecodeError for the clip.
        """
        if url.startswith("data:"):
            return await self._read_data(url, media_io)
        options = with_media_io(self.policy, media_io)
        if url.startswith("file:"):
            return await self._pool.decode(VideoSource.of(self._allowed_path(url)), options)
        if url.startswith(("http://", "https://")):
            return await self._pool.decode(VideoSource.of(await self._fetch(url)), options)
        raise CaptionRejected("not a video URL", given=repr(url[:80]), allowed="data:, file:, http: or https:")

    async def _read_data(self, url: str, media_io: dict[str, Any]) -> DecodedFrames:
        head, _, payload = url.partition(",")
        kind, *parameters = head.removeprefix("data:").split(";")
        if "base64" not in parameters:
            raise CaptionRejected("a data URL must be base64", given=head[:80], allowed="data:video/mp4;base64,...")
        if kind.lower() == "video/jpeg":
            return await asyncio.to_thread(jpeg_frames, payload, media_io, self.policy)
        options = with_media_io(self.policy, media_io)
        try:
            content = await asyncio.to_thread(base64.b64decode, payload, validate=True)
        except (binascii.Error, ValueError) as error:
            raise CaptionRejected("the data URL is not base64", given=str(error)) from error
        return await self._pool.decode(VideoSource.of(content), options)

    def _allowed_path(self, url: str) -> Path:
        parsed = urllib.parse.urlsplit(url)
        path = Path(os.fsdecode(urllib.parse.unquote_to_bytes(url.removeprefix("file://"))))
        folder = self._may_open.local_folder
        try:
            is_allowed = folder and path.resolve(strict=True).is_relative_to(Path(folder).resolve(strict=True))
        except OSError as error:
            raise SourceNotFound("cannot read the clip", given=f"{url!r} ({error.strerror})") from error
        if not is_allowed or parsed.netloc:
            raise CaptionRejected(
                "the server may not open this file",
                given=url[:200],
                allowed=folder or "no local files",
                remedy="start it with --allowed-local-media-path",
            )
        return path

    async def _fetch(self, url: str) -> bytes:
        host = urllib.parse.urlsplit(url).hostname
        if host not in self._may_open.domains:
            raise CaptionRejected(
                "the server may not open this address",
                given=str(host),
                allowed=", ".join(self._may_open.domains) or "no addresses",
                remedy="start it with --allowed-media-domains",
            )
        try:
            async with asyncio.timeout(self._may_open.fetch_timeout_s):
                return await _fetch(url, self._may_open.max_fetch_bytes)
        except (httpx.HTTPError, TimeoutError) as error:
            raise SourceUnavailable("the clip was not delivered", given=f"{url} ({type(error).__name__})") from error


def with_media_io(policy: DecodeOptions, media_io: dict[str, Any]) -> DecodeOptions:
    """The policy as a request changes it: `num_frames` samples uniformly instead of by the model's rule.

    Raises CaptionRejected for a field that is not in MEDIA_FIELDS or a wrong value: nothing is ignored.
    """
    if unknown := sorted(set(media_io) - set(MEDIA_FIELDS)):
        raise CaptionRejected(
            "unknown fields of media_io_kwargs.video", given=", ".join(unknown), allowed=", ".join(MEDIA_FIELDS)
        )
    changes: dict[str, Any] = {MEDIA_FIELDS[name]: value for name, value in media_io.items()}
    if changes.get("num_frames") is not None:
        changes = {"rule": None, "fps": None, "min_frames": None, "max_frames": None} | changes
    try:
        return msgspec.convert(msgspec.structs.asdict(policy) | changes, DecodeOptions)
    except (msgspec.ValidationError, ConfigError) as error:
        raise CaptionRejected("wrong media_io_kwargs.video", given=str(error)) from error


async def _fetch(url: str, max_bytes: int) -> bytes:
    content = bytearray()
    async with httpx.AsyncClient(follow_redirects=False) as client, client.stream("GET", url) as response:
        if not response.is_success:
            raise SourceUnavailable("the clip was not delivered", given=f"{url} (HTTP {response.status_code})")
        async for part in response.aiter_bytes():
            content += part
            if len(content) > max_bytes:
                raise SourceTooLarge("the clip is too large", given=url, allowed=format_bytes(max_bytes))
    return bytes(content)
