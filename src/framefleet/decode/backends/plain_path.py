"""A source as a path, for libraries that open paths themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framefleet.errors import DecodeError, SourceNotFound
from framefleet.media.source import VideoSource


@contextmanager
def plain_path(source: VideoSource) -> Iterator[str]:
    """An absolute path of the clip's bytes, so that no name can be taken for an option or a protocol.

    Bytes are shown as an anonymous file in memory, a name that is no UTF-8 (at which OpenCV crashes) as an open file.
    Raises SourceNotFound, and DecodeError for URLs.
    """
    if source.content is not None:
        with _in_memory(source.content) as path:
            yield path
        return
    if source.kind != "file":
        raise DecodeError("this backend opens files and bytes only", given=repr(source.name))
    path = os.path.abspath(source.location)  # noqa: PTH100 (resolve() would follow links)
    if not Path(path).is_file():
        raise SourceNotFound("cannot read the clip", given=f"{source.name!r} (no such file)")
    if _is_utf8(path):
        yield path
        return
    with Path(path).open("rb") as file:
        yield f"/proc/self/fd/{file.fileno()}"


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("clip")
    try:
        view = memoryview(content)
        while len(view):
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
