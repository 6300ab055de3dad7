"""What is particular to the JSON Lines store."""

import json
from pathlib import Path

import msgspec
import pytest
from caption_records import failed, record

from framefleet.errors import StoreUnreadable
from framefleet.store.jsonl import open_jsonl


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "captions.jsonl"


def test_every_line_is_a_record(path):
    with open_jsonl(str(path), "w") as store:
        store.append(failed(1), record(2, text="two\nlines"))
        store.append(record(1))
        assert len(path.read_text().splitlines()) == 3
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == ["two\nlines", record(1).text]
    assert [p.name for p in path.parent.iterdir()] == ["captions.jsonl"]


def test_a_torn_tail_of_every_length(path):
    lines = [msgspec.json.encode(record(n)) + b"\n" for n in range(3)]
    for num_bytes in range(len(lines[2])):
        path.write_bytes(lines[0] + lines[1] + lines[2][:num_bytes])
        assert list(open_jsonl(str(path), "r").records()) == [record(0), record(1)]
        with open_jsonl(str(path), "w") as store:
            store.append(record(5))
        assert path.read_bytes() == lines[0] + lines[1] + msgspec.json.encode(record(5)) + b"\n"


@pytest.mark.parametrize("line", [b"{}\n", b"not json\n", b"\n", b'{"digest": 3}\n'])
def test_a_line_that_is_no_record_is_named(path, line):
    path.write_bytes(msgspec.json.encode(record(0)) + b"\n" + line)
    for mode in ("r", "w"):
        with pytest.raises(StoreUnreadable, match=r"captions.jsonl, line 2"):
            open_jsonl(str(path), mode)
    assert path.read_bytes().endswith(line)


def test_failed_lines_that_came_again_are_passed_over_at_once(path):
    with open_jsonl(str(path), "w") as store:
        store.append(failed(1))
        store.append(failed(1, attempts=2))
        with open_jsonl(str(path), "r") as reader:
            assert list(reader.records()) == [failed(1, attempts=2)]
