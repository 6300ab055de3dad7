"""Scores a model folder on unseen scenes with transformers' own `generate`, on a CPU or a GPU.

    python score.py ../../src/framefleet/models/dashcam_tiny run/ --scenes 500

Every scene is drawn, encoded, decoded, sampled and captioned three times: as it is, with its frames shuffled, with red
and blue swapped. Captions are written as they come, and a second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import time
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import evaluate
from clips import true_clip
from model import PATCH, patchify
from text import SequenceMaker

CHANGES = {
    "as_is": lambda frames, seed: frames,
    "frames_shuffled": lambda frames, seed: frames[np.random.default_rng(seed).permutation(len(frames))],
    "red_blue_swapped": lambda frames, seed: np.ascontiguousarray(frames[..., ::-1]),
}


@torch.inference_mode()
def captions(model, tokenizer: Tokenizer, clips: list, frames: list[np.ndarray]) -> list[str]:
    """Greedy captions of clips whose prompts (variant 0) are equally long."""
    start = int(clips[0].starts[0])
    ids = torch.from_numpy(np.stack([c.ids[0, :start] for c in clips])).long().to(model.device)
    t, h, w, _ = frames[0].shape
    pixels = torch.cat([patchify(torch.from_numpy(f)[None])[0].flatten(0, 1) for f in frames])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=2 * (ids == model.config.video_token_id).int(),
        pixel_values_videos=pixels.to(model.device),
        video_grid_thw=torch.tensor([[t // 2, h // PATCH, w // PATCH]] * len(clips), device=model.device),
    )
    return [tokenizer.decode(row.tolist()) for row in out[:, start:]]


def made(seed: int, maker: SequenceMaker, kept: Path | None):
    """The clip of a seed, from the folder `kept` where it is there."""
    path = kept / f"{seed}.pickle" if kept else None
    if path and path.is_file():
        return pickle.loads(path.read_bytes())  # our own file
    clip = true_clip(seed, maker)[0]
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(clip))
    return clip


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("model")
    ask.add_argument("out")
    ask.add_argument("--scenes", type=int, default=500)
    ask.add_argument("--changed-scenes", type=int, help="how many of them are also shuffled and swapped; default all")
    ask.add_argument("--batch", type=int, default=16)
    ask.add_argument("--keep", help="folder that keeps the decoded clips between calls")
    ask.add_argument("--draw-only", action="store_true", help="fill the folder of --keep and stop")
    a = ask.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    folder, out = Path(a.model), Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    maker, kept = SequenceMaker(tokenizer), Path(a.keep) if a.keep else None
    if a.draw_only:
        for seed in range(a.scenes):
            made(seed, maker, kept)
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    for name, change in CHANGES.items():
        count = a.scenes if name == "as_is" else (a.changed_scenes or a.scenes)
        file = out / f"{name}_captions.json"
        told = json.loads(file.read_text()) if file.is_file() else {}
        missing = [seed for seed in range(count) if str(seed) not in told]
        for i in range(0, len(missing), 2 * a.batch):
            groups = defaultdict(list)
            for seed in missing[i : i + 2 * a.batch]:
                clip = made(seed, maker, kept)
                groups[clip.shape, int(clip.starts[0])].append((seed, clip))
            for group in groups.values():
                seeds, clips = zip(*group, strict=True)
                frames = [change(c.frames, s) for s, c in group]
                told |= dict(zip(map(str, seeds), captions(model, tokenizer, list(clips), frames), strict=True))
            file.write_text(json.dumps(told, indent=0))
            print(f"{time.strftime('%H:%M:%S')} {name} {len(told)}/{count}", flush=True)
    evaluate.recount(out)


if __name__ == "__main__":
    main()
