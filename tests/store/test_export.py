"""Exports: the same records come back from each format, in one order, whole or not at all."""

import gc
import hashlib
import json
import os
import resource
import tarfile
import warnings
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import webdataset
from caption_records import ODD_TEXTS, digest, failed, record

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import ConfigError, StoreFull
from framefleet.store.export import EXPORTERS, REPORT_NAME, LeftOut, export, ordered
from framefleet.store.exporters.webdataset import suffix_of, write_webdataset
from framefleet.store.jsonl import open_jsonl
from framefleet.store.lance import open_lance
from framefleet.store.memory import MemorySink
from framefleet.store.schema import storable, to_records
from framefleet.store.where import Where

KEPT = [
    *(record(n) for n in (5, 3, 9, 1, 2)),
    failed(7),
    *(storable(record(20 + n, text=text)) for n, text in enumerate(ODD_TEXTS.values())),
    record(40, clip="/clips/day 0/clip_003.mp4", start_s=0.0),
]
SORTED = sorted(KEPT, key=lambda r: (r.clip, r.start_s, r.digest))


@pytest.fixture(params=["folded", "unfolded", "both", "jsonl", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "memory":
        sink = MemorySink()
    elif request.param == "jsonl":
        sink = open_jsonl(str(tmp_path / "captions.jsonl"), "w")
    else:
        rows = {"folded": 1, "unfolded": 1000, "both": 8}[request.param]
        sink = open_lance(str(tmp_path / "captions.lance"), "w", fold_rows=rows)
    with sink:
        for one in KEPT:
            sink.append(failed(5) if one is KEPT[0] else one)
        sink.append(KEPT[0])
        yield sink


def read_back(to: str, output: Path) -> list[CaptionRecord]:
    if to == "parquet":
        return list(to_records(pq.read_table(output)))
    if to == "jsonl":
        with open_jsonl(str(output), "r") as lines:
            return list(lines.records())
    rows = pq.read_table(output / "data").to_pylist()
    rows = [{**row, "seconds": json.loads(row["seconds"]), "versions": json.loads(row["versions"])} for row in rows]
    return [
        CaptionRecord(**{**row, "created_at": row["created_at"].isoformat(timespec="milliseconds")}) for row in rows
    ]


@pytest.mark.parametrize("to", ["parquet", "jsonl", "hf"])
def test_every_record_comes_back_in_the_one_order(store, tmp_path, to):
    output, seen = tmp_path / "out" / to, []
    report = export(store, to, output, on_progress=seen.append)
    assert read_back(to, output) == SORTED
    assert (report.num_records, report.num_samples, report.left_out) == (len(KEPT), len(KEPT), [])
    files = [p for p in [output, *output.rglob("*")] if p.is_file() and p.name != REPORT_NAME]
    assert (report.num_bytes, report.num_files) == (sum(p.stat().st_size for p in files), len(files))
    assert seen[-1] == len(KEPT)
    assert [p.name for p in output.parent.iterdir()] == [to]


@pytest.mark.parametrize("to", ["parquet", "jsonl", "hf"])
def test_a_filter(store, tmp_path, to):
    where = Where(clip="*/day 0/*", status=("ok",))
    export(store, to, tmp_path / to, where=where)
    assert read_back(to, tmp_path / to) == [one for one in SORTED if where(one)]


def test_the_order_of_arrival_does_not_show(tmp_path):
    outputs = []
    for number, kept in enumerate((KEPT, KEPT[::-1])):
        with open_lance(str(tmp_path / f"{number}.lance"), "w", fold_rows=4) as store:
            for one in kept:
                store.append(one)
            for to in ("parquet", "jsonl", "hf"):
                export(store, to, tmp_path / f"{number}.{to}")
        files = [
            p
            for to in ("parquet", "jsonl", "hf")
            for p in [tmp_path / f"{number}.{to}", *sorted((tmp_path / f"{number}.{to}").rglob("*"))]
        ]
        outputs.append([p.read_bytes() for p in files if p.is_file() and p.name != REPORT_NAME])
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 4


def test_the_hugging_face_library_loads_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    with MemorySink() as store:
        store.append(*KEPT)
        export(store, "hf", tmp_path / "some")
    loaded = datasets.load_dataset(str(tmp_path / "some"), cache_dir=str(tmp_path / "cache"))["train"]
    assert [row["digest"] for row in loaded] == [one.digest for one in SORTED]
    card = (tmp_path / "some" / "README.md").read_text()
    assert "| failed | 1 |" in card
    assert f"| ok | {len(KEPT) - 1} |" in card


@pytest.mark.parametrize("to", EXPORTERS.names())
def test_an_export_of_nothing(tmp_path, to):
    with MemorySink() as store:
        report = export(store, to, tmp_path / "out")
    assert (report.num_records, report.num_samples, report.left_out) == (0, 0, [])
    if to != "webdataset":
        assert read_back(to, tmp_path / "out") == []


def test_hf_files_are_cut(tmp_path, monkeypatch):
    from framefleet.store.exporters import hf

    monkeypatch.setattr(hf, "_GROUP_ROWS", 3)
    monkeypatch.setattr(hf, "_FILE_GROUPS", 2)
    with MemorySink() as store:
        store.append(*KEPT)
        export(store, "hf", tmp_path / "hf")
        store.append(record(100))
    assert len(list((tmp_path / "hf" / "data").iterdir())) == -(-len(KEPT) // 6)
    assert read_back("hf", tmp_path / "hf") == SORTED


# WebDataset: clips with their captions


def clip_record(folder: Path, number: int, **changes: object) -> CaptionRecord:
    """A record of a clip that is really there."""
    path = Path(changes.pop("path", folder / f"clip {number}.MP4"))
    content = f"the bytes of {path.name}".encode() * 50
    if changes.pop("is_there", True):
        path.write_bytes(content)
    content_digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return record(number, **{"clip": str(path), "content_digest": content_digest} | changes)


def samples(folder: Path) -> list[dict[str, bytes]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the library leaves its files to the garbage collector
        found = list(webdataset.WebDataset([str(p) for p in sorted(folder.glob("*.tar"))], shardshuffle=False))
        gc.collect()
    return found


def test_webdataset_holds_each_clip_once_with_all_its_captions(tmp_path):
    first, second = clip_record(tmp_path, 1), clip_record(tmp_path, 2, path=tmp_path / "no suffix")
    later = record(3, clip=first.clip, content_digest=first.content_digest, start_s=9.0)
    with MemorySink() as store:
        store.append(later, second, first)
        report = export(store, "webdataset", tmp_path / "shards")
    found = samples(tmp_path / "shards")
    assert [(sample["__key__"], sorted(k for k in sample if not k.startswith("__"))) for sample in found] == [
        ("000000000", ["json", "mp4"]),
        ("000000001", ["bin", "json"]),
    ]
    assert found[0]["mp4"] == Path(first.clip).read_bytes()
    told = json.loads(found[0]["json"])
    assert told["clip"] == first.clip
    assert msgspec.convert(told["captions"], list[CaptionRecord]) == [first, later]
    assert (report.num_records, report.num_samples, report.left_out, report.num_files) == (3, 2, [], 1)
    assert json.loads((tmp_path / "shards" / REPORT_NAME).read_bytes())["num_samples"] == 2


def test_webdataset_leaves_out_what_it_must_and_says_so(tmp_path):
    good = clip_record(tmp_path, 1)
    gone = clip_record(tmp_path, 2, is_there=False)
    changed = clip_record(tmp_path, 3, content_digest=digest("other"))
    folder = clip_record(tmp_path, 4, path=tmp_path / "a folder", is_there=False)
    (tmp_path / "a folder").mkdir()
    unread = failed(5, clip=str(tmp_path / "e.mp4"))
    wordless = clip_record(tmp_path, 6, text="", json="")
    with MemorySink() as store:
        store.append(good, gone, changed, folder, unread, wordless)
        report = export(store, "webdataset", tmp_path / "shards")
    assert (report.num_records, report.num_samples) == (1, 1)
    reasons = {left.clip: left.reason for left in report.left_out}
    assert set(reasons) == {one.clip for one in (gone, changed, folder, unread, wordless)}
    assert "not there" in reasons[gone.clip]
    assert "has changed since" in reasons[changed.clip]
    assert "not there" in reasons[folder.clip]
    assert reasons[unread.clip] == "no caption: SourceCorrupt"
    assert reasons[wordless.clip] == "no caption: ok"
    assert LeftOut(gone.clip, reasons[gone.clip]) in report.left_out


def test_webdataset_shards_are_cut_and_alike(tmp_path):
    kept = [clip_record(tmp_path, n) for n in range(7)]
    for name in ("one", "two"):
        write_webdataset(kept, tmp_path / name, shard_bytes=4_000)
    shards = sorted((tmp_path / "one").iterdir())
    assert [p.name for p in shards] == ["clips-000000.tar", "clips-000001.tar", "clips-000002.tar", "clips-000003.tar"]
    assert [p.read_bytes() for p in shards] == [p.read_bytes() for p in sorted((tmp_path / "two").iterdir())]
    assert len(samples(tmp_path / "one")) == 7
    with tarfile.open(shards[0]) as tar:
        assert {(m.mtime, m.uid, m.uname) for m in tar} == {(0, 0, "")}


@pytest.mark.parametrize(
    ("clip", "suffix"),
    [
        ("a.MP4", "mp4"), ("https://h/x.webm?sig=a.b", "webm"), ("a", "bin"), ("a.tar.gz", "gz"), ("a.m p", "bin"),
        (".hidden", "bin"), ("a.ü", "bin"),
    ],
)  # fmt: skip
def test_suffixes(clip, suffix):
    assert suffix_of(clip) == suffix


# Whole or not at all


@pytest.mark.parametrize("to", EXPORTERS.names())
def test_nothing_is_replaced_unless_told_to(tmp_path, to):
    with MemorySink() as store:
        store.append(clip_record(tmp_path, 1))
        export(store, to, tmp_path / "out")
        before = {p: p.read_bytes() for p in [tmp_path / "out", *(tmp_path / "out").rglob("*")] if p.is_file()}
        with pytest.raises(ConfigError, match=r"already there.*--force"):
            export(store, to, tmp_path / "out")
        store.append(clip_record(tmp_path, 2))
        assert export(store, to, tmp_path / "out", force=True).num_records == 2
    after = {p: p.read_bytes() for p in [tmp_path / "out", *(tmp_path / "out").rglob("*")] if p.is_file()}
    assert after != before
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith((".tmp", ".old"))]


@pytest.mark.parametrize("to", EXPORTERS.names())
def test_a_folder_that_no_export_made_is_never_replaced(tmp_path, to):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"me")
    with MemorySink() as store, pytest.raises(ConfigError, match="no export made"):
        export(store, to, tmp_path / "photos", force=True)
    assert (tmp_path / "photos" / "me.jpg").read_bytes() == b"me"


@pytest.mark.parametrize("to", EXPORTERS.names())
def test_an_export_that_breaks_off_leaves_everything_as_it_was(tmp_path, to):
    with MemorySink() as store:
        store.append(*(clip_record(tmp_path, n) for n in range(5)))
        export(store, to, tmp_path / "out")
        before = {p: p.read_bytes() for p in [tmp_path / "out", *(tmp_path / "out").rglob("*")] if p.is_file()}

        def stop(number: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export(store, to, tmp_path / "out", force=True, on_progress=stop)
    assert {p: p.read_bytes() for p in [tmp_path / "out", *(tmp_path / "out").rglob("*")] if p.is_file()} == before
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith((".tmp", ".old"))]


@pytest.mark.parametrize("to", EXPORTERS.names())
def test_a_full_disk(tmp_path, to):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MemorySink() as store:
        store.append(*(clip_record(tmp_path, n, text=os.urandom(20_000).hex()) for n in range(10)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
        try:
            with pytest.raises(StoreFull, match="no room to write"):
                export(store, to, tmp_path / "out")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def test_an_unknown_format(tmp_path):
    with MemorySink() as store, pytest.raises(ConfigError, match=r"no such export format.*did you mean 'parquet'"):
        export(store, "parket", tmp_path / "out")


def test_the_order_itself(store):
    assert list(ordered(store, None)) == SORTED
