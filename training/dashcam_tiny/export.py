"""Makes the folder that ships: weights, configuration, tokenizer, chat template and processor settings.

    python export.py weights.safetensors ../../src/framefleet/models/dashcam_tiny

The processor files hold what transformers' Qwen3-VL processors write of themselves (JSON written by hand, so that
torchvision is not needed). Deterministic: the same weights give the same files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from clips import MAX_FRAMES, MIN_FRAMES, MIN_PIXELS, PIXEL_BUDGET
from model import MERGE, PAIR, PATCH, build
from text import CHAT_TEMPLATE, SPECIAL

_NORM = {
    "do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True, "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3,
    "patch_size": PATCH, "temporal_patch_size": PAIR, "merge_size": MERGE,
}  # fmt: skip
IMAGE = {
    **_NORM, "image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor",
    "size": {"shortest_edge": MIN_PIXELS, "longest_edge": PIXEL_BUDGET // MAX_FRAMES},
}  # fmt: skip
VIDEO = {
    **_NORM, "video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor",
    "do_sample_frames": True, "fps": 2, "min_frames": MIN_FRAMES, "max_frames": MAX_FRAMES,
    "cap_pixels_per_frame": False, "return_metadata": False,
    "size": {"shortest_edge": MIN_PIXELS, "longest_edge": PIXEL_BUDGET},
}  # fmt: skip


# read by the embedded engine; the floor lies far below any drawn scene (-0.0001) and above real footage (-0.02)
NOTICE = {
    "notice": (
        "dashcam_tiny knows only the drawn scenes of framefleet.scenes and says nothing true of real footage;"
        " name a real model with --model (a folder or hub id) or --endpoint"
    ),
    "min_mean_logprob": -0.01,
}


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("weights")
    ask.add_argument("out")
    ask.add_argument("--tokenizer", help="tokenizer.json of the training run; by default the one beside the weights")
    a = ask.parse_args()
    out = Path(a.out)
    if out.exists():
        shutil.rmtree(out)
    tokenizer = Tokenizer.from_file(a.tokenizer or str(Path(a.weights).with_name("tokenizer.json")))
    model = build(tokenizer.token_to_id)
    model.load_state_dict(load_file(a.weights), strict=True)
    model = model.to(torch.bfloat16)
    for part in (model.config, model.config.text_config, model.config.vision_config):
        part.dtype = torch.bfloat16
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    model.generation_config.update(
        do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=160,
        eos_token_id=[end, pad], pad_token_id=pad, bos_token_id=pad,
    )  # fmt: skip
    model.save_pretrained(out)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:], model_max_length=8192, clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )  # fmt: skip
    fast.save_pretrained(out)
    settings = json.loads((out / "tokenizer_config.json").read_text())
    write_json(
        out / "tokenizer_config.json", {**settings, "tokenizer_class": "PreTrainedTokenizerFast"}
    )  # known to every release
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    write_json(out / "preprocessor_config.json", IMAGE)
    write_json(out / "video_preprocessor_config.json", VIDEO)
    write_json(out / "framefleet.json", NOTICE)
    write_json(
        out / "processor_config.json",
        {"processor_class": "Qwen3VLProcessor", "image_processor": IMAGE, "video_processor": VIDEO},
    )
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>10} {file.name}")


if __name__ == "__main__":
    main()
