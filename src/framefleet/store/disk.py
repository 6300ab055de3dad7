"""What stores ask of the disk: that things are truly on it, that files appear whole, a clear word when it is full."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from framefleet.errors import FramefleetError, StoreError, StoreFull
from framefleet.units import format_bytes

_CLOCK_SLACK_NS = 1_000_000_000
"""File times come from a coarser clock than `time_ns`."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_ROOM_TEXT = re.compile(r"no space left|storagefull|disk quota|file too large|os error (27|28|122)\b", re.IGNORECASE)


def sync_directory(directory: Path) -> None:
    """Make the names in it lasting."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make its bytes lasting, whoever wrote them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; on leaving it is synced and takes the place of `path` in one step.

    When the block raises, nothing is left and `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


@contextmanager
def store_errors(place: Path) -> Iterator[None]:
    """Turn what the disk and Lance raise (OSError, ValueError or RuntimeError, as it happens) into StoreFull or
    StoreError. Errors of ours pass."""
    try:
        yield
    except FramefleetError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) in _NO_ROOM or _NO_ROOM_TEXT.search(str(error)):
            raise StoreFull(
                "no room to write",
                given=f"{str(place)!r}, {_free(place)} free",
                allowed="what was acknowledged is safe",
                remedy="make room (or raise the quota or file-size limit) and run the same command again",
            ) from error
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise StoreError("the store cannot be used", given=f"{str(place)!r} ({first_line})") from error


def _free(place: Path) -> str:
    while not place.exists() and place != place.parent:
        place = place.parent
    return format_bytes(shutil.disk_usage(place).free)


def sync_newer(root: Path, since_ns: int, *, passing_over: str) -> None:
    """Make lasting what was written below `root` since then (by a library that does not sync), but in the folder named
    `passing_over`."""
    since_ns -= _CLOCK_SLACK_NS
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != passing_over]
        paths = [Path(folder, name) for name in names]
        newer = [path for path in paths if path.stat().st_mtime_ns >= since_ns]
        for path in newer:
            sync_file(path)
        if newer or Path(folder).stat().st_mtime_ns >= since_ns:
            sync_directory(Path(folder))
