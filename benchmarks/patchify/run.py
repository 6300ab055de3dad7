"""Qwen3-VL's video processor as it is, and with its last steps in one pass. Prints one JSON line last.

    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/patchify/run.py

16 frames of 1024x576 that already have the model's size, CPU seconds of one thread from the call to tensors of the
model's dtype, as vLLM's API server has it for every clip. The two take turns; outputs are compared first.
"""

import json
import statistics
import sys
import time

import numpy as np
import torch
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from framefleet.vllm_plugin.fast_patchify import speed_up

TURNS = 15
SIZE = {"shortest_edge": 65536, "longest_edge": 9437184}
METADATA = {"total_num_frames": 600, "fps": 30.0, "duration": 20.0, "frames_indices": [*range(0, 600, 40), 599]}


class Stock(Qwen3VLVideoProcessor):
    """Untouched: the faster one is a class of its own."""


class Fast(Qwen3VLVideoProcessor):
    """To be made faster."""


class Context:
    """As vLLM's `InputProcessingContext`: rounds what the processor gives to the model's dtype."""

    class model_config:  # noqa: N801 - vLLM's name
        dtype = torch.bfloat16

    def call_hf_processor(self, processor, frames):
        done = processor([frames], do_sample_frames=False, return_tensors="pt", video_metadata=[METADATA])
        return done["pixel_values_videos"].to(self.model_config.dtype)


def main():
    torch.set_num_threads(1)
    frames = np.random.default_rng(0).integers(0, 256, (16, 576, 1024, 3), dtype=np.uint8)
    arms = {"stock": (Context(), Stock(size=SIZE))}
    fast_context = type("FastContext", (Context,), {})
    assert speed_up(Fast, fast_context)
    arms["one_pass"] = (fast_context(), Fast(size=SIZE))
    first = {name: context.call_hf_processor(processor, frames) for name, (context, processor) in arms.items()}
    assert torch.equal(first["stock"], first["one_pass"]), "the two must agree to the bit"
    samples = {name: [] for name in arms}
    for turn in range(TURNS):
        for name in sorted(arms, reverse=turn % 2 == 1):
            context, processor = arms[name]
            started = time.process_time()
            context.call_hf_processor(processor, frames)
            samples[name].append(round(time.process_time() - started, 4))
    medians = {f"{name}_cpu_ms": round(statistics.median(times) * 1e3, 1) for name, times in samples.items()}
    speed_up_x = round(medians["stock_cpu_ms"] / medians["one_pass_cpu_ms"], 2)
    print(
        json.dumps({"headline": {**medians, "x_stock": speed_up_x}, "samples_s": samples, "torch": torch.__version__})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
