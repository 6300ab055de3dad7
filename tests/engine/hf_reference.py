"""What transformers' own processors make of frames and prompts, and what the model then says.

    python tests/engine/hf_reference.py MODELS_FOLDER OUT.json

The stock video processors import torchvision, whose wheels link CUDA and do not load beside a CPU build of torch: the
two C++ operators that its Python part asks for at import are declared here (nothing calls them). Without OUT's folder
holding models they are made first. Recorded output: tests/engine/hf_golden.json.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_models import FAMILIES, SIZES, make_model, some_frames

CASES = {  # name: (frames, step, fps, prompt)
    "even": (6, 10, 25.0, "Describe this video in one sentence."),
    "odd": (5, 7, 29.97, "What happens?"),
    "three": (3, 12, 24.0, "Hi"),
    "long": (16, 60, 30.0, "Describe the video in detail: who, what, where."),
}


def declare_missing_operators() -> None:
    """Keep `import torchvision` alive where its compiled half is of another build."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_kept_alive"] = library


def reference(family: str, folder: Path) -> dict:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    return {name: _case(processor, model, family, case) for name, case in CASES.items()}


def _case(processor, model, family: str, case: tuple) -> dict:
    num_frames, step, fps, prompt = case
    height, width = SIZES[family]
    frames = some_frames(num_frames, height, width, seed=num_frames, step=step, fps=fps)
    messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": prompt}]}]
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    metadata = {
        "total_num_frames": frames.total_num_frames, "fps": fps, "duration": frames.duration_s,
        "frames_indices": frames.indices.tolist(),
    }  # fmt: skip
    inputs = processor(
        text=[text], videos=[frames.data], video_metadata=[metadata], do_sample_frames=False, return_tensors="pt"
    )
    pixels = inputs["pixel_values" if family == "smolvlm" else "pixel_values_videos"]
    with torch.inference_mode():
        said = model.generate(**inputs, max_new_tokens=16)[0, inputs["input_ids"].shape[1] :]
    return {
        "input_ids": inputs["input_ids"][0].tolist(),
        "prompt": processor.tokenizer.decode(inputs["input_ids"][0]),
        "pixels": digest(pixels),
        "grid": inputs["video_grid_thw"][0].tolist() if "video_grid_thw" in inputs else None,
        "seconds_per_grid": float(inputs["second_per_grid_ts"][0]) if "second_per_grid_ts" in inputs else None,
        "said": processor.tokenizer.decode(said, skip_special_tokens=True),
    }


def digest(pixels: torch.Tensor) -> str:
    """Of the float32 values in order."""
    return hashlib.blake2b(pixels.contiguous().numpy().tobytes(), digest_size=12).hexdigest()


def main(models: Path, out: Path) -> None:
    declare_missing_operators()
    for family in FAMILIES:
        if not (models / family).exists():
            make_model(family, models / family)
    result = {family: reference(family, models / family) for family in FAMILIES}
    out.write_text(json.dumps(result, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
