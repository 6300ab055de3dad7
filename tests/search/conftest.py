"""Stores to search, and an embedder whose vectors can be worked out by hand."""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from caption_records import failed, record

from framefleet.store.lance import open_lance

CAPTIONS = [
    "A red truck brakes on the wet road at night.",
    "A blue bus turns left in fog.",
    "The ego vehicle stops at the red traffic light.",
    "A white van overtakes a red car in daylight.",
    "A pedestrian crosses the road in the rain.",
    "夜の道路に赤いトラックがあります",
    "Ein roter Lastwagen bremst auf der nassen Straße.",
    "L'ego véhicule s'arrête; le feu est \"rouge\".",
    "who is it",
    "",
]


class WordEmbedder:
    """A bag of words hashed to 64 numbers; words that mean the same for us share a number."""

    name = "words/1"
    dim = 64

    def __init__(self) -> None:
        self.num_texts = 0
        self.same = {"lorry": "truck", "crimson": "red", "damp": "wet", "street": "road"}

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.num_texts += len(texts)
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            vector[0] = 1e-3  # a text without words points somewhere too
            for word in re.findall(r"\w+", text.lower()):
                vector[zlib.crc32(self.same.get(word, word).encode()) % self.dim] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store of CAPTIONS, one rejected and one failed record."""
    path = tmp_path / "captions.lance"
    with open_lance(str(path), "w") as store:
        store.append(*[record(n, text=text) for n, text in enumerate(CAPTIONS)])
        store.append(record(100, text="A red truck, but not as JSON.", status="rejected"), failed(101))
    return path
