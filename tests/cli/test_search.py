import pytest
from PIL import Image

from framefleet.engine.captioner import CaptionRecord
from framefleet.store.sink import open_store

TEXTS = {
    "base.mp4": "A red truck waits at the traffic light.",
    "rot90.mp4": "A blue car turns left in the rain.",
    "gone.mp4": "A red car passes a truck.",
}


@pytest.fixture
def store(tmp_path, corpus):
    """Three captions: of two clips that are there, and of one that is gone."""
    path = tmp_path / "captions.lance"
    with open_store(path, "w") as sink:
        for number, (name, text) in enumerate(TEXTS.items()):
            record = {"digest": f"{number:032x}", "clip": str(corpus / name), "content_digest": "", "text": text}
            sink.append(CaptionRecord(**record, start_s=0.0, end_s=1.0, prompt="p", model="m"))
    return path


def test_the_best_hit_comes_first(framefleet, store, corpus):
    hits = framefleet("search", "red truck", "--store", store, "--json").json_lines
    assert [hit["rank"] for hit in hits] == [1, 2]
    assert {hit["clip"] for hit in hits} == {str(corpus / "base.mp4"), str(corpus / "gone.mp4")}
    assert hits[0]["score"] >= hits[1]["score"]


def test_quoted_words_are_taken_as_they_stand(framefleet, store, corpus):
    hits = framefleet("search", '"red truck"', "--store", store, "--json").json_lines
    assert [hit["clip"] for hit in hits] == [str(corpus / "base.mp4")]


def test_for_people(framefleet, store):
    answer = framefleet("search", "rain", "--store", store)
    assert "rot90.mp4 [0.0-1.0 s]" in answer.out
    assert "A blue car turns left in the rain." in answer.out


def test_nothing_found_is_no_error(framefleet, store):
    answer = framefleet("search", "elephant", "--store", store)
    assert (answer.code, answer.out) == (0, "")
    assert "nothing found" in answer.err
    assert framefleet("search", "elephant", "--store", store, "--json").out == ""


def test_only_clips_of_a_name(framefleet, store):
    hits = framefleet("search", "red", "--store", store, "--clip", "*/gone.mp4", "--json").json_lines
    assert len(hits) == 1


def test_the_hits_are_drawn_and_a_clip_that_is_gone_is_told_on_the_sheet(framefleet, store, tmp_path):
    answer = framefleet("search", "red", "--store", store, "--sheet", tmp_path / "hits.png")
    assert answer.code == 0
    with Image.open(tmp_path / "hits.png") as sheet:
        assert sheet.width == 960 + 20
        assert sheet.height > 200


@pytest.mark.parametrize("wrong", [("--mode", "nope"), ("--limit", "0")])
def test_wrong_options(framefleet, store, wrong):
    assert framefleet("search", "red", "--store", store, *wrong).code == 2


def test_no_store(framefleet, tmp_path):
    answer = framefleet("search", "red", "--store", tmp_path / "none.lance")
    assert answer.code != 0
    assert "none.lance" in answer.err
    assert len(answer.err.splitlines()) == 1
