"""Bringing a Lance store of an earlier schema version up to the present one: its missing columns are added as nulls,
which read back as the fields' defaults. Only the manifest changes, no row is rewritten."""

from __future__ import annotations

import logging
from typing import Any

from framefleet.errors import StoreUnreadable
from framefleet.store.schema import VERSION, VERSION_KEY, arrow_schema, version_of

_log = logging.getLogger(__name__)


def check_version(schema: Any, place: str) -> int:
    """The schema version of a store that can be read. Raises StoreUnreadable: none of ours, or from the future."""
    version = version_of(schema)
    if version is None:
        raise StoreUnreadable("not a store of framefleet", given=repr(place), remedy="another path")
    if version > VERSION:
        raise StoreUnreadable(
            "the store was written by a newer framefleet",
            given=f"{place!r}, schema version {version}",
            allowed=f"up to {VERSION}",
            remedy="pip install --upgrade framefleet",
        )
    return version


def migrate(dataset: Any, place: str) -> bool:
    """Add what is missing; True if anything was done. Repeatable after a crash between its two commits: the columns
    come first, the version number last."""
    version = check_version(dataset.schema, place)
    if version == VERSION:
        return False
    missing = [field for field in arrow_schema() if field.name not in dataset.schema.names]
    if missing:
        import pyarrow as pa

        dataset.add_columns(pa.schema(missing))
    dataset.update_schema_metadata({VERSION_KEY: str(VERSION)})
    _log.info("%s: schema version %d -> %d", place, version, VERSION)
    return True
