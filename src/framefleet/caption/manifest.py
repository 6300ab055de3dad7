"""Manifests: Parquet, JSONL and CSV files with a column of paths, read row by row."""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any

from framefleet.config import unknown
from framefleet.errors import ConfigError, SourceNotFound

MANIFEST_SUFFIXES = frozenset({".parquet", ".jsonl", ".ndjson", ".csv"})
COLUMN_NAMES = (
    "path", "clip", "video", "file", "url", "uri", "video_path", "clip_path", "file_path", "filepath", "filename",
    "file_name", "video_url", "location", "source",
)  # fmt: skip
"""Tried in this order, whatever their case, when no column is named."""


def rows_of_manifest(place: str, column: str | None) -> Iterator[str]:
    """The paths in a manifest at a local path or URL; rows without one are passed over.

    Raises ConfigError when the column is not there or a row cannot be read, SourceNotFound when the file is not.
    """
    suffix = os.path.splitext(place.split("?")[0])[1].lower()  # noqa: PTH122  # may be a URL
    reader = {".parquet": _parquet, ".csv": _csv}.get(suffix, _jsonl)
    with _open(place) as stream:
        for value in reader(stream, place, column):
            if value is not None and str(value):
                yield str(value)


def choose_column(columns: Sequence[str], column: str | None, place: str) -> str:
    """The column of paths: the one named, else a usual name, else the only one there is. Raises ConfigError."""
    if column is not None:
        if column not in columns:
            raise unknown("column", column, list(columns), origin=place)
        return column
    by_lower = {name.lower(): name for name in columns}
    usual = next((by_lower[name] for name in COLUMN_NAMES if name in by_lower), None)
    if usual is not None:
        return usual
    if len(columns) == 1:
        return columns[0]
    raise ConfigError(
        "cannot tell which column holds the paths", given=place, allowed=", ".join(columns), remedy="--column NAME"
    )


def _open(place: str) -> IO[bytes]:
    import fsspec

    try:
        opened: IO[bytes] = fsspec.open(place, "rb").open() if "://" in place else open(place, "rb")  # noqa: PTH123, SIM115
    except OSError as error:
        raise SourceNotFound("cannot read the manifest", given=f"{place!r} ({error})") from error
    return opened


def _parquet(stream: IO[bytes], place: str, column: str | None) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream)
        name = choose_column(file.schema_arrow.names, column, place)
        for batch in file.iter_batches(columns=[name]):
            yield from batch.column(0).to_pylist()
    except pa.ArrowInvalid as error:
        raise ConfigError("the manifest is not Parquet", given=f"{place!r} ({error})") from error


def _csv(stream: IO[bytes], place: str, column: str | None) -> Iterator[Any]:
    rows = csv.DictReader(codecs.iterdecode(stream, "utf-8-sig"))
    try:
        name = choose_column(list(rows.fieldnames or ()), column, place)
        for row in rows:
            yield row[name]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError("the manifest is not CSV", given=f"{place!r}, line {rows.line_num} ({error})") from error


def _jsonl(stream: IO[bytes], place: str, column: str | None) -> Iterator[Any]:
    import msgspec

    name = column
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError("the manifest is not JSONL", given=f"{place!r}, line {number} ({error})") from error
        if isinstance(row, dict):
            name = choose_column(list(row), column, f"{place}, line {number}") if name is None else name
            if name not in row:
                raise unknown("column", name, list(row), origin=f"{place}, line {number}")
            row = row[name]
        if not isinstance(row, str | None):
            raise ConfigError("a path must be text", given=f"{row!r} in {place!r}, line {number}")
        yield row
