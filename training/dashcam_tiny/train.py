"""Trains dashcam_tiny within a time budget, and evaluates it in the same run.

    python train.py --out OUT --minutes 9          on a GPU with 15 spare cores
    python train.py --out /tmp/x --smoke           a rehearsal on a CPU, under two minutes

Writes OUT/weights.safetensors (bfloat16, the average of the run) and its tokenizer.json as it goes, OUT/log.jsonl and
OUT/result.json.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import evaluate
from clips import HEADS, NUM_CELL_CLASSES, NUM_MOTION, SHAPES_TRAINED
from feed import Feed
from model import build, read, see
from text import make_tokenizer

TRAIN_SEED, EVAL_SEEDS = 10_000_000, range(500)


def settings() -> argparse.Namespace:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--out", required=True)
    ask.add_argument("--minutes", type=float, default=9.0, help="the whole run, evaluation included")
    ask.add_argument("--workers", type=int, default=14)
    ask.add_argument("--batch", type=int, default=256)
    ask.add_argument("--lr", type=float, default=1.0e-3)
    ask.add_argument("--capacity", type=int, default=30_000, help="clips kept on the device")
    ask.add_argument("--first-clips", type=int, default=2500, help="clips to wait for before the first step")
    ask.add_argument("--eval-clips", type=int, default=500)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--init", help="weights.safetensors to start from")
    ask.add_argument("--smoke", action="store_true")
    a = ask.parse_args()
    if a.smoke:
        a.minutes, a.workers, a.batch, a.capacity, a.first_clips, a.eval_clips = 0.6, 2, 4, 200, 20, 2
    return a


class Aux(nn.Module):
    """Training-only readings of the inner states: attributes, what each visual token shows, how things move."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sizes = [len(classes) for classes in HEADS.values()]
        self.attributes = nn.Sequential(nn.Linear(width, 512), nn.GELU(), nn.Linear(512, sum(self.sizes)))
        self.cells = nn.Linear(width, NUM_CELL_CLASSES)
        self.motion = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, NUM_MOTION))


def batch_of(ring, size: int, rng: np.random.Generator, device: str) -> dict:
    rows, variants = rng.integers(ring.filled, size=size), rng.integers(ring.ids.shape[1], size=size)
    starts, lengths = ring.starts[rows, variants], ring.lengths[rows, variants]
    longest = int(-(-lengths.max() // 16) * 16)
    r, v = (torch.from_numpy(x).to(device) for x in (rows, variants))
    at = np.concatenate(
        [np.arange(s - 1, n - 1) + b * longest for b, (s, n) in enumerate(zip(starts, lengths, strict=True))]
    )
    return {
        "frames": ring.frames[r],
        "ids": ring.ids[r, v, :longest].long(),
        "positions": ring.positions[r, v, :, :longest].long().transpose(0, 1),
        "heads": ring.heads[r].long(),
        "cells": ring.cells[r].long(),
        "motion": ring.motion[r],
        "answers": torch.from_numpy(at).to(device),
        "prompt_ends": torch.from_numpy(starts - 1 + np.arange(size) * longest).to(device),
    }


def losses(model, aux: Aux, batch: dict, dtype, *, augment: bool = True) -> dict[str, torch.Tensor]:
    size, device = len(batch["ids"]), batch["ids"].device
    gain = 1 + 0.06 * torch.randn(size, device=device) if augment else None
    bias = 0.05 * torch.randn(size, device=device) if augment else None
    visual, deep = see(model, batch["frames"], gain, bias, dtype)
    hidden = read(model, batch["ids"], batch["positions"], visual, deep)
    flat = hidden.reshape(-1, hidden.shape[-1])
    targets = batch["ids"].reshape(-1)[batch["answers"] + 1]
    logits = model.lm_head(flat[batch["answers"]]).float()
    out = {"words": F.cross_entropy(logits, targets)}
    with torch.no_grad():
        right = (logits.argmax(-1) == targets).float()
        owner = batch["answers"] // batch["ids"].shape[1]
        wrong = torch.zeros(size, device=device).index_add_(0, owner, 1 - right)
        out["exact"] = (wrong == 0).float().mean()
    parts = aux.attributes(flat[batch["prompt_ends"]]).float().split(aux.sizes, dim=1)
    out["heads"] = sum(F.cross_entropy(p, batch["heads"][:, i]) for i, p in enumerate(parts)) / len(parts)
    weights = torch.full((NUM_CELL_CLASSES,), 1.0, device=device)
    weights[0] = 0.15
    out["cells"] = F.cross_entropy(
        aux.cells(visual).float().reshape(-1, NUM_CELL_CLASSES), batch["cells"].reshape(-1), weights
    )
    last = flat[(batch["ids"].reshape(-1) == model.config.video_token_id).nonzero().squeeze(1)].view(*visual.shape)[
        :, :, -1
    ]
    known = torch.isfinite(batch["motion"])
    error = F.smooth_l1_loss(aux.motion(last).float(), batch["motion"].nan_to_num(), reduction="none")
    out["motion"] = (error * known).sum() / known.sum()
    out["loss"] = out["words"] * 4 + out["heads"] * 1.0 + out["cells"] * 0.5 + out["motion"] * 1.0
    return out


def facts() -> dict:
    def said(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.strip()[:80]

    import transformers

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    driver = (
        said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if torch.cuda.is_available() else ""
    )
    return {
        "card": card,
        "driver": driver,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def save(model, average: list[torch.Tensor], path: Path) -> None:
    """The averaged weights in bfloat16, under transformers' names."""
    names = [n for n, _ in model.named_parameters()]
    half = path.with_suffix(".part")
    save_file(
        {n: p.to(torch.bfloat16).cpu().contiguous() for n, p in zip(names, average, strict=True)},
        half,
        metadata={"format": "pt"},
    )
    half.replace(path)


def main() -> None:
    a = settings()
    began = time.monotonic()
    out = Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    log = (out / "log.jsonl").open("w")

    def note(**entry) -> None:
        line = json.dumps({"s": round(time.monotonic() - began, 1), **entry})
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    feed = Feed(
        workers=a.workers, capacity=a.capacity, device=device, first_seed=TRAIN_SEED,
        eval_seeds=list(EVAL_SEEDS)[: a.eval_clips], eval_workers=max(1, a.workers // 3),
    )  # fmt: skip
    try:
        run(a, feed, note, began, out, device, dtype)
    finally:
        feed.stop()
        log.close()


def run(a, feed: Feed, note, began: float, out: Path, device: str, dtype) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save(str(out / "tokenizer.json"))
    model = build(tokenizer.token_to_id, tiny=a.smoke).to(device)
    if a.init:
        model.load_state_dict(load_file(a.init), strict=True)
    aux = Aux(model.config.text_config.hidden_size).to(device)
    note(**facts(), parameters=sum(p.numel() for p in model.parameters()), settings=vars(a))
    params = list(model.parameters())
    average = [p.detach().clone() for p in params]
    decayed = [p for p in [*params, *aux.parameters()] if p.ndim > 1]
    plain = [p for p in [*params, *aux.parameters()] if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=a.lr, betas=(0.9, 0.98), fused=device == "cuda",
    )  # fmt: skip
    feed.wait(a.first_clips, 90)
    reserve_s = 0.22 * a.minutes * 60 if a.minutes < 5 else 60.0
    start, end = time.monotonic(), began + a.minutes * 60 - reserve_s
    note(first_clips=feed.seen, evaluation_clips=len(feed.evaluation))
    rng = np.random.default_rng(a.seed)
    step, shown, saved = 0, time.monotonic(), time.monotonic()
    shares = np.array([s for *_, s in SHAPES_TRAINED])
    while (now := time.monotonic()) < end:
        share = (now - start) / (end - start)
        rate = a.lr * min(1, (step + 1) / 250) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        ready = shares * [min(1.0, r.filled / 64) for r in feed.rings]
        ring = feed.rings[int(rng.choice(len(shares), p=ready / ready.sum()))]
        batch = batch_of(ring, a.batch, rng, device)
        with torch.autocast(device, dtype=dtype, enabled=device == "cuda"):
            found = losses(model, aux, batch, dtype)
        optimizer.zero_grad(set_to_none=True)
        found["loss"].backward()
        norm = nn.utils.clip_grad_norm_([*params, *aux.parameters()], 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, params, 1 - min(0.998, (1 + step) / (20 + step)))
        step += 1
        if now - shown > (8 if not a.smoke else 3) or step == 1:
            shown = now
            values = {k: round(float(v.detach()), 4) for k, v in found.items()}
            note(
                step=step,
                fresh=feed.seen,
                drawn=step * a.batch,
                shape=ring.shape,
                lr=round(rate, 6),
                norm=round(float(norm), 2),
                **values,
            )
        if now - saved > 60:
            saved = now
            save(model, average, out / "weights.safetensors")
            with evaluate.weights(params, average):
                note(step=step, **evaluate.teacher_forced(model, list(feed.evaluation.values())[:250], device, dtype))
    save(model, average, out / "weights.safetensors")
    note(step=step, fresh=feed.seen, drawn=step * a.batch, evaluation_clips=len(feed.evaluation), phase="evaluate")
    with torch.no_grad():
        for p, mean in zip(params, average, strict=True):
            p.copy_(mean.to(torch.bfloat16).to(p.dtype))
    result = {
        "facts": facts(),
        "settings": vars(a),
        "steps": step,
        "fresh_clips": feed.seen,
        "clips_drawn": step * a.batch,
    }
    for line in evaluate.conditions(
        model, tokenizer, dict(feed.evaluation), device, dtype, deadline=began + a.minutes * 60 - 5
    ):
        for name in [n for n in line if n.endswith("_captions")]:
            (out / f"{name}.json").write_text(json.dumps(line.pop(name), indent=0))
        result |= line
        (out / "result.json").write_text(json.dumps(result, indent=1))
        note(**line)


if __name__ == "__main__":
    main()
