"""Qwen3-VL's stock video processor against itself made faster: `python patchify_cases.py` prints one JSON line.

Run where torchvision can be imported; with --declare-operators its compiled half may be of another build than torch.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import bfloat16, float32

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
CASES = {  # name: (shape of each video, options, dtype of the model, whether the fast way may be taken)
    "plain": ([(8, 64, 96)], {}, float32, True),
    "rounded once": ([(8, 64, 96)], {}, bfloat16, True),
    "an odd number of frames": ([(5, 64, 96)], {}, float32, True),
    "two videos": ([(4, 64, 96), (6, 96, 64)], {}, bfloat16, True),
    "a frame cap": ([(8, 64, 96)], {"cap_pixels_per_frame": True}, float32, True),
    "to be resized": ([(8, 70, 96)], {}, float32, False),
    "too large": ([(8, 640, 960)], {}, float32, False),
    "too large for the cap": ([(4, 640, 640)], {"cap_pixels_per_frame": True}, float32, False),
    "not normalised": ([(8, 64, 96)], {"do_normalize": False}, float32, False),
    "not resized": ([(8, 640, 960)], {"do_resize": False}, float32, True),
    "grey": ([(8, 64, 96)], {"image_mean": [0.5], "image_std": [0.5]}, float32, False),
}
SIZE = {"shortest_edge": 4096, "longest_edge": 16 * 256 * 256}


class Model:
    dtype = float32


class Context:
    """As vLLM's `InputProcessingContext`: asks the processor, then rounds to the model's dtype."""

    model_config = Model

    def call_hf_processor(self, processor, videos, **options):
        output = processor(videos, do_sample_frames=False, return_tensors="pt", size=SIZE, **options)
        return {name: x.to(self.model_config.dtype) if x.is_floating_point() else x for name, x in output.items()}


def videos_of(shapes):
    rng = np.random.default_rng(7)
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def answer(processor, case):
    shapes, options, dtype, _ = CASES[case]
    Model.dtype = dtype
    videos = videos_of(shapes)
    metadata = [
        {"total_num_frames": len(v), "fps": 2.0, "duration": len(v) / 2, "frames_indices": [*range(len(v))]}
        for v in videos
    ]
    try:
        return Context().call_hf_processor(processor, videos, video_metadata=metadata, **options)
    except Exception as error:
        return {"error": type(error).__name__}


def same(one, other):
    if one.keys() != other.keys() or "error" in one:
        return one == other
    return all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


def main():
    if "--declare-operators" in sys.argv:
        from hf_reference import declare_missing_operators

        declare_missing_operators()
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    from framefleet.vllm_plugin import fast_patchify

    processor = Qwen3VLVideoProcessor()
    stock = {case: answer(processor, case) for case in CASES}
    calls = []
    own = fast_patchify.patchify_pictures
    fast_patchify.patchify_pictures = lambda *a, **k: calls.append(1) or own(*a, **k)
    assert fast_patchify.speed_up(Qwen3VLVideoProcessor, Context)
    assert fast_patchify.speed_up(Qwen3VLVideoProcessor, Context), "again: nothing more"
    report = {}
    for case in CASES:
        calls.clear()
        fast = answer(processor, case)
        report[case] = {"same": same(stock[case], fast), "fast": bool(calls), "error": stock[case].get("error", "")}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
