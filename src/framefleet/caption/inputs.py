"""From what the user names to clips, one at a time, in a stable order, each place once.

- a file or a URL is a clip, whatever it is called; a `.parquet`, `.jsonl`, `.ndjson` or `.csv` file is a manifest
- a folder (local, or `s3://`, `gs://`, ... through fsspec) is walked in order of names; files with a video or
  animation suffix are taken, dot files (`._clip.mp4` and the like) and other files are counted and passed over
- a pattern with `*`, `?` or `[` is matched where no file has that very name (`**` goes down folders)
- relative places in a manifest are relative to the manifest

A named input that does not exist, or a pattern that matches nothing, is an error before any work. A row of a manifest
that does not exist becomes a clip, and so a failed record. Local clips go by their absolute path (symbolic links are
kept), so it does not matter from where, or how spelled, a later run names them.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, urlsplit

from framefleet.caption.manifest import MANIFEST_SUFFIXES, rows_of_manifest
from framefleet.errors import ConfigError, SourceNotFound, SourceUnavailable
from framefleet.media.source import VideoSource, path_of_uri
from framefleet.store.statuses import Statuses

VIDEO_SUFFIXES = frozenset({
    ".mp4", ".m4v", ".mov", ".qt", ".mkv", ".webm", ".avi", ".wmv", ".asf", ".flv", ".f4v", ".mpg", ".mpeg", ".mpe",
    ".m1v", ".m2v", ".mpv", ".vob", ".ts", ".m2ts", ".mts", ".mxf", ".ogv", ".ogm", ".3gp", ".3g2", ".rm", ".rmvb",
    ".dv", ".y4m", ".h264", ".264", ".avc", ".h265", ".265", ".hevc", ".ivf", ".obu", ".nut", ".wtv", ".amv",
    ".divx", ".gif", ".webp", ".apng",
})  # fmt: skip
"""What is taken from folders. A file named outright is taken whatever its suffix."""


@dataclass(slots=True)
class PassedOver:
    """What was seen in folders and not taken."""

    hidden: int = 0
    """Dot files and dot folders."""
    not_video: int = 0
    duplicates: int = 0
    """The same place named twice."""
    unreadable: list[str] = field(default_factory=list)
    """Folders that could not be listed, with the reason (at most the first 20)."""


class Inputs:
    """The clips that a list of inputs names; iterate as often as wanted. Nothing is held but 17 bytes a clip.

    `column` names the column of paths in manifests (guessed when None). After an iteration `passed_over` tells what it
    left out. Raises ConfigError and SourceNotFound while iterating.
    """

    def __init__(self, inputs: Sequence[str], *, column: str | None = None) -> None:
        if not inputs:
            raise ConfigError("no input", allowed="files, folders, patterns, URLs, manifests")
        self.inputs = tuple(map(path_of_uri, inputs))
        self.column = column
        self.passed_over = PassedOver()

    def __iter__(self) -> Iterator[VideoSource]:
        self.passed_over = seen_over = PassedOver()
        seen = Statuses()  # the same compact map as the store's; which status stands in it says nothing here
        for source in self._all():
            key = blake2b(os.fsencode(source.location), digest_size=16).hexdigest()
            if key in seen:
                seen_over.duplicates += 1
                continue
            seen.put(key, "ok")
            yield source

    def check(self) -> None:
        """Raises SourceNotFound naming every local input that does not exist, before any work."""
        missing = [one for one in self.inputs if "://" not in one and not _is_there(one) and not _has_magic(one)]
        if missing:
            raise SourceNotFound("no such file or folder", given=", ".join(map(repr, missing[:10])))

    def _all(self) -> Iterator[VideoSource]:
        self.check()
        for one in self.inputs:
            if _is_there(one):
                yield from self._local(Path(one))
            elif "://" in one:
                yield from self._remote(one)
            else:
                yield from self._local_pattern(one)

    def _local(self, path: Path) -> Iterator[VideoSource]:
        if path.is_dir():
            yield from (local_source(found) for found in self._walk(path, frozenset()))
        elif path.suffix.lower() in MANIFEST_SUFFIXES:
            base = Path(os.path.abspath(path)).parent  # noqa: PTH100  # resolve() would follow symbolic links
            for row in rows_of_manifest(str(path), self.column):
                place = path_of_uri(row)
                yield VideoSource.of(place) if "://" in place else local_source(base / place)
        else:
            yield local_source(path)

    def _local_pattern(self, pattern: str) -> Iterator[VideoSource]:
        matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  # Path.glob takes no absolute pattern
        if not matches:
            raise SourceNotFound("the pattern matches nothing", given=repr(pattern))
        for match in map(Path, matches):
            if not match.is_dir():
                yield from self._local(match)

    def _walk(self, folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
        try:
            stat = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            if len(self.passed_over.unreadable) < 20:
                self.passed_over.unreadable.append(f"{folder}: {error.strerror}")
            return
        if (stat.st_dev, stat.st_ino) in above:
            return  # a symbolic link leads back up
        for entry in entries:
            if entry.name.startswith("."):
                self.passed_over.hidden += 1
            elif _is_dir(entry):
                yield from self._walk(Path(entry.path), above | {(stat.st_dev, stat.st_ino)})
            elif self._is_video(entry.name):
                yield Path(entry.path)

    def _is_video(self, name: str) -> bool:
        taken = os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES  # noqa: PTH122  # a URL's name is no Path
        self.passed_over.not_video += not taken
        return taken

    def _remote(self, url: str) -> Iterator[VideoSource]:
        suffix = os.path.splitext(urlsplit(url).path)[1].lower()  # noqa: PTH122
        if suffix in MANIFEST_SUFFIXES:
            base = url.rsplit("/", 1)[0]
            for row in rows_of_manifest(url, self.column):
                yield VideoSource.of(row if "://" in row else f"{base}/{row}")
        elif urlsplit(url).scheme in ("http", "https"):
            yield VideoSource.of(url)
        else:
            yield from self._remote_listing(url)

    def _remote_listing(self, url: str) -> Iterator[VideoSource]:
        filesystem, path = _filesystem(url)
        try:
            if filesystem.isfile(path):
                found: Iterable[str] = [path]
            elif _has_magic(path):
                found = sorted(filesystem.glob(path))
            else:
                found = (name for name in self._walk_remote(filesystem, path) if self._is_video(name))
            yield from (VideoSource.of(filesystem.unstrip_protocol(name)) for name in found)
        except FileNotFoundError as error:
            raise SourceNotFound("no such place", given=repr(url)) from error
        except OSError as error:
            raise SourceUnavailable("cannot list", given=f"{url!r} ({error})") from error

    def _walk_remote(self, filesystem: Any, path: str) -> Iterator[str]:
        for entry in sorted(filesystem.ls(path, detail=True), key=lambda entry: entry["name"]):
            name = entry["name"].rstrip("/")
            if name.rsplit("/", 1)[-1].startswith("."):
                self.passed_over.hidden += 1
            elif entry["type"] == "directory":
                yield from self._walk_remote(filesystem, name)
            else:
                yield name


def local_source(path: str | os.PathLike[str]) -> VideoSource:
    """The clip at a local path, by its absolute path."""
    return VideoSource("file", os.path.abspath(path))  # noqa: PTH100  # resolve() would follow symbolic links


def source_of_location(location: str) -> VideoSource:
    """The clip that has this `location`; locations of files are absolute paths, so none looks like a URL."""
    return VideoSource("url" if "://" in location and not location.startswith("/") else "file", location)


def clip_name(source: VideoSource) -> str:
    """How records name the clip: the path or URL as it is. A path that is not UTF-8 becomes its `file://` URI, which
    can be stored as text, collides with no path and can be turned back."""
    try:
        source.location.encode()
    except UnicodeEncodeError:
        return "file://" + quote_from_bytes(os.fsencode(source.location))
    return source.location


def _is_there(place: str) -> bool:
    return os.path.exists(place)  # noqa: PTH110  # unlike Path.exists it is False for a name too long for any file


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _has_magic(text: str) -> bool:
    return glob.has_magic(text)


def _filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            "cannot reach this kind of place", given=repr(url), allowed=str(error), remedy="install its fsspec library"
        ) from error
    return filesystem, path
