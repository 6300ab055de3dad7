"""A model folder of Qwen3-VL-8B's shape without weights, for `--load-format dummy`: the work of it, random words.

    python benchmarks/card/model_8b.py OUT

Tokenizer and chat template are the bundled model's; clips are sampled and sized as Qwen3-VL does it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from framefleet.engine.embedded.checkpoint import bundled_folder

FILES = ("chat_template.jinja", "tokenizer.json")
TEXT = {
    "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 262144,
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151936,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_theta": 5000000.0, "rope_type": "default",
    },
}  # fmt: skip
VISION = {
    "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
    "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 4096,
}  # fmt: skip
VIDEO = {"size": {"shortest_edge": 65536, "longest_edge": 9437184}, "min_frames": 4, "max_frames": 768}
IMAGE = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "image_processor_type": "Qwen2VLImageProcessor"}


def changes() -> dict[str, dict]:
    """File -> what is otherwise than in the bundled model's. Dicts are merged."""
    return {
        "config.json": {"text_config": TEXT, "vision_config": VISION},
        "generation_config.json": {"max_new_tokens": None},
        "tokenizer_config.json": {"model_max_length": 262144},
        "preprocessor_config.json": IMAGE,
        "video_preprocessor_config.json": VIDEO,
        "processor_config.json": {"image_processor": IMAGE, "video_processor": VIDEO},
    }


def merged(base: dict, change: dict) -> dict:
    """`change` over `base`, a level down too; None takes a name away."""
    found = base | {
        name: base[name] | value if isinstance(value, dict) and name.endswith(("_config", "_processor")) else value
        for name, value in change.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def write_model(out: Path) -> None:
    source = bundled_folder()
    out.mkdir(parents=True)
    for name in FILES:
        shutil.copy(source / name, out / name)
    for name, change in changes().items():
        (out / name).write_text(json.dumps(merged(json.loads((source / name).read_text()), change), indent=1) + "\n")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
