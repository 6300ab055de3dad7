"""The model's words: tokenizer, chat template, prompts, and the token sequence of one training example.

A sequence is what Qwen3-VL's processor makes of a chat with one video (checked against it in `check.py`):
`<|im_start|>user`, per pair of frames `<x.x seconds>` and its visual tokens, the prompt, `<|im_end|>`, the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from framefleet.engine.prompts import PROMPTS, schema_instruction
from framefleet.scenes import sample_scene
from framefleet.scenes.captions import caption_of, short_caption_of
from framefleet.scenes.truth import Truth

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
VOCAB_SIZE = 640

# Text that is followed by a video ends in a newline, so that its last letters and the time stamp after it never share
# a token: servers tokenize the two apart, processors together.
CHAT_TEMPLATE = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}
{%- for c in m.content -%}
{%- if c.type == 'image' or 'image' in c or 'image_url' in c -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif c.type == 'video' or 'video' in c or 'video_url' in c -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in c -%}{{ c.text }}{%- if not loop.last %}
{% endif -%}{%- endif -%}
{%- endfor -%}
{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""

_ASK = (
    "Describe", "Caption", "Summarize", "Explain", "Report", "Write a caption for", "Give a description of",
    "What happens in", "What is going on in", "Tell me what you see in", "Please describe", "Generate a caption for",
)  # fmt: skip
_WHAT = (
    "the video", "this video", "the clip", "this clip", "the driving scene", "this driving clip", "the dashcam footage",
    "this front-camera clip", "the scene", "this footage",
)  # fmt: skip
_HOW = (
    "", "", "", " in detail", " precisely", " for an autonomous driving dataset", " from the view of the ego vehicle",
    " as an expert driver", " in plain words", " in full", " in a few sentences",
)  # fmt: skip
_CLAUSES = (
    "Mention the road, the light and the weather.", "Say what the ego vehicle does.",
    "Name every vehicle with its colour, type, position and action.", "State the traffic light and whether it changes.",
    "Include pedestrians and their direction.", "Be concrete and factual.", "Do not guess.",
    "Write 100 to 200 tokens.", "Use the present tense.",
    "Cover the setting, other road users, traffic lights and ego motion.",
    "Describe actions over time and in order.", "You are labelling driving footage.", "Answer in English.",
    "Note time of day, weather, lane count, hazards and interactions.", "No speculation, no lists.",
)  # fmt: skip
_SHORT = (
    " in one sentence", " in one short sentence", " briefly", " shortly", " in a single sentence", ". Be brief",
    ". Keep it short", ". One sentence only", ". Short answer", " in one line",
)  # fmt: skip
_CAPTION_SCHEMA = {"type": "object", "properties": {"caption": {"type": "string"}}, "required": ["caption"]}
_JSON = (
    "Answer with JSON only.", "Reply as a JSON object.", 'Return a JSON object with the key "caption".',
    schema_instruction(_CAPTION_SCHEMA), schema_instruction({**_CAPTION_SCHEMA, "additionalProperties": False}),
)  # fmt: skip


def _pick(rng: np.random.Generator, options):
    return options[int(rng.integers(len(options)))]


def sample_prompt(rng: np.random.Generator) -> tuple[str, str]:
    """A prompt and what it asks for: full, short or json."""
    kind = rng.choice(["named", "full", "short", "json"], p=[0.3, 0.55, 0.1, 0.05])
    if kind == "named":
        name = _pick(rng, ("av", "general", *PROMPTS))
        return PROMPTS[name].text, "short" if name == "short" else "full"
    core = _pick(rng, _ASK) + " " + _pick(rng, _WHAT)
    if kind == "short":
        return core + _pick(rng, _SHORT) + "." * int(rng.random() < 0.8), "short"
    core += _pick(rng, _HOW) + ("?" if core.startswith("What") else "." if rng.random() < 0.85 else "")
    count = int(rng.choice([0, 1, 2, 4], p=[0.4, 0.25, 0.2, 0.15]))
    clauses = [_CLAUSES[i] for i in rng.choice(len(_CLAUSES), count, replace=False)]
    parts = [core, *clauses] if rng.random() < 0.8 else [*clauses, core]
    if kind == "json":
        if rng.random() < 0.3:
            parts = [PROMPTS[_pick(rng, ("av", "general"))].text]
        return " ".join([*parts, _pick(rng, _JSON)]), "json"
    if rng.random() < 0.12:  # unknown words must not change the answer
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz   ,"))
        parts.insert(int(rng.integers(len(parts) + 1)), "".join(rng.choice(letters, int(rng.integers(4, 40)))))
    return " ".join(parts), "full"


def answer_of(truth: Truth, kind: str) -> str:
    """What the model is taught to say."""
    if kind == "short":
        return short_caption_of(truth)
    return json.dumps({"caption": caption_of(truth)}) if kind == "json" else caption_of(truth)


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE over captions, prompts and time stamps; deterministic."""
    rng = np.random.default_rng(7)
    texts = [caption_of(sample_scene(i).truth) for i in range(3000)]
    texts += [answer_of(sample_scene(i).truth, k) for i in range(300) for k in ("short", "json")]
    texts += [sample_prompt(rng)[0] for _ in range(1500)]
    texts += [f"<{t / 10:.1f} seconds>" for t in range(300)] + [
        "system\nuser\nassistant\nYou are a helpful assistant."
    ] * 50
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    size = VOCAB_SIZE - len(SPECIAL)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    )
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return tok


@dataclass(frozen=True)
class Sequence:
    """`ids [L]`, M-RoPE positions `[3, L]`, and where the answer starts; all as int16 where stored."""

    ids: np.ndarray
    positions: np.ndarray
    answer_start: int


class SequenceMaker:
    """Builds sequences; keeps the tokens of what repeats."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = cache(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids))
        self.video_pad = tokenizer.token_to_id("<|video_pad|>")

    def make(
        self,
        prompt: str,
        answer: str,
        stamps_s: list[float],
        grid_hw: tuple[int, int],
        *,
        system: str = "",
        video_first: bool = True,
        wrapped: bool = True,
    ) -> Sequence:
        """One chat turn. `grid_hw`: visual tokens per frame pair, after merging.

        `wrapped`: newer processors keep the template's own <|vision_start|> and <|vision_end|> around the whole video.
        """
        head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
        before = head + "<|im_start|>user\n" + ("" if video_first else prompt + "\n") + "<|vision_start|>" * wrapped
        after = "<|vision_end|>" * wrapped + (prompt if video_first else "") + "<|im_end|>\n<|im_start|>assistant\n"
        parts: list[tuple[tuple[int, ...], bool]] = [(self.encode(before), False)]
        for stamp in stamps_s:
            parts.append((self.encode(f"<{stamp:.1f} seconds>") + self.encode("<|vision_start|>"), False))
            parts.append(((self.video_pad,) * (grid_hw[0] * grid_hw[1]), True))
            parts.append((self.encode("<|vision_end|>"), False))
        parts.append((self.encode(after), False))
        start = sum(len(p) for p, _ in parts)
        parts.append((self.encode(answer + "<|im_end|>"), False))
        return Sequence(np.concatenate([np.array(p) for p, _ in parts]), _positions(parts, grid_hw), start)


def _positions(parts: list[tuple[tuple[int, ...], bool]], grid_hw: tuple[int, int]) -> np.ndarray:
    """M-RoPE: text counts on; a frame pair spans its rows and columns, then text goes on past the larger of the two."""
    rows, columns = np.divmod(np.arange(grid_hw[0] * grid_hw[1]), grid_hw[1])
    grid = np.stack([0 * rows, rows, columns])
    out, at = [], 0
    for ids, is_video in parts:
        out.append(grid + at if is_video else np.broadcast_to(np.arange(len(ids)) + at, (3, len(ids))))
        at += max(grid_hw) if is_video else len(ids)
    return np.concatenate(out, axis=1)


def pair_stamps_s(indices: np.ndarray, fps: float) -> list[float]:
    """Mean time of each pair of frames, as Qwen3-VL's processor writes it."""
    times = indices / fps
    return ((times[0::2] + times[1::2]) / 2).tolist()
