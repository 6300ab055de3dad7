"""Records to rows and back; the table has every field of the record."""

import msgspec
import pyarrow as pa
import pytest
from caption_records import ODD_TEXTS, failed, record
from hypothesis import given
from hypothesis import strategies as st

from framefleet.engine.captioner import CaptionRecord
from framefleet.store.schema import (
    COLUMNS,
    VERSION,
    VERSION_KEY,
    arrow_schema,
    storable,
    to_records,
    to_table,
    version_of,
)


def test_the_table_has_every_field_of_the_record_in_its_order():
    assert [c.name for c in COLUMNS] == list(CaptionRecord.__struct_fields__)


def test_versions_of_the_schema():
    assert arrow_schema().metadata == {VERSION_KEY.encode(): str(VERSION).encode()}
    assert set(arrow_schema().names) - set(arrow_schema(1).names) == {"num_missing", "attempts"}
    assert version_of(arrow_schema(1)) == 1
    assert version_of(pa.schema([])) is None
    assert version_of(pa.schema([], metadata={VERSION_KEY: "latest"})) is None


def test_rows_and_back():
    kept = [
        storable(r) for r in (record(1), failed(2), *(record(10 + n, text=t) for n, t in enumerate(ODD_TEXTS.values())))
    ]
    assert list(to_records(to_table(kept))) == kept
    assert list(to_records(to_table([]))) == []


def test_missing_null_and_foreign_columns():
    rows = to_table([record(1)]).drop_columns(["attempts", "seconds"]).append_column("mine", pa.array([1]))
    rows = rows.set_column(rows.schema.names.index("text"), "text", pa.nulls(1, pa.string()))
    assert list(to_records(rows)) == [record(1, attempts=1, seconds={}, text="")]


TEXTS = st.text(st.characters(), max_size=20)  # lone surrogates included
TIMES = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.fixed_dictionaries({
        "text": TEXTS, "message": TEXTS, "seconds": st.dictionaries(TEXTS, st.floats(), max_size=3), "start_s": TIMES,
        "versions": st.dictionaries(TEXTS, TEXTS, max_size=3), "frame_pts_s": st.lists(TIMES, max_size=4),
        "created_at": st.one_of(st.just(""), st.datetimes().map(lambda t: t.isoformat())),
    })
)  # fmt: skip
def test_what_is_storable_reads_back_equal(fields):
    one = storable(record(1, **fields))
    assert storable(one) == one
    assert list(to_records(to_table([one]))) == [one]
    assert msgspec.json.decode(msgspec.json.encode(one), type=CaptionRecord) == one
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=CaptionRecord) == one


@pytest.mark.parametrize(
    ("given_time", "kept"),
    [
        ("2026-09-30T12:34:56.789+00:00", "2026-09-30T12:34:56.789+00:00"),
        ("2026-09-30T14:34:56.789+02:00", "2026-09-30T12:34:56.789+00:00"),
        ("2026-09-30T12:34:56.000001Z", "2026-09-30T12:34:56.000001+00:00"),
        ("2026-09-30T12:34:56", "2026-09-30T12:34:56.000+00:00"),
        ("", ""),
    ],
)
def test_times_are_utc(given_time, kept):
    assert storable(record(1, created_at=given_time)).created_at == kept


def test_times_that_are_no_numbers_are_left_out():
    assert storable(record(1, seconds={"decode": float("nan"), "total": 1})).seconds == {"total": 1.0}
