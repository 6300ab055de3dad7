"""Taking captions elsewhere: one call, one registry of formats, one way of writing.

Records go out in the order of clip, start and digest, whatever order they came in, so that the same records make the
same bytes. The output appears whole or not at all, and replaces nothing unless told to.
"""

from __future__ import annotations

import heapq
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import ConfigError
from framefleet.registry import Registry
from framefleet.store.disk import store_errors, sync_directory, sync_file, sync_newer
from framefleet.store.lance import LanceStore, sorted_records
from framefleet.store.sink import Sink
from framefleet.store.where import Where

EXPORTERS = Registry(
    "export format",
    "framefleet.exporters",
    {
        "parquet": "framefleet.store.exporters.parquet:write_parquet",
        "jsonl": "framefleet.store.exporters.jsonl:write_jsonl",
        "webdataset": "framefleet.store.exporters.webdataset:write_webdataset",
        "hf": "framefleet.store.exporters.hf:write_hf",
    },
)
"""Name -> `write(records, place) -> Exported`: makes the file or folder `place`, which is not there yet."""

REPORT_NAME = "export.json"
"""In every folder that we made: what is in it. A folder without it is never replaced."""

OnProgress = Callable[[int], None]
"""Called with the number of records read so far."""
_TELL_EVERY = 256


class LeftOut(msgspec.Struct, frozen=True):
    """A record or clip that is not in the output, and why."""

    clip: str
    reason: str


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What an exporter wrote."""

    num_records: int
    num_samples: int
    """Rows, lines, or samples of a shard (one a clip)."""
    left_out: list[LeftOut] = []


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an export did."""

    to: str
    output: str
    num_records: int
    num_samples: int
    num_files: int
    num_bytes: int
    left_out: list[LeftOut]


def export(
    store: Sink,
    to: str,
    output: str | os.PathLike[str],
    *,
    where: Where | None = None,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> ExportReport:
    """Write the store's records (those that meet `where`) as `to` at `output`, a file or a folder.

    Raises ConfigError (no such format; something is there and `force` is not set, or it is a folder that no export
    made), StoreFull. What was at `output` then stands as it was.
    """
    write, place = EXPORTERS.load(to), Path(output)
    check_may_write(place, force=force)
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with store_errors(place):
            exported: Exported = write(_told(ordered(store, where), on_progress), unfinished)
            report = _report(to, place, unfinished, exported)
            if unfinished.is_dir():
                (unfinished / REPORT_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
                sync_newer(unfinished, 0, passing_over="")
            else:
                sync_file(unfinished)
            _put(unfinished, place)
    except BaseException:
        remove(unfinished)
        raise
    return report


def check_may_write(place: Path, *, force: bool) -> None:
    """Raises ConfigError where `place` would destroy something it may not."""
    if not place.exists() and not place.is_symlink():
        return
    if not force:
        raise ConfigError("the output is already there", given=repr(str(place)), remedy="another --output, or --force")
    if place.is_dir() and any(place.iterdir()) and not (place / REPORT_NAME).is_file():
        raise ConfigError(
            "the output is a folder that no export made, it is not replaced",
            given=repr(str(place)),
            remedy="another --output, or remove it yourself",
        )


def ordered(store: Sink, where: Where | None) -> Iterator[CaptionRecord]:
    """The records by clip, start and digest. A Lance store sorts on disk; others are sorted in memory."""
    if not isinstance(store, LanceStore):
        return iter(sorted(store.records(where), key=place_in_order))
    tail = store.tail()
    fresh = sorted((one for one in tail.values() if where is None or where(one)), key=place_in_order)
    folded = (one for one in sorted_records(store.dataset, where) if one.digest not in tail)
    return heapq.merge(folded, fresh, key=place_in_order)


def place_in_order(record: CaptionRecord) -> tuple[str, float, str]:
    """The key of the order."""
    return record.clip, record.start_s, record.digest


def remove(place: Path) -> None:
    """A file or folder, if it is there."""
    with suppress(FileNotFoundError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()


def _told(records: Iterator[CaptionRecord], on_progress: OnProgress | None) -> Iterator[CaptionRecord]:
    number = 0
    for number, record in enumerate(records, start=1):
        yield record
        if on_progress and number % _TELL_EVERY == 0:
            on_progress(number)
    if on_progress:
        on_progress(number)


def _report(to: str, place: Path, unfinished: Path, exported: Exported) -> ExportReport:
    files = [path for path in unfinished.rglob("*") if path.is_file()] if unfinished.is_dir() else [unfinished]
    return ExportReport(
        to=to,
        output=str(place),
        num_records=exported.num_records,
        num_samples=exported.num_samples,
        num_files=len(files),
        num_bytes=sum(path.stat().st_size for path in files),
        left_out=exported.left_out,
    )


def _put(unfinished: Path, place: Path) -> None:
    """In one step where nothing or a file stands; a folder is first moved aside, and moved back if that fails."""
    if place.is_dir() and not place.is_symlink():
        aside = unfinished.with_suffix(".old")
        place.rename(aside)
        try:
            unfinished.rename(place)
        except BaseException:
            aside.rename(place)
            raise
        remove(aside)
    else:
        unfinished.replace(place)
    sync_directory(place.parent)
