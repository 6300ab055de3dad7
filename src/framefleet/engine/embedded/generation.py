"""One batch through the model: rows end on their own, tell their text as it comes, and can be withdrawn."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.embedded.families import Family, Prepared
from framefleet.engine.question import FinishReason
from framefleet.errors import CaptionRejected

EXTRAS = ("ignore_eos", "min_p", "no_repeat_ngram_size", "repetition_penalty", "top_k")
"""The fields of `GenerationSettings.extra` that this engine knows."""


@dataclass(frozen=True, slots=True)
class Row:
    """One question of a batch."""

    prepared: Prepared
    generation: GenerationSettings
    is_withdrawn: Callable[[], bool]
    on_text: Callable[[str], None] | None


@dataclass(frozen=True, slots=True)
class Written:
    """What the model wrote for one row."""

    text: str
    finish_reason: FinishReason
    num_tokens: int
    mean_logprob: float | None
    prefill_s: float


def check_generation(generation: GenerationSettings) -> None:
    """Raises CaptionRejected for what this engine does not do, rather than ignoring it."""
    if unknown := sorted(set(generation.extra) - set(EXTRAS)):
        raise CaptionRejected(
            "the embedded engine does not know these generation settings",
            given=", ".join(unknown),
            allowed=", ".join(EXTRAS),
        )
    if generation.max_tokens < 1:
        raise CaptionRejected("no tokens were asked for", given=f"max_tokens={generation.max_tokens}", allowed="1 up")


class Writer:
    """A loaded model of one family."""

    def __init__(self, model: Any, tokenizer: Any, family: Family) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.family = family
        self._defaults = model.generation_config
        eos = self._defaults.eos_token_id
        self.eos_ids = set(eos if isinstance(eos, list) else [eos])

    def batch_key(self, row_id: int, prepared: Prepared, generation: GenerationSettings) -> object:
        """Rows of equal keys may share a batch and get the words that they would get alone.

        Sampled rows draw from one stream of random numbers, so they go alone. Penalties look back over the padding
        too, so they ask for prompts of one length.
        """
        if generation.temperature > 0:
            return ("alone", row_id)
        extra = {name: getattr(self._defaults, name, None) for name in EXTRAS} | generation.extra
        looks_back = (extra["repetition_penalty"] or 1.0) != 1.0 or bool(extra["no_repeat_ngram_size"])
        return ("greedy", repr(sorted(generation.extra.items())), len(prepared.input_ids) if looks_back else 0)

    @torch.inference_mode()
    def write(self, rows: Sequence[Row], beat: Callable[[], None]) -> list[Written]:
        """The words for every row; `beat` is called after each step."""
        inputs = {k: self._placed(k, v) for k, v in self.family.collate([row.prepared for row in rows]).items()}
        num_prompt = inputs["input_ids"].shape[1]
        follower = _Follower(rows, num_prompt, self.eos_ids, self.tokenizer, beat)
        likelihood = _Likelihood()
        output = self.model.generate(
            **inputs,
            generation_config=self._config(rows),
            stopping_criteria=[follower],
            logits_processor=[likelihood],
        )
        written = output[:, num_prompt:].tolist()
        logprobs = likelihood.per_step()
        return [
            self._written(row, written[at], [step[at] for step in logprobs], follower.prefill_s)
            for at, row in enumerate(rows)
        ]

    def _written(self, row: Row, tokens: list[int], logprobs: list[float], prefill_s: float) -> Written:
        kept, ended = own_tokens(tokens, self.eos_ids, row.generation.max_tokens)
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        mean = sum(logprobs[: len(kept)]) / len(kept) if kept and row.generation.temperature == 0 else None
        return Written(text, "stop" if ended else "length", len(kept), mean, prefill_s)

    def _config(self, rows: Sequence[Row]) -> Any:
        """The checkpoint's own defaults (end tokens, penalties) with what the rows ask, which they have in common."""
        first = rows[0].generation
        config = copy.deepcopy(self._defaults)
        sampled = first.temperature > 0
        config.update(
            max_new_tokens=max(row.generation.max_tokens for row in rows),
            max_length=None,
            do_sample=sampled,
            temperature=first.temperature if sampled else None,
            top_p=first.top_p if sampled else None,
            top_k=0 if sampled else None,
            pad_token_id=config.pad_token_id if config.pad_token_id is not None else next(iter(self.eos_ids)),
        )
        extra = {k: v for k, v in first.extra.items() if sampled or k not in ("top_k", "min_p")}
        if extra.pop("ignore_eos", False):  # no end token is chosen before the row is full
            config.update(min_new_tokens=config.max_new_tokens)
        config.update(**extra)
        if sampled and first.seed is not None:
            torch.manual_seed(first.seed)
        return config

    def _placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.model.dtype if name.startswith("pixel_values") else tensor.dtype
        return tensor.to(self.model.device, dtype)


def own_tokens(tokens: list[int], eos_ids: set[int], max_tokens: int) -> tuple[list[int], bool]:
    """A row's tokens up to and with its end token, at most `max_tokens`, and whether it ended by itself."""
    for at, token in enumerate(tokens[:max_tokens]):
        if token in eos_ids:
            return tokens[: at + 1], True
    return tokens[:max_tokens], False


class _Follower(StoppingCriteria):  # type: ignore[misc]
    """Looks on after each step: which rows are to end, and what new text there is to tell."""

    def __init__(
        self, rows: Sequence[Row], num_prompt: int, eos_ids: set[int], tokenizer: Any, beat: Callable[[], None]
    ) -> None:
        self._rows = rows
        self._num_prompt = num_prompt
        self._eos_ids = eos_ids
        self._tokenizer = tokenizer
        self._beat = beat
        self._told = [""] * len(rows)
        self._ended = [False] * len(rows)
        self._started_s = time.perf_counter()
        self.prefill_s = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        del scores, kwargs
        if not self.prefill_s:
            self.prefill_s = time.perf_counter() - self._started_s
        self._beat()
        for at, row in enumerate(self._rows):
            if not self._ended[at]:
                self._follow(at, row, input_ids[at, self._num_prompt :])
        return torch.tensor(self._ended, device=input_ids.device)

    def _follow(self, at: int, row: Row, written: torch.Tensor) -> None:
        kept, by_itself = written, int(written[-1]) in self._eos_ids
        self._ended[at] = by_itself or len(kept) >= row.generation.max_tokens or row.is_withdrawn()
        if row.on_text is None:
            return
        text = self._tokenizer.decode(kept, skip_special_tokens=True)
        if self._ended[at] or not text.endswith("�"):  # else a character of several tokens is under way
            if fresh := text[len(self._told[at]) :]:
                row.on_text(fresh)
            self._told[at] = text


class _Likelihood(LogitsProcessor):  # type: ignore[misc]
    """Keeps the log-probability of the likeliest token of each step, which is the one that greedy takes."""

    def __init__(self) -> None:
        self._steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        del input_ids
        self._steps.append(scores.max(-1).values.float() - scores.float().logsumexp(-1))
        return scores

    def per_step(self) -> list[list[float]]:
        """[steps][rows]."""
        return torch.stack(self._steps).tolist() if self._steps else []
