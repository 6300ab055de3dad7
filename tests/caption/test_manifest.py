import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framefleet.caption.inputs import Inputs
from framefleet.caption.manifest import choose_column, rows_of_manifest
from framefleet.errors import ConfigError, SourceNotFound

ROWS = ["a.mp4", "sub/b.mp4", "https://host/c.mp4", "/abs/d.mp4", None, "a.mp4"]


def write(path: Path, column: str) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": list(range(len(ROWS))), column: ROWS}), path)
    elif path.suffix == ".csv":
        path.write_text(
            f"id,{column}\n" + "".join(f"{i},{r or ''}\n" for i, r in enumerate(ROWS)), encoding="utf-8-sig"
        )
    else:
        path.write_text("".join(json.dumps({"id": i, column: r}) + "\n" for i, r in enumerate(ROWS)) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".ndjson", ".csv"])
@pytest.mark.parametrize(("column", "named"), [("Video_Path", None), ("clip", None), ("weird", "weird")])
def test_every_kind_gives_its_rows(suffix: str, column: str, named: str | None, tmp_path: Path):
    inputs = Inputs([str(write(tmp_path / f"list{suffix}", column))], column=named)
    expected = [str(tmp_path / "a.mp4"), str(tmp_path / "sub/b.mp4"), "https://host/c.mp4", "/abs/d.mp4"]
    assert [s.location for s in inputs] == expected
    assert inputs.passed_over.duplicates == 1


def test_relative_rows_are_relative_to_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lists").mkdir()
    write(tmp_path / "lists/list.csv", "path")
    monkeypatch.chdir(tmp_path)
    assert next(iter(Inputs(["lists/list.csv"]))).location == str(tmp_path / "lists" / "a.mp4")


def test_lines_of_bare_strings_will_do(tmp_path: Path):
    (tmp_path / "list.jsonl").write_text('"a.mp4"\n"b.mp4"\n')
    assert list(rows_of_manifest(str(tmp_path / "list.jsonl"), None)) == ["a.mp4", "b.mp4"]


def test_rows_may_be_file_uris(tmp_path: Path):
    (tmp_path / "list.csv").write_text("path\nfile:///a%20b%23.mp4\n")
    assert [s.location for s in Inputs([str(tmp_path / "list.csv")])] == ["/a b#.mp4"]


def test_remote_manifests():
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/lists/l.jsonl", b'{"path": "x.mp4"}\n{"path": "https://host/y.mp4"}\n')
    try:
        assert [s.location for s in Inputs(["memory://lists/l.jsonl"])] == [
            "memory://lists/x.mp4",
            "https://host/y.mp4",
        ]
    finally:
        memory.rm("/lists", recursive=True)


def test_the_column_is_guessed_only_where_it_can_be():
    assert choose_column(["id", "URL"], None, "m") == "URL"
    assert choose_column(["anything"], None, "m") == "anything"
    with pytest.raises(ConfigError, match=r"cannot tell.*--column"):
        choose_column(["left", "right"], None, "m")
    with pytest.raises(ConfigError, match="did you mean 'clip_path'"):
        choose_column(["id", "clip_path"], "clip_pat", "m")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.jsonl", b'{"path": "a"}\n{"path": \n', "line 2"),
        ("m.jsonl", b'{"path": "a"}\n{"file": "b"}\n', "no such column"),
        ("m.jsonl", b'{"path": 5}\n', "must be text"),
        ("m.parquet", b"no parquet at all", "not Parquet"),
        ("m.csv", b"path\n\xff\xfe\n", "not CSV"),
    ],
)
def test_a_broken_manifest_says_where(name: str, content: bytes, message: str, tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(rows_of_manifest(str(tmp_path / name), None))


def test_a_missing_remote_manifest_is_not_found():
    with pytest.raises(SourceNotFound, match="manifest"):
        list(rows_of_manifest("memory://nowhere/m.jsonl", None))
