"""Training examples: scenes drawn, encoded, decoded, sampled and resized as in serving, with their targets.

A clip's frames are those that Qwen3-VL's rule takes (`sampled_indices`); for speed only these are drawn and encoded,
mostly near the model's size. `true_clip` goes the whole way instead: every frame, 480p to 1080p, into a file.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import av
import cv2
import numpy as np
from text import SequenceMaker, answer_of, pair_stamps_s, sample_prompt

from framefleet.engine.prompts import PROMPTS
from framefleet.scenes import sample_scene, truth
from framefleet.scenes.drawing import CAMERA_HEIGHT_M, FOCAL_PER_HEIGHT, HORIZON, frame_times_s, render_at
from framefleet.scenes.encode import ClipFormat, encode_frames
from framefleet.scenes.motion import motion_of
from framefleet.scenes.truth import Scene
from framefleet.scenes.world import SHAPES

PIXEL_BUDGET, MIN_PIXELS, FACTOR = 760_960, 4096, 32
MIN_FRAMES = MAX_FRAMES = 16
MAX_TOKENS, VARIANTS = 768, 4
SOURCES = ((854, 480), (640, 480), (960, 540), (1280, 720), (1920, 1080))
SOURCE_SHARE = (0.42, 0.16, 0.2, 0.15, 0.07)
RATES = (10, 12, 15, 24, 25, 30)
# frames, aspect of the source, share of the training clips: the shipped rule, and the counts that Qwen3-VL's own
# default rule (two a second, at least four) gives for clips of 4 to 16 s
SHAPES_TRAINED = (
    (16, (16, 9), 0.68),
    (16, (4, 3), 0.12),
    (8, (16, 9), 0.05),
    (12, (16, 9), 0.05),
    (24, (16, 9), 0.05),
    (32, (16, 9), 0.05),
)
SLOT_PARTS = ("colour", "kind", "action")


def model_size(num_frames: int, height: int, width: int) -> tuple[int, int]:
    """Height and width by smart_resize (transformers, video_processing_qwen3_vl) with this model's budget."""
    h, w = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if num_frames * h * w > PIXEL_BUDGET:
        beta = math.sqrt(num_frames * height * width / PIXEL_BUDGET)
        h, w = (max(FACTOR, math.floor(v / beta / FACTOR) * FACTOR) for v in (height, width))
    return h, w


def sampled_indices(total: int, num_frames: int) -> np.ndarray:
    """Rows `[T]` of a clip of `total` frames, as Qwen3VLVideoProcessor.sample_frames picks them."""
    return np.linspace(0, total - 1, min(num_frames, total)).round().astype(int)


SHAPE_KEYS = [(n, *model_size(n, ah * 80, aw * 80)) for n, (aw, ah), _ in SHAPES_TRAINED]


def heads() -> dict[str, tuple[str, ...]]:
    """What the training-only attribute heads predict, and their classes."""
    out = {name: getattr(truth, values) for name, values in (
        ("light", "LIGHTS"), ("weather", "WEATHERS"), ("road", "ROADS"), ("lanes", "LANES"),
        ("traffic_light", "TRAFFIC_LIGHTS"), ("pedestrian", "PEDESTRIANS"), ("ego", "EGO_ACTIONS"))}  # fmt: skip
    for where in truth.WHERES:
        out |= {
            f"{where}.colour": ("none", *truth.COLOURS),
            f"{where}.kind": ("none", *truth.KINDS),
            f"{where}.action": ("none", *truth.actions_at(where)),
        }
    return out


HEADS = heads()


def head_targets(t: truth.Truth) -> np.ndarray:
    """Class numbers `[len(HEADS)]`."""
    values = []
    for name, classes in HEADS.items():
        where, _, part = name.rpartition(".")
        vehicle = t.at(where) if where else None
        value = getattr(t, name) if not where else getattr(vehicle, part) if vehicle else "none"
        values.append(classes.index(value))
    return np.array(values, dtype=np.int16)


NUM_CELL_CLASSES = (
    1 + len(truth.KINDS) * len(truth.COLOURS) + 1 + 2
)  # nothing, vehicles, pedestrian, red and green lamp
NUM_MOTION = 12


def dense_targets(scene: Scene, times_s: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Per frame pair: the class of every visual token `[T/2, N]`, and how things move `[T/2, 12]` (NaN: not there)."""
    first, second = motion_of(scene, times_s[0::2]), motion_of(scene, times_s[1::2])
    pairs, rows, columns = len(times_s[0::2]), height // FACTOR, width // FACTOR
    cells = np.zeros((pairs, rows, columns), dtype=np.int8)
    scale = FOCAL_PER_HEIGHT * height

    def paint(p: int, x: float, z: float, box: tuple[float, float, float, float], label: int) -> None:
        left, right, low, high = box
        xs = (width / 2 + (x + np.array([left, right])) * scale / z) / FACTOR
        ys = (HORIZON * height + (CAMERA_HEIGHT_M - np.array([high, low])) * scale / z) / FACTOR
        c0, c1, r0, r1 = (int(np.clip(v, -1, 99)) for v in (xs[0] + 0.4, xs[1] + 0.6, ys[0] + 0.4, ys[1] + 0.6))
        c1, r1 = max(c1, c0 + 1), max(r1, r0 + 1)
        cells[p, max(r0, 0) : max(r1, 0), max(c0, 0) : max(c1, 0)] = label

    for p in range(pairs):
        shift = first.lateral_m[p] - first.lateral_m[0] if scene.truth.ego.startswith("changes") else 0.0
        if first.lamp[p]:
            paint(p, 3.1, first.light_z_m[p], (-0.5, 0.5, 3.0, 6.1), 16 + int(first.lamp[p]))
        for path in sorted(first.vehicles, key=lambda v: -v.z_m[p]):
            if path.z_m[p] < 3.6:
                continue
            shape, v = SHAPES[path.vehicle.kind], path.vehicle
            label = 1 + truth.KINDS.index(v.kind) * len(truth.COLOURS) + truth.COLOURS.index(v.colour)
            half = shape.width_m / 2
            paint(p, path.x_m[p] - shift, path.z_m[p], (-half, half, 0.2, shape.roof_m), label)
        if np.isfinite(first.pedestrian_x_m[p]):
            paint(p, first.pedestrian_x_m[p], first.pedestrian_z_m, (-0.3, 0.3, 0.1, 1.8), 16)
    return cells.reshape(pairs, -1), _motion_targets(first, second, times_s)


def _motion_targets(first, second, times_s: np.ndarray) -> np.ndarray:
    out = np.full((len(first.travel_m), NUM_MOTION), np.nan, dtype=np.float32)
    out[:, 0] = (second.travel_m - first.travel_m) / 3.0
    out[:, 1] = (second.yaw_rad - first.yaw_rad) / 0.15
    out[:, 2] = (second.lateral_m - first.lateral_m) / 0.3
    for path, later in zip(first.vehicles, second.vehicles, strict=True):
        k = 3 + 3 * truth.WHERES.index(path.vehicle.where)
        out[:, k] = np.log(path.z_m / 12.0) * 2
        out[:, k + 1] = np.log(later.z_m / path.z_m) * 8
        out[:, k + 2] = path.x_m / 3.5
    return out


@dataclass
class Example:
    """One clip with VARIANTS ways to ask about it."""

    shape: int
    frames: np.ndarray
    ids: np.ndarray
    positions: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    heads: np.ndarray
    cells: np.ndarray
    motion: np.ndarray


def roundtrip(frames: list[np.ndarray], rng: np.random.Generator, worst_crf: int) -> list[np.ndarray]:
    """Through an encoder and a decoder, in memory."""
    codec = str(rng.choice(["libx264", "libx265", "mpeg4"], p=[0.86, 0.03, 0.11]))
    crf = int(rng.integers(16, worst_crf))
    form = ClipFormat(
        codec=codec, crf=crf, preset="ultrafast" if rng.random() < 0.85 else "veryfast",
        b_frames=0 if codec == "mpeg4" else int(rng.integers(0, 3)),
        matrix="bt709" if codec != "mpeg4" else "bt601", full_range=codec == "libx264" and rng.random() < 0.1,
        options={"qscale": str(int(rng.integers(2, 7)))} if codec == "mpeg4" else {},
    )  # fmt: skip
    held = io.BytesIO()
    encode_frames(frames, np.arange(len(frames)) / 10, held, fps=10, form=form, container="matroska")
    held.seek(0)
    with av.open(held) as container:
        container.streams.video[0].thread_type = "NONE"
        reformatter = av.video.reformatter.VideoReformatter()
        return [reformatter.reformat(f, format="rgb24", threads=1).to_ndarray() for f in container.decode(video=0)]


def resize(frames: list[np.ndarray], height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """To the model's size by one of the filters that decoders and processors use: `[T, H, W, 3]`."""
    if frames[0].shape[:2] == (height, width):
        return np.stack(frames)
    how = rng.random()
    if how < 0.5:
        return np.stack([cv2.resize(f, (width, height), interpolation=cv2.INTER_AREA) for f in frames])
    name, reformatter = "BICUBIC" if how < 0.85 else "BILINEAR", av.video.reformatter.VideoReformatter()
    pictures = (av.VideoFrame.from_ndarray(f, format="rgb24") for f in frames)
    return np.stack([_shrunk(p, height, width, reformatter, name) for p in pictures])


def training_clip(seed: int, maker: SequenceMaker, shape: int | None = None) -> Example:
    """The example of this seed."""
    rng = np.random.default_rng([seed, 0x7EA1])
    scene = sample_scene(seed)
    if shape is None:
        shape = int(rng.choice(len(SHAPES_TRAINED), p=[s for *_, s in SHAPES_TRAINED]))
    num_frames, height, width = SHAPE_KEYS[shape]
    fps = float(rng.choice(RATES))
    total = len(frame_times_s(scene, fps))
    indices = sampled_indices(total, num_frames)
    times_s = indices / fps
    how = rng.random()
    if how < 0.58:
        w, h = width, height
    elif how < 0.9:
        w, h = 2 * width, 2 * height
    else:
        w, h = (854, 480) if SHAPES_TRAINED[shape][1] == (16, 9) else (640, 480)
    frames = list(render_at(scene, times_s, width=w, height=h))
    if rng.random() < 0.9:
        frames = roundtrip(frames, rng, 30 if how < 0.58 else 36)
    picture = resize(frames, height, width, rng)
    return make_example(scene, shape, picture, indices, fps, maker, rng)


def make_example(
    scene: Scene,
    shape: int,
    picture: np.ndarray,
    indices: np.ndarray,
    fps: float,
    maker: SequenceMaker,
    rng: np.random.Generator,
) -> Example:
    """Adds sequences and targets to the sampled frames of a scene."""
    _, height, width = SHAPE_KEYS[shape]
    grid = (height // FACTOR, width // FACTOR)
    cells, motion = dense_targets(scene, indices / fps, height, width)
    ids = np.zeros((VARIANTS, MAX_TOKENS), dtype=np.int16)
    positions = np.zeros((VARIANTS, 3, MAX_TOKENS), dtype=np.int16)
    starts, lengths = np.zeros(VARIANTS, dtype=np.int64), np.zeros(VARIANTS, dtype=np.int64)
    for v in range(VARIANTS):
        prompt, kind = sample_prompt(rng)
        system = "You are a helpful assistant." if rng.random() < 0.1 else ""
        if v == 0:
            prompt, kind, system = PROMPTS["general"].text, "full", ""
        s = maker.make(
            prompt, answer_of(scene.truth, kind), pair_stamps_s(indices, fps), grid,
            system=system, video_first=v == 0 or rng.random() < 0.8, wrapped=rng.random() < 0.5,
        )  # fmt: skip
        n = min(len(s.ids), MAX_TOKENS)
        ids[v, :n], positions[v, :, :n], starts[v], lengths[v] = s.ids[:n], s.positions[:, :n], s.answer_start, n
    return Example(shape, picture, ids, positions, starts, lengths, head_targets(scene.truth), cells, motion)


def true_clip(seed: int, maker: SequenceMaker) -> tuple[Example, Scene]:
    """An evaluation example that went the whole way: every frame, 480p to 1080p, H.264 or HEVC, decoded."""
    rng = np.random.default_rng([seed, 0xE7A1])
    scene = sample_scene(seed)
    width, height = SOURCES[int(rng.choice(len(SOURCES), p=SOURCE_SHARE))]
    fps = float(rng.choice(RATES[:4] if width < 1280 else RATES[:2]))
    form = ClipFormat(
        codec="libx265" if rng.random() < 0.15 else "libx264", crf=int(rng.integers(20, 30)), preset="ultrafast"
    )
    held = io.BytesIO()
    times_s = frame_times_s(scene, fps)
    encode_frames(
        render_at(scene, times_s, width=width, height=height), times_s, held, fps=fps, form=form, container="mp4"
    )
    held.seek(0)
    shape = 0 if width * 3 > height * 4 else 1
    indices = sampled_indices(len(times_s), MIN_FRAMES)
    _, h, w = SHAPE_KEYS[shape]
    with av.open(held) as container:
        container.streams.video[0].thread_type = "NONE"
        wanted = set(indices.tolist())
        reformatter = av.video.reformatter.VideoReformatter()
        kept = [_shrunk(f, h, w, reformatter) for i, f in enumerate(container.decode(video=0)) if i in wanted]
    return make_example(scene, shape, np.stack(kept), indices, fps, maker, rng), scene


def _shrunk(frame, height: int, width: int, reformatter, interpolation: str = "BICUBIC") -> np.ndarray:
    """One thread: swscale's own pool, started for every frame, costs many times the work."""
    return reformatter.reformat(
        frame, width=width, height=height, format="rgb24", interpolation=interpolation, threads=1
    ).to_ndarray()
