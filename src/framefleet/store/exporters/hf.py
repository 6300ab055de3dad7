"""A folder that `datasets.load_dataset(folder)` reads and that can be pushed to the Hugging Face hub as it is.

    README.md (card; its head names the files)      data/train-00000.parquet ...

`datasets` has no type for maps, so `seconds` and `versions` are JSON text here. (It also refuses a data set without any
row; pyarrow reads that one too.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from framefleet.engine.captioner import CaptionRecord
from framefleet.store.export import Exported
from framefleet.store.exporters.parquet import tables
from framefleet.store.schema import arrow_schema

_GROUP_ROWS = 1_024
"""The hub's viewer reads a group at a time."""
_FILE_GROUPS = 512
_MAPS = ("seconds", "versions")


def write_hf(records: Iterable[CaptionRecord], place: Path) -> Exported:
    """See EXPORTERS."""
    (place / "data").mkdir(parents=True)
    counts: Counter[str] = Counter()
    groups = tables(_counted(records, counts), _GROUP_ROWS)
    number = 0
    while _write_file(groups, place / "data" / f"train-{number:05d}.parquet", is_first=number == 0):
        number += 1
    (place / "README.md").write_text(card(counts), encoding="utf-8")
    num_records = counts.total()
    return Exported(num_records=num_records, num_samples=num_records)


def card(counts: Counter[str]) -> str:
    """The card: how to read it and what is in it."""
    by_status = "\n".join(f"| {status} | {counts[status]} |" for status in ("ok", "truncated", "rejected", "failed"))
    columns = ", ".join(f"`{name}`" for name in arrow_schema().names)
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
tags:
- video
- captions
---

# Video captions

{counts.total()} records, one for each captioned window of a clip, exported by framefleet.

| status | records |
| --- | --- |
{by_status}

`clip` names the video file, `start_s` and `end_s` the window in it, `text` is the caption by `model` for `prompt`. A
`failed` record has no caption; `reason` says why. `seconds` and `versions` are JSON.

Columns: {columns}.
"""


def _write_file(groups: Iterator[pa.Table], path: Path, *, is_first: bool) -> bool:
    """The next file's worth of groups; False: there are no more. The first file is made even of nothing."""
    chosen = list(islice(groups, 1))
    if not chosen and not is_first:
        return False
    with pq.ParquetWriter(path, _without_maps(arrow_schema()), compression="zstd") as writer:
        for rows in chain(chosen, islice(groups, _FILE_GROUPS - 1)):
            writer.write_table(_as_json(rows))
    return bool(chosen)


def _counted(records: Iterable[CaptionRecord], counts: Counter[str]) -> Iterable[CaptionRecord]:
    for record in records:
        counts[record.status] += 1
        yield record


def _as_json(rows: pa.Table) -> pa.Table:
    for name in _MAPS:
        texts = [msgspec.json.encode(dict(pairs or ())).decode() for pairs in rows.column(name).to_pylist()]
        rows = rows.set_column(rows.schema.names.index(name), pa.field(name, pa.string()), pa.array(texts, pa.string()))
    return rows.cast(_without_maps(arrow_schema()))


def _without_maps(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, pa.string()) if f.name in _MAPS else f for f in schema])
