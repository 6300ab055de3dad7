"""The bundled model: its files, and what it says of the sample clips through transformers called by hand.

Decoding is PyAV's own and nothing of `framefleet.decode` or `framefleet.engine` but the prompts, so that the engines'
tests have something to agree with.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, AutoTokenizer

from framefleet.engine.prompts import PROMPTS
from framefleet.scenes import SampleClip, parse_caption, sample_clips, short_caption_of
from framefleet.scenes import truth as words

FOLDER = Path(words.__file__).parents[1] / "models" / "dashcam_tiny"
CLIPS = sample_clips()
VIDEO = json.loads((FOLDER / "video_preprocessor_config.json").read_text())
BACKWARDS = {
    "brakes": "pulls away",
    "overtakes": "falls behind",
    "from left to right": "from right to left",
    "changes from red to green": "changes from green to red",
}
BACKWARDS |= {b: a for a, b in BACKWARDS.items()}


@pytest.fixture(scope="module")
def model():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForImageTextToText.from_pretrained(FOLDER, dtype=torch.float32).eval()
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@cache
def sampled(path: Path) -> tuple[np.ndarray, tuple[float, ...]]:
    """16 frames `[16, H, W, 3]` at the model's size, and the mean time of each pair."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate)
        frames = list(container.decode(stream))
    indices = np.linspace(0, len(frames) - 1, VIDEO["max_frames"]).round().astype(int)
    scale = (len(indices) * frames[0].height * frames[0].width / VIDEO["size"]["longest_edge"]) ** 0.5
    height, width = (int(side / scale // 32) * 32 for side in (frames[0].height, frames[0].width))
    shrink = av.video.reformatter.VideoReformatter()
    small = [
        shrink.reformat(frames[i], width, height, "rgb24", interpolation="BICUBIC", threads=1).to_ndarray()
        for i in indices
    ]
    return np.stack(small), tuple((indices[0::2] + indices[1::2]) / 2 / rate)


def say(model, tokenizer, frames: np.ndarray, stamps_s: tuple[float, ...], prompt: str) -> str:
    """The greedy answer; the sequence is what Qwen3VLProcessor writes."""
    t, h, w = len(frames) // 2, frames.shape[1] // 16, frames.shape[2] // 16
    x = torch.from_numpy(frames).reshape(t, 2, h // 2, 2, 16, w // 2, 2, 16, 3).permute(0, 2, 5, 3, 6, 8, 1, 4, 7)
    pixels = x.reshape(t * h * w, -1).float() / 127.5 - 1
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": prompt}]}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    pads = "<|vision_start|>" + "<|video_pad|>" * (h * w // 4) + "<|vision_end|>"
    text = text.replace("<|video_pad|>", "".join(f"<{s:.1f} seconds>{pads}" for s in stamps_s))
    ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    kinds = 2 * (ids == model.config.video_token_id).int()
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds,
            pixel_values_videos=pixels, video_grid_thw=torch.tensor([[t, h, w]]),
        )  # fmt: skip
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_files_are_small_and_bf16() -> None:
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 12_000_000
    with safe_open(weights, "pt") as held:
        assert {str(held.get_tensor(name).dtype) for name in held.keys()} == {"torch.bfloat16"}  # noqa: SIM118
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
    generation = json.loads((FOLDER / "generation_config.json").read_text())
    assert generation["do_sample"] is False


def test_processor_files_agree() -> None:
    both = json.loads((FOLDER / "processor_config.json").read_text())
    assert both["video_processor"] == VIDEO
    assert both["image_processor"] == json.loads((FOLDER / "preprocessor_config.json").read_text())
    assert VIDEO["video_processor_type"] == "Qwen3VLVideoProcessor"
    assert VIDEO["min_frames"] == VIDEO["max_frames"] == 16


def test_the_notice_says_what_the_model_is() -> None:
    notice = json.loads((FOLDER / "framefleet.json").read_text())
    assert "drawn scenes" in notice["notice"]
    assert "--model" in notice["notice"]
    assert -0.02 < notice["min_mean_logprob"] < -0.001


def test_the_tokenizer_holds_any_text(tokenizer) -> None:
    for text in ("A red truck ahead brakes.", "Größe 東京 🚗\n\t{}", "<0.3 seconds>"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    for special in ("<|im_end|>", "<|video_pad|>", "<|vision_start|>"):
        assert len(tokenizer(special).input_ids) == 1


@pytest.mark.parametrize("clip", CLIPS[::5], ids=lambda c: c.path.stem)
def test_sample_captions_are_right(model, tokenizer, clip: SampleClip) -> None:
    assert say(model, tokenizer, *sampled(clip.path), PROMPTS["general"].text) == clip.caption


@pytest.mark.slow
@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: c.path.stem)
def test_every_sample_caption_is_right(model, tokenizer, clip: SampleClip) -> None:
    assert say(model, tokenizer, *sampled(clip.path), PROMPTS["av"].text) == clip.caption


def test_a_short_answer_and_json_where_asked(model, tokenizer) -> None:
    clip = CLIPS[1]
    frames, stamps_s = sampled(clip.path)
    assert say(model, tokenizer, frames, stamps_s, PROMPTS["short"].text) == short_caption_of(clip.truth)
    answer = say(model, tokenizer, frames, stamps_s, PROMPTS["general"].text + " Answer with JSON only.")
    assert json.loads(answer) == {"caption": clip.caption}


def test_it_sees_colours(model, tokenizer) -> None:
    clip = next(c for c in CLIPS if any(v.colour in ("red", "blue") for v in c.truth.vehicles))
    frames, stamps_s = sampled(clip.path)
    swapped = say(model, tokenizer, np.ascontiguousarray(frames[..., ::-1]), stamps_s, PROMPTS["general"].text)
    for vehicle in clip.truth.vehicles:
        if vehicle.colour in ("red", "blue"):
            assert parse_caption(swapped).get(f"{vehicle.where}.colour") != vehicle.colour


def test_it_sees_order(model, tokenizer) -> None:
    """Played backwards, what is order-dependent turns into its opposite."""
    told = right = 0
    for clip in CLIPS[1::4]:
        frames, stamps_s = sampled(clip.path)
        said = parse_caption(say(model, tokenizer, frames[::-1].copy(), stamps_s, PROMPTS["general"].text))
        facts = {f"{v.where}.action": v.action for v in clip.truth.vehicles}
        facts |= {"traffic_light": clip.truth.traffic_light, "pedestrian": clip.truth.pedestrian}
        for name, value in facts.items():
            if value in BACKWARDS:
                told += 1
                right += said.get(name) == BACKWARDS[value]
    assert told >= 4
    assert right >= 0.7 * told
