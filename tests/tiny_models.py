"""Tiny random checkpoints of every family that the embedded engine runs, and frames to show them.

The files are those of published checkpoints; the processor configurations are written by hand, because transformers'
processors need torchvision, which has no CPU build for every machine.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.media.info import StreamInfo

QWEN_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
]  # fmt: skip
SMOL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>",
]  # fmt: skip
TEXT = [
    "Describe this video in one sentence. system user assistant", "A red truck ahead brakes on a wet road at night.",
    "<0.3 seconds><12.8 seconds> 0 1 2 3 4 5 6 7 8 9", '{"caption": "a car", "count": 2, "tags": ["car"]}',
    "You are provided the following series of frames from a 0:00:04 [H:MM:SS] video. Frame from 00:01: User Assistant",
]  # fmt: skip
QWEN_TEMPLATE = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}
{%- for c in m.content -%}
{%- if c.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}{{ c.text }}{%- endif -%}
{%- endfor -%}
{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
FAMILIES = ("qwen3_vl", "qwen2_5_vl", "smolvlm")
SIZES = {"qwen3_vl": (64, 96), "qwen2_5_vl": (56, 84), "smolvlm": (64, 64)}
"""(height, width) at which each takes frames."""


def make_model(family: str, folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint of the family into `folder`, which is made."""
    import torch

    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    tokenizer = _tokenizer(SMOL_TOKENS if family == "smolvlm" else QWEN_TOKENS, family)
    model = {"qwen3_vl": _qwen3, "qwen2_5_vl": _qwen2_5, "smolvlm": _smolvlm}[family](tokenizer)
    end = tokenizer.eos_token_id
    model.generation_config.update(
        do_sample=False, temperature=None, top_p=None, top_k=None,
        eos_token_id=[end, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEO_CONFIGS[family]))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGE_CONFIGS[family]))
    if family == "smolvlm":
        (folder / "processor_config.json").write_text(
            json.dumps({"processor_class": "SmolVLMProcessor", "image_seq_len": 4})
        )
    return folder


VIDEO_CONFIGS = {
    "qwen3_vl": {
        "video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 4096, "longest_edge": 16 * 64 * 96}, "fps": 2, "min_frames": 4, "max_frames": 16,
        "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "cap_pixels_per_frame": False,
    },
    "qwen2_5_vl": {
        "video_processor_type": "Qwen2VLVideoProcessor", "processor_class": "Qwen2_5_VLProcessor",
        "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 84}, "fps": 2, "min_frames": 4, "max_frames": 16,
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "cap_pixels_per_frame": False,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
    "smolvlm": {
        "video_processor_type": "SmolVLMVideoProcessor", "processor_class": "SmolVLMProcessor",
        "size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 64}, "do_sample_frames": True,
        "video_sampling": {"fps": 1, "max_frames": 8, "video_size": {"longest_edge": 64}},
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    },
}  # fmt: skip
IMAGE_CONFIGS = {
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 4096, "longest_edge": 512 * 1024}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    },
    "qwen2_5_vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 1280},
    },
    "smolvlm": {
        "image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 64},
        "max_image_size": {"longest_edge": 64}, "do_image_splitting": False,
    },
}  # fmt: skip


def _tokenizer(special: list[str], family: str):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tok, eos_token=special[2], pad_token=special[0], additional_special_tokens=special[1:],
        model_max_length=32768, clean_up_tokenization_spaces=False,
        chat_template=None if family == "smolvlm" else QWEN_TEMPLATE,
    )  # fmt: skip


def _text_config(tokenizer, **extra) -> dict:
    return {
        "vocab_size": -(-len(tokenizer) // 64) * 64, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 32768, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.pad_token_id, "initializer_range": 0.25,
    } | extra  # fmt: skip


def _qwen_ids(tokenizer) -> dict:
    tid = tokenizer.convert_tokens_to_ids
    return {
        "image_token_id": tid("<|image_pad|>"), "video_token_id": tid("<|video_pad|>"),
        "vision_start_token_id": tid("<|vision_start|>"), "vision_end_token_id": tid("<|vision_end|>"),
        "tie_word_embeddings": False,
    }  # fmt: skip


def _qwen3(tokenizer):
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config=_text_config(tokenizer, rope_parameters=rope),
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
            "num_position_embeddings": 64, "initializer_range": 0.25, "deepstack_visual_indexes": [0],
        },
        **_qwen_ids(tokenizer),
    )  # fmt: skip
    return Qwen3VLForConditionalGeneration(config)


def _qwen2_5(tokenizer):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
    text = _text_config(tokenizer, rope_parameters=rope)
    text.pop("head_dim")
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
            "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1], "initializer_range": 0.25,
            "tokens_per_second": 2,
        },
        **_qwen_ids(tokenizer),
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config)


def _smolvlm(tokenizer):
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    config = SmolVLMConfig(
        text_config=_text_config(tokenizer, model_type="llama"),
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 64, "patch_size": 8, "initializer_range": 0.25,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), scale_factor=4, tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return SmolVLMForConditionalGeneration(config)


def some_frames(
    num_frames: int = 6, height: int = 64, width: int = 96, *, seed: int = 0, step: int = 10, fps: float = 25.0
) -> DecodedFrames:
    """Blobs that move: smooth pictures that differ by seed and by frame."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    data = np.empty((num_frames, height, width, 3), np.uint8)
    speed, phase = rng.uniform(2, 9, 3), rng.uniform(0, 60, 3)
    for frame in range(num_frames):
        for channel in range(3):
            wave = np.sin((x + y * (channel + 1) + phase[channel] + frame * speed[channel]) / rng.uniform(5, 15))
            data[frame, ..., channel] = np.clip(127 + 120 * wave, 0, 255)
    indices = np.arange(num_frames, dtype=np.int64) * step
    total = num_frames * step
    return DecodedFrames(
        data=data, pts_s=indices / fps, indices=indices, info=stream_info(width, height),
        stats=DecodeStats(backend="fake", seconds={"decode": 0.001}), duration_s=total / fps, fps=fps,
        total_num_frames=total,
    )  # fmt: skip


def stream_info(width: int, height: int) -> StreamInfo:
    """A plain H.264 clip of this size."""
    return StreamInfo(
        container="mp4", stream_index=0, codec="h264", profile="High", pix_fmt="yuv420p", bit_depth=8, chroma="4:2:0",
        has_alpha=False, coded_width=width, coded_height=height, width=width, height=height, rotation_deg=0,
        hflip=False, sample_aspect_ratio=Fraction(1), is_interlaced_from_header=False, colour_matrix="bt709",
        is_full_range=False, transfer="sdr", time_base=Fraction(1, 90000), start_ns_from_header=0,
        duration_s_from_header=None, fps_from_header=None, num_frames_from_header=None, has_b_frames=False,
        has_audio=False, size_bytes=None,
    )  # fmt: skip
