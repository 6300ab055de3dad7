"""JSON Lines: every record with all its fields, one a line. The JSON Lines store reads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from framefleet.engine.captioner import CaptionRecord
from framefleet.store.export import Exported


def write_jsonl(records: Iterable[CaptionRecord], place: Path) -> Exported:
    """See EXPORTERS."""
    encode, num_records = msgspec.json.Encoder().encode, 0
    with place.open("wb") as out:
        for record in records:
            out.write(encode(record) + b"\n")
            num_records += 1
    return Exported(num_records=num_records, num_samples=num_records)
