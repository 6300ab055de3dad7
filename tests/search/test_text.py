"""Full-text search: what it finds, in any state of the store, and that the query stays text."""

import pytest
from caption_records import ODD_TEXTS, failed, record

from framefleet.errors import ConfigError
from framefleet.search.searcher import Searcher, search
from framefleet.store.lance import open_lance
from framefleet.store.sink import open_store
from framefleet.store.where import Where


def texts(path, query: str, **asked: object) -> list[str]:
    with open_lance(str(path), "r") as store:
        return [hit.text for hit in search(store, query, **asked)]


def test_a_hit_tells_where_it_is(path):
    with open_lance(str(path), "r") as store:
        [hit] = search(store, "bus")
    one = record(1)
    assert (hit.clip, hit.start_s, hit.end_s, hit.digest) == (one.clip, one.start_s, one.end_s, one.digest)
    assert (hit.text, hit.model, hit.prompt, hit.status) == (
        "A blue bus turns left in fog.",
        one.model,
        one.prompt,
        "ok",
    )
    assert hit.score > 0


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("red truck, wet road at night", "A red truck brakes on the wet road at night."),
        ("trucks braking", "A red truck brakes on the wet road at night."),
        ("TRAFFIC LIGHTS", "The ego vehicle stops at the red traffic light."),
        ('"red car"', "A white van overtakes a red car in daylight."),
        ("トラック", "夜の道路に赤いトラックがあります"),
        ("nassen straße", "Ein roter Lastwagen bremst auf der nassen Straße."),
        ("vehicule", "L'ego véhicule s'arrête; le feu est \"rouge\"."),
        ("who is it", "who is it"),
        ("s'arrête", "L'ego véhicule s'arrête; le feu est \"rouge\"."),
    ],
)
def test_the_right_caption_comes_first(path, query, first):
    assert texts(path, query)[0] == first


def test_words_in_any_order_and_phrases_as_they_stand(path):
    assert len(texts(path, "truck red")) == 3
    assert texts(path, '"truck red"') == []
    assert texts(path, '"red truck"') == ["A red truck brakes on the wet road at night."]
    assert texts(path, '"red" pedestrian')[0] != "A pedestrian crosses the road in the rain."
    assert len(texts(path, '"red"')) == 3


@pytest.mark.parametrize(
    "query",
    [
        "", "zebra", "?", "*", "🚚", "'; DROP TABLE captions; --", "text:zebra", "NOT zebra AND", "zebra~2", "(zebra",
        "\\", "%", "' OR '1'='1",
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found_and_breaks_nothing(path, query):
    assert not [text for text in texts(path, query) if "truck" in text]


def test_rejected_answers_are_found_when_asked_for(path):
    assert texts(path, "JSON") == []
    assert texts(path, "JSON", where=Where(status=("rejected",))) == ["A red truck, but not as JSON."]


def test_filters(path):
    assert texts(path, "red", where=Where(clip="*/day 2/*")) == ["The ego vehicle stops at the red traffic light."]
    assert texts(path, "red", where=Where(clip="*'*")) == []
    assert texts(path, "red", where=Where(model="other")) == []
    assert texts(path, "red", where=Where(overlaps_s=(0, 0.4))) == ["A red truck brakes on the wet road at night."]


def test_an_empty_store(tmp_path):
    open_lance(str(tmp_path / "captions.lance"), "w").close()
    assert texts(tmp_path / "captions.lance", "red") == []


def test_limit_and_order(path):
    with open_lance(str(path), "r") as store:
        hits = search(store, "red truck road", limit=3)
        assert len(hits) == 3
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert [hit.digest for hit in search(store, "red truck road", limit=2)] == [hit.digest for hit in hits[:2]]


def test_what_is_not_folded_yet_is_found(tmp_path):
    with open_lance(str(tmp_path / "captions.lance"), "w", fold_rows=2) as writer:
        writer.append(failed(1), record(2, text="a red truck"))
        assert texts(tmp_path / "captions.lance", "truck") == ["a red truck"]
        writer.append(record(1, text="a blue truck"))
        writer.append(record(3, text="トラック"))
        assert sorted(texts(tmp_path / "captions.lance", "truck")) == ["a blue truck", "a red truck"]
        assert texts(tmp_path / "captions.lance", "トラック") == ["トラック"]
        assert [hit.text for hit in search(writer, "blue")] == ["a blue truck"]


def test_indexed_and_unindexed_rows_are_found_alike(tmp_path):
    path = tmp_path / "captions.lance"
    with open_lance(str(path), "w") as store:
        store.append(*[record(n, text=f"number {n} truck") for n in range(1_001)])
    with open_lance(str(path), "w") as store:
        store.append(record(2000, text="late truck トラック"), record(2001, text="late bus"))
    with open_lance(str(path), "r") as store:
        assert store.dataset.stats.index_stats("text_idx")["num_unindexed_rows"] == 2
        assert {hit.text for hit in search(store, "late")} == {"late truck トラック", "late bus"}
        assert [hit.text for hit in search(store, '"late truck"')] == ["late truck トラック"]
        assert [hit.text for hit in search(store, '"number 77 truck"')] == ["number 77 truck"]
        assert len(search(store, "truck", limit=2000)) == 1_002


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_odd_captions_and_odd_queries(tmp_path, name):
    path = tmp_path / "captions.lance"
    with open_lance(str(path), "w") as store:
        store.append(record(1, text=ODD_TEXTS[name]), record(2, text="zebra"))
    assert texts(path, "zebra") == ["zebra"]
    assert isinstance(texts(path, ODD_TEXTS[name][:4000]), list)


def test_one_searcher_keeps_its_view(path):
    with open_lance(str(path), "r") as store:
        searcher = Searcher(store)
        with open_lance(str(path), "w") as writer:
            writer.append(record(50, text="zebra"))
        assert searcher.search("zebra") == []
        assert len(searcher.search("truck")) == 1
    assert texts(path, "zebra") == ["zebra"]


@pytest.mark.parametrize(
    ("asked", "message"), [({"mode": "fuzzy"}, "no such search mode"), ({"limit": 0}, "limit is too small")]
)
def test_wrong_questions(path, asked, message):
    with open_lance(str(path), "r") as store, pytest.raises(ConfigError, match=message):
        search(store, "red", **asked)


def test_only_lance_stores_are_searched(tmp_path):
    with open_store(tmp_path / "captions.jsonl", "w") as store, pytest.raises(ConfigError, match="only Lance stores"):
        search(store, "red")


def test_the_package_can_be_called(path):
    import framefleet.search

    assert [hit.text for hit in framefleet.search(path, "bus")] == ["A blue bus turns left in fog."]
    with open_lance(str(path), "r") as store:
        assert [hit.text for hit in framefleet.search(store, "bus", limit=1)] == ["A blue bus turns left in fog."]
