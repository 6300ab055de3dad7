"""The names that `import framefleet` offers for stores and search."""

from caption_records import record

import framefleet


def test_keep_search_and_export_by_the_public_names(tmp_path):
    with framefleet.open_store(tmp_path / "captions.lance", "w") as store:
        store.append(record(1, text="a red truck"), record(2, text="a blue bus"))
    assert [hit.text for hit in framefleet.search(tmp_path / "captions.lance", "truck")] == ["a red truck"]
    with framefleet.open_store(tmp_path / "captions.lance") as store:
        nowhere = framefleet.Where(model="another")
        assert framefleet.search(store, "truck", where=nowhere) == []
        assert framefleet.export(store, "jsonl", tmp_path / "captions.jsonl").num_records == 2
