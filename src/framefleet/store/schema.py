"""The one table: its columns, and records to rows and back.

Text that Unicode cannot carry is mended here, once, for every sink (`storable`), so that a record reads back equal to
what was kept whichever sink keeps it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import ConfigError

VERSION = 2
"""Of the columns below. A store of an earlier version is brought up to this one when it is opened for writing."""
VERSION_KEY = "framefleet.schema_version"

_SURROGATES = re.compile("[\ud800-\udfff]")
_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `since` is the schema version that brought it."""

    name: str
    type: pa.DataType
    since: int = 1


COLUMNS = (
    Column("digest", pa.string()),
    Column("clip", pa.string()),
    Column("content_digest", pa.string()),
    Column("start_s", pa.float64()),
    Column("end_s", pa.float64()),
    Column("prompt", pa.string()),
    Column("text", pa.string()),
    Column("json", pa.string()),
    Column("status", pa.string()),
    Column("reason", pa.string()),
    Column("message", pa.string()),
    Column("model", pa.string()),
    Column("engine", pa.string()),
    Column("backend", pa.string()),
    Column("num_frames", pa.int32()),
    Column("num_missing", pa.int32(), since=2),
    Column("frame_pts_s", pa.list_(pa.float64())),
    Column("width", pa.int32()),
    Column("height", pa.int32()),
    Column("prompt_tokens", pa.int64()),
    Column("completion_tokens", pa.int64()),
    Column("attempts", pa.int32(), since=2),
    Column("seconds", pa.map_(pa.string(), pa.float64())),
    Column("versions", pa.map_(pa.string(), pa.string())),
    Column("created_at", pa.timestamp("us", "UTC")),
)


def arrow_schema(version: int = VERSION) -> pa.Schema:
    """The columns of `version`; every one may be null but the digest."""
    fields = [pa.field(c.name, c.type, nullable=c.name != "digest") for c in COLUMNS if c.since <= version]
    return pa.schema(fields, metadata={VERSION_KEY: str(version)})


def version_of(schema: pa.Schema) -> int | None:
    """The schema version a table says it has; None: it is none of ours."""
    found = (schema.metadata or {}).get(VERSION_KEY.encode())
    return int(found) if found and found.isdigit() else None


def storable(record: CaptionRecord) -> CaptionRecord:
    """The record as it will read back: lone surrogates in text become U+FFFD, times that are no numbers are left out
    of `seconds`, `created_at` is UTC.

    Raises ConfigError for a digest that is not 32 hex digits, a clip's name that is not Unicode, a window or frame
    time that is no finite number, and a `created_at` that is no ISO 8601 time.
    """
    if not _DIGEST.fullmatch(record.digest):
        raise ConfigError("not a digest", given=repr(record.digest), allowed="32 hex digits, as CaptionRequest.digest")
    if _SURROGATES.search(record.clip):
        raise ConfigError("the clip's name is not text", given=ascii(record.clip), remedy="its file:// URI")
    if not all(map(math.isfinite, (record.start_s, record.end_s, *record.frame_pts_s))):
        raise ConfigError("a time is no finite number", given=f"{record.clip!r} {record.start_s}-{record.end_s}")
    return msgspec.structs.replace(
        record,
        **{name: _text(value) for name, value in _texts(record)},
        seconds={_text(k): float(v) for k, v in record.seconds.items() if math.isfinite(v)},
        versions={_text(k): _text(v) for k, v in record.versions.items()},
        created_at=_canonical_time(record.created_at),
    )


def to_table(records: Sequence[CaptionRecord]) -> pa.Table:
    """Storable records as rows of the present schema, in their order."""
    schema = arrow_schema()
    return pa.table([pa.array(_column(field.name, records), field.type) for field in schema], schema=schema)


def to_records(rows: pa.Table | pa.RecordBatch) -> Iterator[CaptionRecord]:
    """Rows as records. Columns that are missing (an earlier schema version) or null take the field's default; columns
    that are not ours are passed over."""
    names = [c.name for c in COLUMNS if c.name in rows.schema.names]
    columns = [rows.column(name).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        row = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        for name in ("seconds", "versions"):
            row[name] = dict(row.get(name, ()))
        if "created_at" in row:
            row["created_at"] = _iso(row["created_at"])
        yield CaptionRecord(**row)


def _texts(record: CaptionRecord) -> Iterable[tuple[str, str]]:
    for field, value in msgspec.structs.asdict(record).items():
        if isinstance(value, str) and field not in ("digest", "clip", "created_at"):
            yield field, value


def _column(name: str, records: Sequence[CaptionRecord]) -> list[Any]:
    values = [getattr(record, name) for record in records]
    if name in ("seconds", "versions"):
        return [list(value.items()) for value in values]
    if name == "created_at":
        return [datetime.fromisoformat(value) if value else None for value in values]
    return values


def _text(value: str) -> str:
    return _SURROGATES.sub("\ufffd", value)


def _canonical_time(text: str) -> str:
    if not text:
        return ""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError("created_at is not a time", given=repr(text), allowed="ISO 8601") from error
    return _iso(time if time.tzinfo else time.replace(tzinfo=UTC))


def _iso(time: datetime) -> str:
    """UTC with milliseconds, or microseconds where there are some."""
    return time.astimezone(UTC).isoformat(timespec="microseconds" if time.microsecond % 1000 else "milliseconds")
