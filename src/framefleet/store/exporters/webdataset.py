"""WebDataset shards: the clips themselves with their captions.

    clips-000000.tar:  000000000.mp4  000000000.json   000000001.mp4  000000001.json ...

One sample a clip, however many windows of it are captioned, so that no clip is packed twice:

    {"clip": ..., "content_digest": ..., "captions": [every field of every record of it, by start]}

A clip that cannot be read any more, or whose bytes are not those that were captioned, is left out and named. Records
without a caption are left out too.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import urlsplit

import msgspec

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import FramefleetError, SourceCorrupt, SourceNotFound
from framefleet.media.digest import content_digest
from framefleet.media.fetch import local_copy
from framefleet.media.limits import Deadline, ScanLimits
from framefleet.media.source import VideoSource
from framefleet.store.export import Exported, LeftOut
from framefleet.units import GIB

SHARD_BYTES = GIB
_FETCH_S = 600.0


def write_webdataset(records: Iterable[CaptionRecord], place: Path, *, shard_bytes: int = SHARD_BYTES) -> Exported:
    """See EXPORTERS. A shard is closed once it has `shard_bytes`, so it is larger by at most one clip."""
    place.mkdir()
    left_out: list[LeftOut] = []
    num_records = num_samples = 0
    with Shards(place, shard_bytes) as shards:
        for _, group in groupby(_captioned(records, left_out), key=lambda one: (one.clip, one.content_digest)):
            captions = list(group)
            with ExitStack() as opened:
                try:
                    content, num_bytes = opened.enter_context(open_clip(captions[0]))
                except FramefleetError as error:
                    left_out.append(LeftOut(captions[0].clip, str(error)))
                    continue
                shards.add(num_samples, suffix_of(captions[0].clip), content, num_bytes, captions)
            num_records, num_samples = num_records + len(captions), num_samples + 1
    return Exported(num_records=num_records, num_samples=num_samples, left_out=left_out)


class Shards:
    """Tar files of equal bytes for equal samples: no times, owners or random names in them."""

    def __init__(self, place: Path, shard_bytes: int) -> None:
        self._place = place
        self._shard_bytes = shard_bytes
        self._num_shards = 0
        self._num_bytes = 0
        self._tar: tarfile.TarFile | None = None

    def add(self, number: int, suffix: str, content: BinaryIO, num_bytes: int, captions: list[CaptionRecord]) -> None:
        """One clip with its captions."""
        sample = {"clip": captions[0].clip, "content_digest": captions[0].content_digest, "captions": captions}
        json = msgspec.json.encode(sample)
        tar = self._tar or self._begin()
        for name, size, stream in (
            (f"{number:09d}.{suffix}", num_bytes, content),
            (f"{number:09d}.json", len(json), io.BytesIO(json)),
        ):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, stream)
            self._num_bytes += size
        if self._num_bytes >= self._shard_bytes:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _begin(self) -> tarfile.TarFile:
        path = self._place / f"clips-{self._num_shards:06d}.tar"
        self._tar = tarfile.open(path, "w")  # noqa: SIM115  # closed by _end
        self._num_shards += 1
        self._num_bytes = 0
        return self._tar

    def _end(self) -> None:
        if self._tar is not None:
            self._tar.close()
        self._tar = None


@contextmanager
def open_clip(record: CaptionRecord) -> Iterator[tuple[BinaryIO, int]]:
    """The clip's bytes and their number, when they are those that were captioned. Raises SourceError."""
    with local_copy(VideoSource.of(record.clip), ScanLimits(deadline=Deadline(_FETCH_S))) as local:
        if local.kind == "file" and not Path(local.location).is_file():
            raise SourceNotFound("the clip is not there", given=repr(record.clip))
        if record.content_digest and content_digest(local) != record.content_digest:
            raise SourceCorrupt(
                "the clip has changed since it was captioned", given=repr(record.clip), remedy="caption it again"
            )
        if local.content is not None:
            yield io.BytesIO(local.content), len(local.content)
            return
        with Path(local.location).open("rb") as stream:
            yield stream, os.fstat(stream.fileno()).st_size


def suffix_of(clip: str) -> str:
    """What the clip's name ends in, in small letters; `bin` where that says nothing. A key must hold no other dot."""
    path = urlsplit(clip).path if "://" in clip else clip
    suffix = PurePosixPath(path).suffix.removeprefix(".").lower()
    return suffix if re.fullmatch("[a-z0-9]{1,8}", suffix) else "bin"


def _captioned(records: Iterable[CaptionRecord], left_out: list[LeftOut]) -> Iterator[CaptionRecord]:
    for record in records:
        if record.status == "failed" or not (record.text or record.json):
            left_out.append(LeftOut(record.clip, f"no caption: {record.reason or record.status}"))
        else:
            yield record
