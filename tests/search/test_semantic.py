"""Search by meaning, with an embedder whose vectors are known; and both ways fused."""

import shutil

import numpy as np
import pytest
from caption_records import failed, record

from framefleet.errors import StoreLocked
from framefleet.search import vectors as module
from framefleet.search.searcher import Searcher, search
from framefleet.store.lance import HOME, open_lance
from framefleet.store.lock import Lock
from framefleet.store.where import Where

RED_TRUCK = "A red truck brakes on the wet road at night."


def found(path, query, embedder, **asked):
    with open_lance(str(path), "r") as store:
        return search(store, query, embedder=embedder, **{"mode": "semantic", **asked})


def test_other_words_of_the_same_meaning(path, embedder):
    hits = found(path, "crimson lorry damp street", embedder)
    assert hits[0].text == RED_TRUCK
    query = embedder.embed(["crimson lorry damp street"])[0]
    assert hits[0].score == pytest.approx(float(query @ embedder.embed([RED_TRUCK])[0]), abs=1e-5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert found(path, "crimson lorry", embedder, mode="text") == []


def test_captions_without_text_and_failed_ones_are_near_nothing(path, embedder):
    hits = found(path, "zebra", embedder, limit=100)
    assert len(hits) == 9
    assert all(hit.text for hit in hits)


def test_filters(path, embedder):
    assert [hit.text for hit in found(path, "json", embedder, where=Where(status=("rejected",)))] == [
        "A red truck, but not as JSON."
    ]
    assert found(path, "red truck", embedder, where=Where(clip="*/day 0/*"), limit=1)[0].text == RED_TRUCK
    assert found(path, "red truck", embedder, where=Where(clip="*/day 1/*"), limit=1)[0].text != RED_TRUCK
    assert found(path, "red truck", embedder, where=Where(model="other")) == []


@pytest.mark.parametrize("query", ["", "  ", "?!"])
def test_an_empty_query_finds_nothing(path, embedder, query):
    assert found(path, query, embedder) == []
    assert embedder.num_texts == 0


def test_an_empty_store(tmp_path, embedder):
    open_lance(str(tmp_path / "captions.lance"), "w").close()
    assert found(tmp_path / "captions.lance", "red", embedder) == []


def test_only_what_lacks_a_vector_is_embedded(path, embedder):
    found(path, "red", embedder)
    assert embedder.num_texts == 11 + 1
    found(path, "red", embedder)
    assert embedder.num_texts == 11 + 2
    with open_lance(str(path), "w") as writer:
        writer.append(record(101, text="a zebra crosses"))
        assert found(path, "zebra", embedder)[0].text == "a zebra crosses"  # not folded yet
        assert embedder.num_texts == 11 + 4
    assert found(path, "zebra", embedder)[0].text == "a zebra crosses"
    assert embedder.num_texts == 11 + 5


def test_filling_tells_how_far_it_is(path, embedder):
    steps = []
    with open_lance(str(path), "r") as store:
        search(
            store,
            "red",
            mode="semantic",
            embedder=embedder,
            on_progress=lambda done, total: steps.append((done, total)),
        )
    assert steps == [(11, 11)]


def test_a_fill_that_broke_off_is_taken_up(path, embedder, monkeypatch):
    monkeypatch.setattr(module, "_COMMIT_ROWS", 4)
    monkeypatch.setattr(module, "_EMBED_ROWS", 2)
    embed, calls = embedder.embed, []

    def embed_until_killed(texts):
        calls.append(len(texts))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return embed(texts)

    with monkeypatch.context() as patched:
        patched.setattr(embedder, "embed", embed_until_killed)
        with pytest.raises(KeyboardInterrupt):
            found(path, "red truck wet road", embedder)
    embedder.num_texts = 0
    assert found(path, "red truck wet road", embedder)[0].text == RED_TRUCK
    assert embedder.num_texts == 11 - 4 + 1


def test_broken_vectors_are_begun_again(path, embedder, caplog):
    found(path, "red", embedder)
    [vectors] = (path / HOME).glob("vectors-*.lance")
    for manifest in (vectors / "_versions").glob("*.manifest"):
        manifest.write_bytes(b"")
    assert found(path, "red truck wet road", embedder)[0].text == RED_TRUCK
    assert "worked out anew" in caplog.text


def test_models_are_not_mixed(path, embedder):
    found(path, "red", embedder)
    embedder.name = "words/2"
    embedder.same = {}
    assert found(path, "crimson", embedder)[0].score < 0.1
    assert sorted(p.name for p in (path / HOME).glob("vectors-*.lance")) == [
        "vectors-words_1.lance",
        "vectors-words_2.lance",
    ]


def test_a_store_of_another_width_under_the_same_name_is_begun_again(path, embedder):
    found(path, "red", embedder)
    embedder.dim = 32
    assert found(path, "red truck wet road", embedder)[0].text == RED_TRUCK


def test_the_writer_of_captions_does_not_stand_in_the_way(path, embedder):
    with open_lance(str(path), "w") as writer:
        writer.append(failed(200))
        assert found(path, "red truck wet road", embedder)[0].text == RED_TRUCK


def test_another_filler_is_waited_for(path, embedder, monkeypatch):
    monkeypatch.setattr(module, "_WAIT_S", 0.1)
    with Lock(path / HOME / "vectors-words_1.lock"), pytest.raises(StoreLocked):
        found(path, "red", embedder)


def test_vectors_survive_what_the_store_tidies(path, embedder):
    found(path, "red", embedder)
    before = embedder.num_texts
    for run in range(12):
        with open_lance(str(path), "w") as writer:
            writer.append(failed(300 + run))
    found(path, "red", embedder)
    assert embedder.num_texts == before + 1


def test_with_an_index(tmp_path, embedder, monkeypatch):
    monkeypatch.setattr(module, "INDEX_ROWS", 600)
    monkeypatch.setattr(module, "_COMMIT_ROWS", 64)
    path, rng = tmp_path / "captions.lance", np.random.default_rng(0)
    words = ["red", "blue", "truck", "bus", "van", "road", "night", "rain", "fog", "stops", "turns", "left", "right"]
    with open_lance(str(path), "w") as store:
        store.append(*[record(n, text=" ".join(rng.choice(words, 4)), clip=f"{n}.mp4") for n in range(800)])
    with open_lance(str(path), "r") as store:
        searcher = Searcher(store, embedder=embedder)
        hits = searcher.search("blue bus left rain", mode="semantic", limit=20)
        dataset = searcher.vectors
        assert {index.name: index.num_rows_indexed for index in dataset.describe_indices()} == {
            "vector_idx": 800,
            "status_idx": 800,
        }
        assert len(dataset.get_fragments()) == 1
        records = list(store.records())
        query = embedder.embed(["blue bus left rain"])[0]
        truth = np.sort(embedder.embed([one.text for one in records]) @ query)[::-1][:20]
        assert [hit.score for hit in hits] == pytest.approx(truth.tolist(), abs=1e-4)
        assert {hit.clip for hit in searcher.search("bus", mode="semantic", limit=50, where=Where(clip="7?.mp4"))} == {
            f"7{n}.mp4" for n in range(10)
        }


def test_hybrid_has_what_either_finds(path, embedder):
    hits = found(path, "crimson lorry bus", embedder, mode="hybrid")
    assert {hits[0].text, hits[1].text} == {RED_TRUCK, "A blue bus turns left in fog."}
    both = found(path, "red truck", embedder, mode="hybrid", limit=3)
    assert both[0].text == RED_TRUCK
    assert both[0].score == pytest.approx(2 / 61)
    assert found(path, "?", embedder, mode="hybrid") == []


def test_a_moved_store_takes_its_vectors_along(path, embedder, tmp_path):
    found(path, "red", embedder)
    before = embedder.num_texts
    moved = shutil.move(path, tmp_path / "moved.lance")
    assert found(moved, "red truck wet road", embedder)[0].text == RED_TRUCK
    assert embedder.num_texts == before + 1
