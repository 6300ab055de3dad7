"""The architecture, and a fast way to run it in training.

The weights live in transformers' own Qwen3VLForConditionalGeneration. Its forward loops over clips in Python (frame
pairs, rope positions), which a large batch of equal clips does not need: `hidden_states` runs the same modules on
whole batches and is checked equal to the original in `check.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from text import VOCAB_SIZE
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

PATCH, MERGE, PAIR = 16, 2, 2


def _settings(**values):
    return values


def build(token_id, *, tiny: bool = False) -> Qwen3VLForConditionalGeneration:
    """A fresh model in float32. `token_id` maps a special token to its id; `tiny` is for rehearsals."""
    end, pad = token_id("<|im_end|>"), token_id("<|endoftext|>")
    text = _settings(
        vocab_size=VOCAB_SIZE, hidden_size=256, intermediate_size=416, num_hidden_layers=2 if tiny else 5,
        num_attention_heads=8, num_key_value_heads=4, head_dim=32, max_position_embeddings=8192,
        rope_parameters=_settings(
            rope_type="default", rope_theta=10000.0, mrope_section=[6, 5, 5], mrope_interleaved=True,
        ),
        eos_token_id=end, pad_token_id=pad, bos_token_id=pad,
        dtype="float32", initializer_range=0.02, tie_word_embeddings=False,
    )  # fmt: skip
    vision = _settings(
        depth=2 if tiny else 6, hidden_size=160, intermediate_size=512, num_heads=5, out_hidden_size=256,
        patch_size=PATCH, temporal_patch_size=PAIR, spatial_merge_size=MERGE, num_position_embeddings=256,
        initializer_range=0.02,
        deepstack_visual_indexes=[1 if tiny else 3],
    )  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision,
        image_token_id=token_id("<|image_pad|>"), video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"), vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    return Qwen3VLForConditionalGeneration(config).float()


def patchify(
    frames: torch.Tensor, gain: torch.Tensor | None = None, bias: torch.Tensor | None = None, dtype=torch.float32
) -> torch.Tensor:
    """uint8 `[B, T, H, W, 3]` to normalized patches `[B, T/2, P, 1536]`, in the processor's order.

    `gain [B]` and `bias [B]` change contrast and brightness, for augmentation.
    """
    b, t, h, w, c = frames.shape
    x = frames.view(b, t // PAIR, PAIR, h // PATCH // MERGE, MERGE, PATCH, w // PATCH // MERGE, MERGE, PATCH, c)
    x = x.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8).reshape(b, t // PAIR, (h // PATCH) * (w // PATCH), -1)
    x = x.to(dtype) / 127.5 - 1.0
    if gain is not None:
        x = x * gain.to(dtype).view(-1, 1, 1, 1) + bias.to(dtype).view(-1, 1, 1, 1)
    return x


def patch_grid(rows: int, columns: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of every patch `[P]`, merge blocks together."""
    r = torch.arange(rows, device=device).view(rows // MERGE, 1, MERGE, 1).expand(-1, columns // MERGE, -1, MERGE)
    c = torch.arange(columns, device=device).view(1, columns // MERGE, 1, MERGE).expand(rows // MERGE, -1, MERGE, -1)
    return r.reshape(-1), c.reshape(-1)


def _position_embedding(visual, r: torch.Tensor, c: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The learned square grid, read bilinearly at the patches' places (corners aligned)."""
    side = int(visual.config.num_position_embeddings**0.5)
    y, x = r * (side - 1) / max(rows - 1, 1), c * (side - 1) / max(columns - 1, 1)
    y0, x0 = y.floor().long(), x.floor().long()
    y1, x1 = (y0 + 1).clamp(max=side - 1), (x0 + 1).clamp(max=side - 1)
    fy, fx = (y - y0)[:, None], (x - x0)[:, None]
    e = visual.pos_embed.weight
    return (
        e[y0 * side + x0] * (1 - fy) * (1 - fx) + e[y0 * side + x1] * (1 - fy) * fx
        + e[y1 * side + x0] * fy * (1 - fx) + e[y1 * side + x1] * fy * fx
    )  # fmt: skip


def _rotary(visual, r: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    head = visual.config.hidden_size // visual.config.num_heads
    inverse = 1.0 / (10000.0 ** (torch.arange(0, head // 2, 2, device=r.device).float() / (head // 2)))
    angles = torch.cat([r[:, None] * inverse, c[:, None] * inverse], dim=-1)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def see(
    model, frames: torch.Tensor, gain=None, bias=None, dtype=torch.float32
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Visual tokens `[B, T/2, N, D]` of equal clips, and the deep-stack features of the same shape."""
    visual = model.model.visual
    b, t, h, w, _ = frames.shape
    rows, columns = h // PATCH, w // PATCH
    r, c = patch_grid(rows, columns, frames.device)
    proj = visual.patch_embed.proj
    x = F.linear(patchify(frames, gain, bias, dtype), proj.weight.view(proj.weight.shape[0], -1), proj.bias)
    x = (x + _position_embedding(visual, r, c, rows, columns).to(x.dtype)).flatten(0, 1)
    cos, sin = _rotary(visual, r, c)
    deep = []
    for i, block in enumerate(visual.blocks):
        x = x + _attend(block.attn, block.norm1(x), cos, sin)
        x = x + block.mlp(block.norm2(x))
        if i in visual.config.deepstack_visual_indexes:
            deep.append(visual.deepstack_merger_list[len(deep)](x))
    shape = (b, t // PAIR, rows * columns // MERGE**2, -1)
    return visual.merger(x).view(shape), [d.view(shape) for d in deep]


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def _attend(attn, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    n, p, d = x.shape
    q, k, v = attn.qkv(x).view(n, p, 3, attn.num_heads, -1).unbind(2)
    cos, sin = cos[:, None].to(q.dtype), sin[:, None].to(q.dtype)
    q, k = (t * cos + _half_turned(t) * sin for t in (q, k))
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return attn.proj(out.transpose(1, 2).reshape(n, p, d))


def read(
    model, ids: torch.Tensor, positions: torch.Tensor, visual: torch.Tensor, deep: list[torch.Tensor]
) -> torch.Tensor:
    """Final hidden states `[B, L, D]`; `ids [B, L]`, `positions [3, B, L]`, padding on the right only."""
    language = model.model.language_model
    hidden = language.embed_tokens(ids).to(visual.dtype)
    at = (ids.reshape(-1) == model.config.video_token_id).nonzero().squeeze(1)
    flat = hidden.reshape(-1, hidden.shape[-1])
    hidden = flat.index_copy(0, at, visual.reshape(-1, flat.shape[1])).view_as(hidden)
    rope = language.rotary_emb(hidden, positions)
    for i, layer in enumerate(language.layers):
        hidden = layer(hidden, attention_mask=None, position_embeddings=rope)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        if i < len(deep):
            add = deep[i].reshape(-1, hidden.shape[-1]).to(hidden.dtype)
            hidden = hidden.reshape(-1, hidden.shape[-1]).index_add(0, at, add).view_as(hidden)
    return language.norm(hidden)
