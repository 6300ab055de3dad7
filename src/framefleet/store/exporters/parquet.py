"""One Parquet file, zstd, the store's own columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from framefleet.engine.captioner import CaptionRecord
from framefleet.store.export import Exported
from framefleet.store.schema import arrow_schema, to_table

_GROUP_ROWS = 16_384


def write_parquet(records: Iterable[CaptionRecord], place: Path) -> Exported:
    """See EXPORTERS."""
    num_records = 0
    with pq.ParquetWriter(place, arrow_schema(), compression="zstd") as writer:
        for rows in tables(records, _GROUP_ROWS):
            writer.write_table(rows)
            num_records += len(rows)
    return Exported(num_records=num_records, num_samples=num_records)


def tables(records: Iterable[CaptionRecord], num_rows: int) -> Iterator[pa.Table]:
    """The records as tables of `num_rows`, the last one shorter."""
    stream = iter(records)
    while group := list(islice(stream, num_rows)):
        yield to_table(group)
