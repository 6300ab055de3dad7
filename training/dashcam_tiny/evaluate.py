"""Scores the model on unseen scenes: as they are, with frames shuffled, with red and blue swapped."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from model import read, see

from framefleet.scenes import sample_scene, truth
from framefleet.scenes.captions import ATTRIBUTES, attributes_of, caption_of, mean_score, parse_caption, score
from framefleet.scenes.truth import Truth

MAX_NEW_TOKENS = 90
MIRRORED = {
    "slows down": "speeds up", "slows and stops": "starts to move", "turns left": "turns right",
    "changes to the left lane": "changes to the right lane", "changes from red to green": "changes from green to red",
    "from left to right": "from right to left", "brakes": "pulls away", "overtakes": "falls behind",
}  # fmt: skip
MIRRORED |= {b: a for a, b in MIRRORED.items()}


@contextmanager
def weights(params: list[torch.Tensor], other: list[torch.Tensor]) -> Iterator[None]:
    """Runs the block with other weights."""
    kept = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, o in zip(params, other, strict=True):
            p.copy_(o)
    try:
        yield
    finally:
        with torch.no_grad():
            for p, k in zip(params, kept, strict=True):
                p.copy_(k)


@torch.no_grad()
def teacher_forced(model, clips: list, device: str, dtype) -> dict[str, float]:
    """Share of captions whose every token is the likeliest one: what greedy decoding would get exactly right."""
    exact = total = 0
    for shape in sorted({c.shape for c in clips}):
        group = [c for c in clips if c.shape == shape]
        for i in range(0, len(group), 125):
            part = group[i : i + 125]
            hidden, ids = _hidden(model, part, np.stack([c.frames for c in part]), device, dtype)
            said = model.lm_head(hidden).argmax(-1).cpu()
            for b, c in enumerate(part):
                s, n = int(c.starts[0]), int(c.lengths[0])
                exact += bool((said[b, s - 1 : n - 1] == ids[b, s:n]).all())
                total += 1
    return {"unseen": total, "unseen_exact": round(exact / max(total, 1), 4)}


def _hidden(model, part: list, frames: np.ndarray, device: str, dtype):
    longest = max(int(c.lengths[0]) for c in part)
    ids = torch.from_numpy(np.stack([c.ids[0, :longest] for c in part])).long()
    positions = (
        torch.from_numpy(np.stack([c.positions[0, :, :longest] for c in part])).long().transpose(0, 1).to(device)
    )
    with torch.autocast(device, dtype=dtype, enabled=device == "cuda"):
        visual, deep = see(model, torch.from_numpy(frames).to(device), dtype=dtype)
        return read(model, ids.to(device), positions, visual, deep), ids


@torch.no_grad()
def captions(model, tokenizer, part: list, frames: np.ndarray, device: str, dtype) -> list[str]:
    """Greedy captions for the prompt "general" (variant 0); the whole sequence is read for every token."""
    size = len(part)
    starts = torch.tensor([int(c.starts[0]) for c in part], device=device)
    longest = int(starts.max()) + MAX_NEW_TOKENS
    ids = torch.zeros(size, longest, dtype=torch.long, device=device)
    positions = torch.zeros(3, size, longest, dtype=torch.long, device=device)
    for b, c in enumerate(part):
        s = int(c.starts[0])
        ids[b, :s] = torch.from_numpy(c.ids[0, :s]).long()
        positions[:, b, :s] = torch.from_numpy(c.positions[0, :, :s]).long()
        positions[:, b, s:] = int(c.positions[0, 0, s - 1]) + 1 + torch.arange(longest - s)
    stop, row = tokenizer.token_to_id("<|im_end|>"), torch.arange(size, device=device)
    done = torch.zeros(size, dtype=torch.bool, device=device)
    with torch.autocast(device, dtype=dtype, enabled=device == "cuda"):
        visual, deep = see(model, torch.from_numpy(frames).to(device), dtype=dtype)
        for k in range(MAX_NEW_TOKENS):
            end = int(starts.max()) + k + 1
            hidden = read(model, ids[:, :end], positions[:, :, :end], visual, deep)
            token = model.lm_head(hidden[row, starts + k - 1]).argmax(-1)
            ids[row, starts + k] = torch.where(done, stop, token)
            done |= token == stop
            if bool(done.all()):
                break
    texts = []
    for b, s in enumerate(starts.tolist()):
        new = ids[b, s : s + MAX_NEW_TOKENS].tolist()
        texts.append(tokenizer.decode(new[: new.index(stop)] if stop in new else new))
    return texts


def _shuffled(frames: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.stack([clip[rng.permutation(len(clip))] for clip in frames])


def conditions(model, tokenizer, clips: dict, device: str, dtype, deadline: float) -> Iterator[dict]:
    """One entry per condition; stops early when the deadline passes."""
    model.eval()
    changes = {
        "as_is": lambda f, rng: f,
        "frames_shuffled": _shuffled,
        "red_blue_swapped": lambda f, rng: np.ascontiguousarray(f[..., ::-1]),
    }
    for name, change in changes.items():
        if time.monotonic() > deadline:
            yield {name: "not run: out of time"}
            continue
        rng = np.random.default_rng(11)
        pairs: list[tuple[Truth, str]] = []
        told: dict[int, str] = {}
        for shape in sorted({c.shape for c in clips.values()}):
            seeds = [s for s, c in sorted(clips.items()) if c.shape == shape]
            for i in range(0, len(seeds), 125):
                some = seeds[i : i + 125]
                part = [clips[s] for s in some]
                texts = captions(model, tokenizer, part, change(np.stack([c.frames for c in part]), rng), device, dtype)
                told |= dict(zip(some, texts, strict=True))
                pairs += [(sample_scene(s).truth, t) for s, t in zip(some, texts, strict=True)]
        yield {name: summary(pairs), f"{name}_captions": told}


def summary(pairs: list[tuple[Truth, str]]) -> dict:
    """Shares right, the chance level of each attribute, and how often the direction of a motion was told right."""
    rates = mean_score(score(t, text) for t, text in pairs)
    out: dict = {
        "scenes": len(pairs),
        "exact": round(sum(caption_of(t) == text for t, text in pairs) / len(pairs), 4),
        "right": {name: round(rates[name], 4) for name in ATTRIBUTES if name in rates},
        "chance": _chance(pairs),
        "direction_right_of_told": _direction(pairs),
        "right_where_order_decides": _order_decided(pairs),
    }
    seen = [(v, parse_caption(text).get(f"{v.where}.colour")) for t, text in pairs for v in t.vehicles]
    out["colour_right"] = {c: _share([said == c for v, said in seen if v.colour == c]) for c in truth.COLOURS}
    red_blue = [said == v.colour for v, said in seen if v.colour in ("red", "blue")]
    lit = [parse_caption(text)["traffic_light"] == t.traffic_light for t, text in pairs if t.traffic_light != "none"]
    out["colour_right_on_red_and_blue"], out["traffic_light_right_where_there"] = _share(red_blue), _share(lit)
    wrong = Counter(
        (k, v, parse_caption(text).get(k, "-"))
        for t, text in pairs
        for k, v in attributes_of(t).items()
        if parse_caption(text).get(k) != v
    )
    out["commonest_errors"] = [[*k, n] for k, n in wrong.most_common(12)]
    return out


def _share(right: list[bool]) -> float | None:
    return round(sum(right) / len(right), 4) if right else None


def _keyed(pairs: list[tuple[Truth, str]]) -> dict[str, list[tuple[str, str]]]:
    """(true, said) per attribute; vehicle attributes pooled over places."""
    found: dict[str, list[tuple[str, str]]] = {}
    for t, text in pairs:
        said = parse_caption(text)
        for key, value in attributes_of(t).items():
            name = f"vehicle_{key.rpartition('.')[2]}" if "." in key else key
            found.setdefault(name, []).append((value, said.get(key, "-")))
    return found


def _chance(pairs: list[tuple[Truth, str]]) -> dict[str, float]:
    """What the same answers would score if they were dealt to the scenes at random."""
    out = {}
    for name, told in _keyed(pairs).items():
        real, said = Counter(a for a, _ in told), Counter(b for _, b in told)
        out[name] = round(sum(n * said[v] for v, n in real.items()) / len(told) ** 2, 4)
    return out


def _direction(pairs: list[tuple[Truth, str]]) -> dict[str, float | None]:
    """Of the motions told as themselves or as their time reversal, the share told as themselves; 0.5 is chance."""
    out = {}
    for name, told in _keyed(pairs).items():
        hits = [a == b for a, b in told if a in MIRRORED and b in (a, MIRRORED[a])]
        if hits:
            out[name] = _share(hits)
    return out


def _order_decided(pairs: list[tuple[Truth, str]]) -> dict[str, float | None]:
    """Shares right over the true values that are another value played backwards."""
    told = {name: [a == b for a, b in values if a in MIRRORED] for name, values in _keyed(pairs).items()}
    return {name: _share(right) for name, right in told.items() if right}


def recount(folder: Path) -> None:
    """Rewrites the figures of `folder`/result.json from the captions beside it."""
    path = folder / "result.json"
    result = json.loads(path.read_text()) if path.is_file() else {}
    for name in ("as_is", "frames_shuffled", "red_blue_swapped"):
        told = json.loads((folder / f"{name}_captions.json").read_text())
        result[name] = summary([(sample_scene(int(seed)).truth, text) for seed, text in told.items()])
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    recount(Path(sys.argv[1]))
