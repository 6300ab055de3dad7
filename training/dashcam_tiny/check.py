"""Checks the fast training forward and the sequences against transformers' own, on random weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from clips import training_clip
from model import build, patchify, read, see
from text import SequenceMaker, make_tokenizer


@torch.no_grad()
def main() -> None:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    model = build(tokenizer.token_to_id).eval()
    maker = SequenceMaker(tokenizer)
    for seed, shape in ((10_000_001, 0), (10_000_002, 1), (10_000_003, 4)):
        c = training_clip(seed, maker, shape)
        n = int(c.lengths[1])
        ids, positions = (
            torch.from_numpy(c.ids[1:2, :n]).long(),
            torch.from_numpy(c.positions[1:2, :, :n]).long().transpose(0, 1),
        )
        frames = torch.from_numpy(c.frames)[None]
        visual, deep = see(model, frames)
        mine = model.lm_head(read(model, ids, positions, visual, deep))
        t, h, w, _ = c.frames.shape
        kinds = torch.where(ids == model.config.video_token_id, 2, 0).int()
        theirs = model(
            input_ids=ids, pixel_values_videos=patchify(frames)[0].flatten(0, 1), mm_token_type_ids=kinds,
            video_grid_thw=torch.tensor([[t // 2, h // 16, w // 16]]), attention_mask=torch.ones_like(ids),
        ).logits  # fmt: skip
        error = float((mine - theirs).norm() / theirs.norm())
        print(f"shape {shape}: relative difference {error:.2e}")
        if not np.isfinite(error) or error > 1e-4:
            raise SystemExit("the fast forward differs from transformers'")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.3f} M parameters")


if __name__ == "__main__":
    main()
