"""Opening a source with FFmpeg: the only place that does, so that what it may touch is decided once.

A path is opened through the `file:` protocol and nothing else is reachable: demuxers that would read other files or the
network (playlists, concatenation scripts, session descriptions, numbered images) are not on the list of formats.
"""

from __future__ import annotations

import errno
import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import av

from framefleet.errors import (
    DecodeTimeout,
    FramefleetError,
    SourceCorrupt,
    SourceError,
    SourceNotFound,
    SourceTooLarge,
    SourceUnsupported,
)
from framefleet.media.limits import ScanLimits
from framefleet.media.sniff import explain_bytes
from framefleet.media.source import VideoSource
from framefleet.units import format_bytes

av.logging.set_level(None)

_FORMATS = (
    "3gp,aac,aiff,amr,apng,asf,av1,avi,avs2,avs3,caf,cavsvideo,dhav,dirac,dv,dvd,flac,flv,gif,gxf,h261,h263,h264,hevc,iamf,"
    "ivf,kux,lxf,m4v,matroska,mjpeg,mov,mp3,mpeg,mpegts,mpegvideo,mpjpeg,mxf,nsv,nut,obu,ogg,pva,rm,swf,ty,vc1,vc1test,"
    "vob,vvc,w64,wav,webm,wtv,xmv,yuv4mpegpipe"
)
_BYTES_FOR_SNIFFING = 4096
_IO_BUFFER_BYTES = 1 << 18


@contextmanager
def open_container(source: VideoSource, limits: ScanLimits, **demuxer: str) -> Iterator[Any]:
    """An open `av.InputContainer` with nothing made up by the demuxer: no invented pts. `demuxer` are its own options.

    Raises SourceNotFound, SourceTooLarge, SourceCorrupt, SourceUnsupported or DecodeTimeout.
    """
    file, head = _file_of(source, limits)
    remaining_s = max(0.05, limits.deadline.remaining_s)
    try:
        container = av.open(
            file,
            mode="r",
            options={"max_pixels": str(limits.max_source_pixels)},
            container_options={"format_whitelist": _FORMATS, "protocol_whitelist": "file", **demuxer},
            timeout=(remaining_s, remaining_s),
            buffer_size=_IO_BUFFER_BYTES,
            metadata_errors="replace",
        )
    except av.FFmpegError as error:
        _close(file)
        raise _open_error(error, source, head, limits) from error
    except FramefleetError:  # raised by our own file under FFmpeg's reads
        _close(file)
        raise
    with container, _closed_after(file):
        container.flags &= ~av.container.Flags.gen_pts.value
        yield container


@contextmanager
def _closed_after(file: Any) -> Iterator[None]:
    try:
        yield
    finally:
        _close(file)


def _close(file: Any) -> None:
    if not isinstance(file, str):
        file.close()


@contextmanager
def open_file(source: VideoSource, limits: ScanLimits) -> Iterator[BinaryIO]:
    """The source's bytes as a binary file, from the start. Raises as `open_container`."""
    file, _ = _file_of(source, limits)
    with Path(source.location).open("rb") if isinstance(file, str) else file as stream:
        yield stream


def _file_of(source: VideoSource, limits: ScanLimits) -> tuple[Any, bytes]:
    if source.content is not None:
        _check_size(len(source.content), source, limits)
        return io.BytesIO(source.content), source.content[:_BYTES_FOR_SNIFFING]
    if source.kind == "url":
        from framefleet.media.fetch import open_url

        file = open_url(source.location, limits)
        head = file.read(_BYTES_FOR_SNIFFING)
        file.seek(0)
        _check_size(len(head), source, limits)
        return file, head
    path = Path(source.location)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise SourceUnsupported(
                "the clip is no regular file", given=repr(source.name), remedy="copy it into a file"
            )
        _check_size(status.st_size, source, limits)
        with path.open("rb") as stream:
            head = stream.read(_BYTES_FOR_SNIFFING)
    except (OSError, ValueError) as error:
        raise SourceNotFound(
            "cannot read the clip",
            given=f"{source.name!r} ({getattr(error, 'strerror', None) or error})",
            remedy="name the clips in it" if isinstance(error, IsADirectoryError) else "check the path",
        ) from error
    return f"file:{source.location}", head


def _check_size(num_bytes: int, source: VideoSource, limits: ScanLimits) -> None:
    if num_bytes == 0:
        raise SourceCorrupt("the clip is empty", given=f"{source.name!r} (0 bytes)", remedy="fetch it again")
    if num_bytes > limits.max_source_bytes:
        raise SourceTooLarge(
            "the clip is too large",
            given=f"{source.name!r} ({format_bytes(num_bytes)})",
            allowed=f"max_source_bytes {format_bytes(limits.max_source_bytes)}",
            remedy="a larger max_source_bytes, or cut the clip",
        )


def _open_error(
    error: av.FFmpegError, source: VideoSource, head: bytes, limits: ScanLimits
) -> SourceError | DecodeTimeout:
    if error.errno in (errno.ETIMEDOUT, av.error.tag_to_code(b"EXIT")) or isinstance(error, av.ExitError):
        return DecodeTimeout(
            "opening the clip passed the deadline", given=repr(source.name), allowed=f"{limits.deadline.timeout_s:g} s"
        )
    reason, is_unsupported = explain_bytes(head)
    kind = SourceUnsupported if is_unsupported else SourceCorrupt
    remedy = "" if is_unsupported else "fetch it again, or leave it out"
    return kind("the clip cannot be opened", given=f"{source.name!r} ({reason or error.strerror})", remedy=remedy)
