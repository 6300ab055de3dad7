"""The journal: records that were acknowledged and are not yet in the table. One frame for each `append`.

    frame = b"FFj1" | payload bytes (u32 LE) | crc32 of the payload (u32 LE) | payload (MessagePack list of records)

A frame is written with one call and synced before the append returns. What a crash leaves of an unfinished frame (the
torn tail) ends the journal; a bad frame with a good one after it is no torn tail but damage, and is refused.

Segments (`00000001.log` ...) are numbered: once a segment's records are in the table it is unlinked, and the next
append begins a new file, so a reader never sees one file with two lives.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import StoreUnreadable
from framefleet.store.disk import store_errors, sync_directory

_log = logging.getLogger(__name__)

MAGIC = b"FFj1"
_HEADER = struct.Struct("<4sII")
_SEGMENT = re.compile(r"\d{8}\.log")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[CaptionRecord]).decode


def encode_frame(records: Sequence[CaptionRecord]) -> bytes:
    """The frame of one append."""
    payload = _encode(records)
    return _HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def decode_frames(content: bytes, *, name: str = "journal") -> tuple[list[list[CaptionRecord]], int]:
    """The groups in a segment's bytes, and how many bytes they take; the rest is a torn tail.

    Raises StoreUnreadable when a good frame stands behind a bad one.
    """
    groups, at = [], 0
    while (payload := _payload_at(content, at)) is not None:
        groups.append(_decode(payload))
        at += _HEADER.size + len(payload)
    if (found := _next_frame(content, at + 1)) is not None:
        raise StoreUnreadable(
            "the journal is damaged",
            given=f"{name}: a bad frame at byte {at}, good ones again from {found}",
            remedy="a backup; or remove the bad bytes, which loses the records in them",
        )
    return groups, at


class Journal:
    """The segments in one directory. The writer appends; anybody may read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.num_bytes = 0
        """Of the frames in the active segment."""
        self._descriptor: int | None = None

    def read(self) -> Iterator[CaptionRecord]:
        """Every record that was acknowledged, in order. Raises StoreUnreadable."""
        for path in self.segments():
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # the writer has just brought it into the table
            groups, good_bytes = decode_frames(content, name=str(path))
            if good_bytes < len(content):
                _log.info("%s: %d bytes of an unfinished append passed over", path, len(content) - good_bytes)
            yield from chain.from_iterable(groups)

    def append(self, records: Sequence[CaptionRecord]) -> None:
        """Write and sync one frame. Raises StoreFull, and then the segment is as it was."""
        frame = encode_frame(records)
        with store_errors(self.directory):
            descriptor = self._descriptor = self._descriptor or self._begin_segment()
            try:
                _write_at(descriptor, self.num_bytes, frame)
                os.fdatasync(descriptor)
                self.num_bytes += len(frame)
            except BaseException:  # also Ctrl-C: nothing of a frame that was not acknowledged may precede the next one
                os.ftruncate(descriptor, self.num_bytes)
                raise

    def clear(self) -> None:
        """Every record is in the table: unlink all segments."""
        self.close()
        segments = self.segments()
        for path in segments:
            path.unlink()
        if segments:
            sync_directory(self.directory)

    def close(self) -> None:
        """Let go of the active segment; what is in it stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self.num_bytes = None, 0

    def segments(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if _SEGMENT.fullmatch(path.name))

    def _begin_segment(self) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        last = max((int(path.stem) for path in self.segments()), default=0)
        path = self.directory / f"{last + 1:08d}.log"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        sync_directory(self.directory)
        return descriptor


def _payload_at(content: bytes, at: int) -> bytes | None:
    """The payload of the frame that begins at byte `at`; None if no whole good one does."""
    if len(content) - at < _HEADER.size:
        return None
    magic, num_bytes, crc = _HEADER.unpack_from(content, at)
    payload = content[at + _HEADER.size : at + _HEADER.size + num_bytes]
    return payload if magic == MAGIC and len(payload) == num_bytes and zlib.crc32(payload) == crc else None


def _next_frame(content: bytes, start: int) -> int | None:
    at = content.find(MAGIC, start)
    while at >= 0:
        if _payload_at(content, at) is not None:
            return at
        at = content.find(MAGIC, at + 1)
    return None


def _write_at(descriptor: int, offset: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        num_written = os.pwrite(descriptor, view, offset)
        view, offset = view[num_written:], offset + num_written
