import json

import pytest

from framefleet.engine.captioner import CaptionRecord
from framefleet.store.sink import open_store


@pytest.fixture
def store(tmp_path, corpus):
    """A caption of a clip that is there, one of a clip that is gone, and a failure."""
    path = tmp_path / "captions.lance"
    plain = {"content_digest": "", "start_s": 0.0, "end_s": 2.0, "prompt": "p", "model": "m"}
    with open_store(path, "w") as sink:
        sink.append(CaptionRecord(digest="0" * 32, clip=str(corpus / "base.mp4"), text="one", **plain))
        sink.append(CaptionRecord(digest="1" * 32, clip=str(corpus / "gone.mp4"), text="two", **plain))
        sink.append(CaptionRecord(digest="2" * 32, clip="/x/bad.mp4", status="failed", reason="SourceCorrupt", **plain))
    return path


def test_json_lines_with_every_record(framefleet, store, tmp_path):
    answer = framefleet("export", "--store", store, "--to", "jsonl", "--output", tmp_path / "out.jsonl")
    assert answer.code == 0
    assert answer.out.startswith("3 records in ")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert {json.loads(line)["text"] for line in lines} == {"one", "two", ""}


def test_parquet_reads_back(framefleet, store, tmp_path):
    import pyarrow.parquet as pq

    answer = framefleet(
        "export", "--store", store, "--to", "parquet", "--output", tmp_path / "out.parquet", "--status", "ok", "--json"
    )
    assert (answer.code, answer.json["num_records"]) == (0, 2)
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 2


def test_what_is_left_out_is_named_and_makes_it_partial(framefleet, store, tmp_path):
    answer = framefleet("export", "--store", store, "--to", "webdataset", "--output", tmp_path / "shards")
    assert answer.code == 3
    assert "gone.mp4" in answer.err


def test_nothing_is_replaced_unless_told(framefleet, store, tmp_path):
    command = ("export", "--store", store, "--to", "jsonl", "--output", tmp_path / "out.jsonl")
    assert framefleet(*command).code == 0
    again = framefleet(*command)
    assert again.code == 2
    assert "--force" in again.err
    assert framefleet(*command, "--force").code == 0


@pytest.mark.parametrize("wrong", [("--to", "nope"), ("--to", "jsonl", "--status", "fine")])
def test_wrong_options(framefleet, store, tmp_path, wrong):
    answer = framefleet("export", "--store", store, "--output", tmp_path / "out", *wrong)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
