"""The sink contract, over every sink that comes with the package."""

import os
import resource
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from caption_records import ODD_TEXTS, digest, failed, record

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import ConfigError, StoreError, StoreFull, StoreLocked, StoreUnreadable
from framefleet.store.memory import MemorySink
from framefleet.store.schema import storable
from framefleet.store.sink import SINKS, Sink, open_store
from framefleet.store.statuses import Statuses
from framefleet.store.where import Where

ON_DISK = [name for name in SINKS.names() if name != "memory"]
FOLD_ROWS = 7
"""Small, so that a test crosses several folds."""


def opener(kind: str, path: Path) -> Callable[[str], Sink]:
    """Opens one and the same store again and again."""
    if kind == "memory":
        sink = MemorySink()
        return lambda mode: sink
    options = {} if kind == "jsonl" else {"fold_rows": FOLD_ROWS}
    return lambda mode: SINKS.load(kind)(str(path), mode, **options)


@pytest.fixture(params=SINKS.names())
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Sink]:
    return opener(request.param, tmp_path / f"captions.{request.param}")


@pytest.fixture(params=ON_DISK)
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Sink]:
    return opener(request.param, tmp_path / f"captions.{request.param}")


def test_an_empty_store_is_empty(opened):
    with opened("w") as store:
        assert len(store.statuses()) == 0
        assert list(store.records()) == []


def test_every_field_comes_back_in_order_of_arrival(opened):
    kept = [record(n) for n in (5, 3, 9, 1, 2, 8, 7, 6, 4, 0)]
    with opened("w") as store:
        assert [store.append(one) for one in kept] == [1] * len(kept)
        assert list(store.records()) == kept
    assert list(opened("r").records()) == kept
    assert dict(opened("r").statuses()) == {one.digest: "ok" for one in kept}


def test_defaults_come_back_as_defaults(opened):
    full = record(1)
    bare = CaptionRecord(
        digest=full.digest, clip=full.clip, content_digest=full.content_digest, start_s=0, end_s=0, prompt=full.prompt
    )
    with opened("w") as store:
        store.append(bare)
    assert list(opened("r").records()) == [bare]


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_odd_text_comes_back(opened, name):
    odd = record(
        1, text=ODD_TEXTS[name], prompt=ODD_TEXTS[name], message=ODD_TEXTS[name], versions={ODD_TEXTS[name][:50]: "1"}
    )
    with opened("w") as store:
        store.append(odd, record(2))
        assert list(store.records()) == [storable(odd), record(2)]
    assert list(opened("r").records()) == [storable(odd), record(2)]
    if name != "lone surrogates":
        assert storable(odd) == odd


def test_a_digest_is_kept_once(opened):
    with opened("w") as store:
        assert store.append(record(1), record(1, text="twice in one call"), record(2)) == 2
        assert store.append(record(1, text="again"), failed(2)) == 0
    with opened("r") as store:
        assert list(store.records()) == [record(1), record(2)]


@pytest.mark.parametrize("gap", [0, 30], ids=["unfolded", "folded"])
def test_a_failed_record_stands_until_another_comes(opened, gap):
    between = [record(n) for n in range(100, 100 + gap)]
    again = failed(1, attempts=3)
    with opened("w") as store:
        store.append(failed(1), failed(2))
        store.append(*between)
        assert store.append(again) == 1
        assert store.statuses()[digest(1)] == "failed"
        assert store.append(record(1)) == 1
        assert store.append(failed(1)) == 0
        assert store.statuses()[digest(1)] == "ok"
        assert list(store.records()) == [failed(2), *between, record(1)]
    with opened("r") as store:
        assert list(store.records()) == [failed(2), *between, record(1)]
        assert store.statuses().counts() == {"ok": gap + 1, "truncated": 0, "rejected": 0, "failed": 1}
        assert store.statuses().having("failed") == {digest(2)}


def test_a_failed_record_is_replaced_in_a_later_run(on_disk):
    with on_disk("w") as store:
        store.append(*[failed(n) for n in range(20)])
    with on_disk("w") as store:
        store.append(*[record(n) for n in range(0, 20, 2)])
    with on_disk("r") as store:
        assert list(store.records()) == [failed(n) for n in range(1, 20, 2)] + [record(n) for n in range(0, 20, 2)]


def test_statuses_are_a_snapshot(opened):
    with opened("w") as store:
        store.append(failed(1))
        before = store.statuses()
        store.append(record(1), record(2))
        assert dict(before) == {digest(1): "failed"}


def test_a_filter_is_obeyed(opened):
    kept = [record(n, status="ok" if n % 2 else "truncated", model=f"m{n % 3}") for n in range(20)]
    wheres = [
        Where(clip="*/day 1/*"), Where(clip="/clips/day 1/clip_001.mp4"), Where(model="m1"),
        Where(status=("truncated", "failed")),
        Where(overlaps_s=(2.0, 5.0)), Where(created_from=datetime(2026, 10, 1, tzinfo=UTC)), Where(clip="*'; --"),
        Where(created_from=datetime(2026, 9, 30, tzinfo=UTC), created_before=datetime(2026, 10, 1), model="m2"),  # noqa: DTZ001
    ]  # fmt: skip
    with opened("w") as store:
        store.append(*kept)
        for where in wheres:
            assert list(store.records(where)) == [one for one in kept if where(one)]


def test_appends_from_many_threads_are_all_kept(opened):
    with opened("w") as store:
        threads = [
            threading.Thread(target=lambda first: [store.append(record(first + n)) for n in range(20)], args=(100 * k,))
            for k in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(opened("r").records())) == len(opened("r").statuses()) == 100


@pytest.mark.parametrize(
    "bad",
    [
        {"digest": "d1"},
        {"clip": "\udcff.mp4"},
        {"end_s": float("nan")},
        {"frame_pts_s": [float("inf")]},
        {"created_at": "today"},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_what_cannot_be_kept_is_refused_whole(opened, bad):
    with opened("w") as store:
        with pytest.raises(ConfigError):
            store.append(record(1), record(2, **bad))
        assert list(store.records()) == []


def test_a_closed_store_refuses(opened):
    store = opened("w")
    store.append(record(1))
    store.close()
    store.close()
    with pytest.raises(ConfigError, match="not open for writing"):
        store.append(record(2))


def test_a_reader_refuses_to_write(on_disk):
    on_disk("w").close()
    with on_disk("r") as store, pytest.raises(ConfigError, match="not open for writing"):
        store.append(record(1))


def test_a_second_writer_is_refused_and_told_who(on_disk):
    with on_disk("w") as first:
        with pytest.raises(StoreLocked, match=rf"held by process {os.getpid()} on "):
            on_disk("w")
        first.append(record(1))  # and nothing of the first is disturbed
    with on_disk("w") as second:
        assert list(second.records()) == [record(1)]


def test_readers_see_what_is_acknowledged_while_the_writer_goes_on(on_disk):
    seen = []
    with on_disk("w") as writer:
        for n in range(30):
            writer.append(failed(n) if n % 5 == 0 else record(n))
            if n % 5 == 1:
                writer.append(record(n - 1))
            with on_disk("r") as reader:
                found = list(reader.records())
                assert {one.digest: one.status for one in found} == dict(reader.statuses())
                assert found == list(writer.records())
                seen.append(len(found))
    assert seen == list(range(1, 31))


def test_a_reader_keeps_its_view(on_disk):
    with on_disk("w") as writer:
        writer.append(*[failed(n) for n in range(10)])
        with on_disk("r") as reader:
            records = reader.records()
            first = next(records)
            writer.append(*[record(n) for n in range(5)])
            for n in range(100, 140):
                writer.append(record(n))
            writer.close()
            assert [first, *records] == [failed(n) for n in range(10)]


def test_nothing_there_and_something_else_there(on_disk, tmp_path):
    with pytest.raises(StoreUnreadable, match="no store here"):
        on_disk("r")
    path = next(iter({c.cell_contents for c in on_disk.__closure__ if isinstance(c.cell_contents, Path)}))
    path.mkdir()
    (path / "holiday.mp4").write_bytes(b"x")
    with pytest.raises(StoreUnreadable, match="something else is there"):
        on_disk("w")
    assert [p.name for p in path.iterdir()] == ["holiday.mp4"]


def test_a_full_disk_is_told_and_loses_nothing(on_disk):
    """Files may not grow beyond 60 kB for a while, which is what a full disk or a quota looks like from here."""
    acknowledged, limits = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    store = on_disk("w")
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with pytest.raises(StoreFull, match="no room to write"):  # noqa: PT012  # at some append
            for n in range(1000):
                one = record(n, text=os.urandom(5000).hex())
                store.append(one)
                acknowledged.append(one)
        assert list(store.records()) == acknowledged
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.append(record(5000)) == 1  # there is room again: the same store goes on
    store.close()
    assert acknowledged
    assert list(on_disk("r").records()) == [*acknowledged, record(5000)]


def test_closing_on_a_full_disk_keeps_what_was_acknowledged(on_disk):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = [record(n, text=os.urandom(1000).hex()) for n in range(5)]
    store = on_disk("w")
    store.append(failed(0), *kept[1:])
    store.append(kept[0])
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        with pytest.raises(StoreFull):
            store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(on_disk("r").records()) == [*kept[1:], kept[0]]
    with on_disk("w") as again:
        assert list(again.records()) == [*kept[1:], kept[0]]


def test_a_store_that_does_not_open_keeps_no_lock(on_disk, monkeypatch):
    with on_disk("w") as store:
        store.append(record(1))
    with monkeypatch.context() as patched:
        patched.setattr(Statuses, "put", lambda *_: 1 / 0)
        patched.setattr(Statuses, "having", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            on_disk("w")
    with on_disk("w") as store:
        assert list(store.records()) == [record(1)]


def test_the_suffix_tells_the_kind(tmp_path):
    for kind in ON_DISK:
        with open_store(tmp_path / f"x.{kind}", "w") as store:
            store.append(record(1))
        with open_store(tmp_path / f"x.{kind}") as store:
            assert list(store.records()) == [record(1)]
    with open_store(tmp_path / "oddly named", "w", kind="lance") as store:
        assert store.append(record(1)) == 1
    with pytest.raises(ConfigError, match="cannot tell the kind of store"):
        open_store(tmp_path / "x.lanse", "w")
    with pytest.raises(ConfigError, match="local file system"):
        open_store("s3://bucket/x.lance", "r")
    with pytest.raises(ConfigError, match="no such mode"):
        open_store(tmp_path / "x.lance", "a")  # type: ignore[arg-type]


def test_errors_of_the_store_are_one_family():
    assert issubclass(StoreFull, StoreError)
    assert StoreLocked.retry == StoreFull.retry == "later"
