"""What is particular to the Lance store: what crashes leave, what stays small, and that other readers can use it."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import lance as pylance
import pyarrow as pa
import pytest
from caption_records import digest, failed, record

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import StoreError, StoreFull, StoreUnreadable
from framefleet.search.searcher import search
from framefleet.store import lance as module
from framefleet.store.journal import Journal, encode_frame
from framefleet.store.lance import HOME, LanceStore, LanceTable, is_compaction_due, is_index_due, open_lance
from framefleet.store.schema import VERSION_KEY, arrow_schema


class Crash(BaseException):
    """What a kill looks like from inside."""


def crash(*args: object, **options: object) -> None:
    raise Crash


def abandon(store: LanceStore) -> None:
    """What the kernel does for a killed writer: the lock goes, nothing else happens."""
    store._held.close()
    store._journal.close()


def sizes(path: Path) -> dict[str, int]:
    dataset = pylance.dataset(str(path))
    return {"fragments": len(dataset.get_fragments()), "versions": len(dataset.versions())}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "captions.lance"


STEPS = {
    "before the table's commit": (pylance.LanceDataset, "commit"),
    "between commit and clearing the journal": (Journal, "clear"),
    "while tidying": (LanceTable, "index"),
    "while joining fragments": (module.Compaction, "commit"),
    "while syncing": (LanceTable, "_sync"),
}


def by_finality(records: Iterable[CaptionRecord]) -> tuple[list[CaptionRecord], list[CaptionRecord]]:
    """The final ones in their order, and the failed ones, which a crash may move to the end."""
    listed = list(records)
    return [r for r in listed if r.status == "ok"], sorted(
        (r for r in listed if r.status == "failed"), key=lambda r: r.clip
    )


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("folds", [0, 1, 5])
def test_a_crash_at_each_step_of_closing(path, monkeypatch, step, folds):
    monkeypatch.setattr(module, "_FEW_FRAGMENTS", 2)
    store = open_lance(str(path), "w", fold_rows=4)
    kept = [failed(n) if n % 3 == 0 else record(n) for n in range(4 * folds + 3)]
    for one in kept:
        store.append(one)
    store.append(record(0))
    expected = by_finality([*kept[1:], record(0)])
    owner, name = STEPS[step]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, crash)
        if name == "commit" and owner is module.Compaction and folds == 0:
            store.close()  # a single fragment: nothing to join
        else:
            with pytest.raises(Crash):
                store.close()
    abandon(store)
    with open_lance(str(path), "r") as reader:
        assert by_finality(reader.records()) == expected
    with open_lance(str(path), "w") as writer:
        assert by_finality(writer.records()) == expected
        assert writer.append(*[one for one in kept if one.status == "ok"], failed(0)) == 0
    with open_lance(str(path), "r") as reader:
        assert by_finality(reader.records()) == expected


@pytest.mark.parametrize("step", ["before the table's commit", "between commit and clearing the journal"])
def test_a_writer_whose_fold_broke_off_goes_on(path, monkeypatch, step):
    """Ctrl-C in the middle of a fold, and the same open store is used further."""
    with open_lance(str(path), "w", fold_rows=4) as store:
        store.append(failed(0), record(1), failed(2), record(3))
        owner, name = STEPS[step]
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, crash)
            with pytest.raises(Crash):
                store.append(record(4))
        assert list(store.records()) == [failed(0), record(1), failed(2), record(3)]
        store.append(record(0), record(5))
        store.append(failed(2, attempts=9))
    with open_lance(str(path), "r") as reader:
        assert list(reader.records()) == [record(1), record(3), record(0), record(5), failed(2, attempts=9)]


def test_the_newest_version_broken_by_a_power_cut_is_stepped_back_from(path, monkeypatch, caplog):
    store = open_lance(str(path), "w", fold_rows=4)
    store.append(*[record(n) for n in range(4)])
    store.append(record(4))  # folds the four
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "clear", crash)
        with pytest.raises(Crash):
            store.close()
    abandon(store)
    newest = min((path / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    with pytest.raises(StoreUnreadable, match="open it for writing once"):
        open_lance(str(path), "r")
    with open_lance(str(path), "w") as writer:
        assert list(writer.records()) == [record(n) for n in range(5)]
    assert "set aside" in caplog.text
    with open_lance(str(path), "r") as reader:
        assert list(reader.records()) == [record(n) for n in range(5)]


def test_a_store_broken_altogether_is_refused_as_it_is(path):
    open_lance(str(path), "w").close()
    manifests = list((path / "_versions").glob("*.manifest"))
    for manifest in manifests:
        manifest.write_bytes(b"x" * 100)
    for mode in ("r", "w"):
        with pytest.raises(StoreUnreadable, match="cannot be opened"):
            open_lance(str(path), mode)
    assert sorted((path / "_versions").glob("*.manifest")) == sorted(manifests)


def test_a_crash_while_the_store_is_made(path, monkeypatch):
    for owner, name in [(pylance, "write_dataset"), (module, "make_indices")]:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, crash)
            with pytest.raises(Crash):
                open_lance(str(path), "w")
        if name == "write_dataset":
            with pytest.raises(StoreUnreadable, match="no store here"):
                open_lance(str(path), "r")
    with open_lance(str(path), "w") as store:
        store.append(record(1))
        assert {index.name for index in store.dataset.describe_indices()} == {"digest_idx", "status_idx", "text_idx"}


def test_files_and_versions_stay_few(path, monkeypatch):
    monkeypatch.setattr(module, "_TIDY_EVERY", 16)
    with open_lance(str(path), "w", fold_rows=5) as store:
        for n in range(400):
            store.append(record(n))
            assert len(store.dataset.get_fragments()) < 30
    assert sizes(path) == {"fragments": 1, "versions": 1}
    assert not (path / HOME / "writer.lock").exists()
    assert not list((path / HOME / "journal").iterdir())
    with open_lance(str(path), "r") as reader:
        assert list(reader.records()) == [record(n) for n in range(400)]


def test_old_versions_stay_while_somebody_reads(path):
    with open_lance(str(path), "w") as store:
        store.append(*[record(n) for n in range(100)])
    reader = open_lance(str(path), "r")
    records = reader.records()
    next(records)
    for run in range(10):
        with open_lance(str(path), "w") as store:
            store.append(record(1000 + run))
    assert len(list(records)) == 99
    assert sizes(path)["versions"] > 10
    reader.close()
    with open_lance(str(path), "w") as store:
        store.append(record(2000))
    assert sizes(path)["versions"] == 1


def test_reading_changes_nothing(path):
    with open_lance(str(path), "w") as store:
        store.append(record(1))

    def stamps() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file() and p.name != "readers.lock"}

    before = stamps()
    with open_lance(str(path), "r") as store:
        list(store.records())
    assert stamps() == before


def test_opening_and_closing_without_a_word_makes_no_version(path):
    open_lance(str(path), "w").close()
    before = sizes(path)
    open_lance(str(path), "w").close()
    assert sizes(path) == before


def test_any_lance_reader_opens_it(path):
    with open_lance(str(path), "w") as store:
        store.append(record(1), failed(2))
    rows = pylance.dataset(str(path)).to_table()
    assert rows.schema.names == arrow_schema().names
    assert rows.schema.metadata[VERSION_KEY.encode()] == b"2"
    assert rows.column("seconds").to_pylist()[0] == [("decode", 0.125), ("generate", 1.5)]


def test_a_column_somebody_added_is_left_alone(path):
    with open_lance(str(path), "w") as store:
        store.append(record(1), failed(2))
    pylance.dataset(str(path)).add_columns(pa.schema([pa.field("my_score", pa.float32())]))
    with open_lance(str(path), "w") as store:
        assert store.append(record(2), record(3)) == 2
    with open_lance(str(path), "r") as store:
        assert list(store.records()) == [record(1), record(2), record(3)]
        assert "my_score" in store.dataset.schema.names


def test_another_lance_dataset_is_refused(path):
    pylance.write_dataset(pa.table({"text": ["not ours"]}), str(path))
    for mode in ("r", "w"):
        with pytest.raises(StoreUnreadable, match="not a store of framefleet"):
            open_lance(str(path), mode)


def test_damage_in_the_journal_is_told(path):
    store = open_lance(str(path), "w")
    store.append(record(1))
    store.append(record(2))
    abandon(store)
    [segment] = (path / HOME / "journal").iterdir()
    content = bytearray(segment.read_bytes())
    content[40] ^= 1
    segment.write_bytes(content)
    for mode in ("r", "w"):
        with pytest.raises(StoreUnreadable, match="journal is damaged"):
            open_lance(str(path), mode)
    assert segment.read_bytes() == content


def test_rows_are_found_by_digest_through_the_index(path):
    with open_lance(str(path), "w") as store:
        store.append(*[record(n) for n in range(1_001)])
    with open_lance(str(path), "r") as store:
        plan = store.dataset.scanner(filter=f"digest = '{digest(7)}'").explain_plan()
        assert "ScalarIndexQuery" in plan


def test_when_joining_and_indexing_pay():
    assert not is_compaction_due([10] * 7 + [module.FRAGMENT_ROWS] * 100)
    assert is_compaction_due([10] * 8)
    assert not is_index_due(0, 1_000, closing=True)
    assert is_index_due(0, 1_001, closing=True)
    assert not is_index_due(1_000_000, 50_000, closing=True)
    assert is_index_due(1_000_000, 50_001, closing=True)
    assert not is_index_due(0, 50_000, closing=False)
    assert is_index_due(0, 50_001, closing=False)
    assert not is_index_due(1_000_000, 500_000, closing=False)


def test_a_small_disk(tmp_path: Path, small_disk: Path):
    """A real file system without room, where one can be mounted."""
    path, acknowledged = small_disk / "captions.lance", []
    store = open_lance(str(path), "w", fold_rows=20)
    with pytest.raises(StoreFull, match="make room"):  # noqa: PT012  # at some append
        for n in range(2000):
            one = record(n, text=digest(n) * 300)
            store.append(one)
            acknowledged.append(one)
    assert len(acknowledged) > 100
    assert list(store.records()) == acknowledged
    try:
        store.close()
    except StoreFull:
        abandon(store)
    with open_lance(str(path), "r") as reader:
        assert list(reader.records()) == acknowledged
    moved = tmp_path / "captions.lance"
    shutil.copytree(path, moved)
    with open_lance(str(moved), "w") as writer:
        assert list(writer.records()) == acknowledged
        assert writer.append(record(5000)) == 1


def test_a_torn_tail_of_the_journal(path):
    store = open_lance(str(path), "w")
    store.append(record(1), failed(2))
    store.append(record(2), record(3))
    abandon(store)
    [segment] = (path / HOME / "journal").iterdir()
    whole, first = segment.read_bytes(), len(encode_frame([record(1), failed(2)]))
    for num_bytes in range(first, len(whole), 53):
        segment.write_bytes(whole[:num_bytes])
        with open_lance(str(path), "r") as reader:
            assert list(reader.records()) == [record(1), failed(2)]
    with open_lance(str(path), "w") as writer:
        assert list(writer.records()) == [record(1), failed(2)]
        writer.append(record(2))
    with open_lance(str(path), "r") as reader:
        assert list(reader.records()) == [record(1), record(2)]


def test_tidying_that_fails_stops_nobody(path, monkeypatch, caplog):
    def fail(self: LanceTable, *, closing: bool) -> None:
        raise OSError("LanceError(Index): no luck")

    with monkeypatch.context() as patched:
        patched.setattr(LanceTable, "index", fail)
        with open_lance(str(path), "w") as store:
            store.append(record(1))
    assert "put off: the store cannot be used" in caplog.text
    with open_lance(str(path), "r") as store:
        assert list(store.records()) == [record(1)]


def test_a_broken_index_is_told_by_search_and_mended_by_the_next_run(path, caplog):
    with open_lance(str(path), "w") as store:
        store.append(*[record(n) for n in range(1_001)])
    for part in (path / "_indices").rglob("*.lance"):
        part.write_bytes(b"x" * 100)
    with open_lance(str(path), "r") as store, pytest.raises(StoreError, match="the store cannot be used"):
        search(store, "truck")
    with open_lance(str(path), "w") as store:
        store.append(*[record(2_000 + n) for n in range(1_001)])
    assert "made anew" in caplog.text
    with open_lance(str(path), "r") as store:
        assert len(search(store, "truck", limit=5_000)) == 2_002


def test_a_lost_file_is_an_error_of_ours(path):
    with open_lance(str(path), "w") as store:
        store.append(record(1))
    for file in (path / "data").iterdir():
        file.unlink()
    with open_lance(str(path), "r") as store, pytest.raises(StoreError, match="the store cannot be used"):
        list(store.records())
    with pytest.raises(StoreError, match="the store cannot be used"):
        open_lance(str(path), "w")
    assert not (path / HOME / "writer.lock").exists()


def test_a_place_under_a_file_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="Not a directory"):
        open_lance(str(tmp_path / "file" / "captions.lance"), "w")
