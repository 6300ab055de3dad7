"""What is particular to the Parquet store."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from caption_records import digest, failed, record

from framefleet.errors import StoreUnreadable
from framefleet.store.parquet import ParquetTable, open_parquet


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "captions.parquet"


def test_any_parquet_reader_opens_the_folder(path):
    with open_parquet(str(path), "w", fold_rows=5) as store:
        for n in range(12):
            store.append(failed(n) if n == 3 else record(n))
        store.append(record(3))
    rows = pq.read_table(path)
    assert len(list(path.glob("part-*.parquet"))) == 3
    assert sorted(rows.column("digest").to_pylist()) == sorted(digest(n) for n in range(12))
    assert set(rows.column("status").to_pylist()) == {"ok"}


def test_a_crash_before_replaced_rows_are_out(path, monkeypatch):
    with open_parquet(str(path), "w", fold_rows=3) as store:
        store.append(failed(0), record(1), failed(2))
    expected = [record(1), record(0), record(2), record(3)]
    store = open_parquet(str(path), "w", fold_rows=3)
    with monkeypatch.context() as patched:
        patched.setattr(ParquetTable, "drop_stale", lambda self: 1 / 0)
        store.append(record(0), record(2), record(3))
        with pytest.raises(ZeroDivisionError):
            store.close()
    assert len(pq.read_table(path)) == 6
    with open_parquet(str(path), "r") as reader:
        assert list(reader.records()) == expected
        assert reader.statuses().counts()["failed"] == 0
    with open_parquet(str(path), "w") as writer:
        assert list(writer.records()) == expected
    assert len(pq.read_table(path)) == 4


def test_a_part_of_which_nothing_is_left_goes(path):
    with open_parquet(str(path), "w") as store:
        store.append(failed(0))
    with open_parquet(str(path), "w") as store:
        store.append(record(0))
    assert [p.name for p in path.glob("*.parquet")] == ["part-00000002.parquet"]


def test_what_is_no_part_of_ours_is_refused(path):
    with open_parquet(str(path), "w") as store:
        store.append(record(0))
    (path / "part-00000009.parquet").write_bytes(b"PAR1 not really PAR1")
    for mode in ("r", "w"):
        with pytest.raises(StoreUnreadable, match="part-00000009"):
            list(open_parquet(str(path), mode).records())
