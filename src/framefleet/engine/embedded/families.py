"""Turns and frames to model inputs, by family of model, without the stock processors (they import torchvision).

The prompts are those of the processors of transformers 5.24: `Qwen3VLProcessor`, `Qwen2_5_VLProcessor`,
`SmolVLMProcessor`. Tests compare with their recorded output.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from framefleet.engine.clock import FrameClock
from framefleet.engine.embedded.checkpoint import Checkpoint
from framefleet.engine.embedded.patchify import Normalisation, check_size, patchify
from framefleet.engine.question import Turn
from framefleet.errors import CaptionRejected, ConfigError

Frames = npt.NDArray[np.uint8]
IMAGENET_STANDARD = (0.5, 0.5, 0.5)
OPENAI_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One question, ready to be batched."""

    input_ids: list[int]
    pixels: torch.Tensor
    """float32: patches [P, D] (Qwen) or frames [T, 3, S, S] (SmolVLM)."""
    grid: tuple[int, int, int] = (0, 0, 0)
    """(t, h, w) in patches (Qwen)."""
    seconds_per_grid: float = 0.0
    """Of one temporal patch (Qwen2.5-VL)."""


class Family(Protocol):
    """How one kind of model is fed."""

    def prepare(self, turns: Sequence[Turn], frames: Frames, clock: FrameClock) -> Prepared:
        """Frames [T, H, W, 3] uint8 RGB and turns. Raises CaptionRejected for what the model cannot take."""
        ...

    def collate(self, batch: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        """Left-padded inputs for `generate`, on the CPU."""
        ...


def family_of(checkpoint: Checkpoint, tokenizer: Any) -> Family:
    """The family that the checkpoint names."""
    family: Family = _FAMILIES[checkpoint.family](checkpoint, tokenizer)
    return family


class _Qwen:
    """What Qwen3-VL and Qwen2.5-VL have in common."""

    mean = std = IMAGENET_STANDARD
    patch_size = 16

    def __init__(self, checkpoint: Checkpoint, tokenizer: Any) -> None:
        video, config = checkpoint.video, checkpoint.config
        self.norm = _normalisation(video, self.mean, self.std)
        self.patch_size = video.get("patch_size", self.patch_size)
        self.merge_size: int = video.get("merge_size", 2)
        self.temporal_patch_size = video.get("temporal_patch_size", 2)
        self.tokenizer = tokenizer
        self.template = _chat_template(checkpoint, tokenizer)
        self.video_token_id = int(config["video_token_id"])
        self.video_token = tokenizer.convert_ids_to_tokens(self.video_token_id)
        self.start = tokenizer.convert_ids_to_tokens(int(config["vision_start_token_id"]))
        self.end = tokenizer.convert_ids_to_tokens(int(config["vision_end_token_id"]))
        self.pad_id = _pad_id(tokenizer)

    def prepare(self, turns: Sequence[Turn], frames: Frames, clock: FrameClock) -> Prepared:
        pixels, grid = patchify(
            frames,
            self.norm,
            patch_size=self.patch_size,
            temporal_patch_size=self.temporal_patch_size,
            merge_size=self.merge_size,
        )
        messages = [{"role": t.role, "content": _content(t)} for t in turns]
        rendered = self.tokenizer.apply_chat_template(
            messages, chat_template=self.template, tokenize=False, add_generation_prompt=True
        )
        text = self.with_video(_one_placeholder(rendered, self.video_token), grid, clock)
        return Prepared(self.tokenizer(text)["input_ids"], pixels, grid, self.temporal_patch_size / clock.sampled_fps)

    def with_video(self, rendered: str, grid: tuple[int, int, int], clock: FrameClock) -> str:
        """The rendered prompt with the placeholder expanded."""
        raise NotImplementedError

    def collate(self, batch: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        inputs = _left_padded([p.input_ids for p in batch], self.pad_id)
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == self.video_token_id).long() * 2
        inputs["pixel_values_videos"] = torch.cat([p.pixels for p in batch])
        inputs["video_grid_thw"] = torch.tensor([p.grid for p in batch])
        return inputs

    def _tokens(self, grid: tuple[int, int, int]) -> int:
        return grid[1] * grid[2] // (self.merge_size * self.merge_size)


class Qwen3VL(_Qwen):
    """Each temporal patch is preceded by its time."""

    def with_video(self, rendered: str, grid: tuple[int, int, int], clock: FrameClock) -> str:
        patch = self.start + self.video_token * self._tokens(grid) + self.end
        times_s = patch_times_s(clock, self.temporal_patch_size)
        expanded = "".join(f"<{time_s:.1f} seconds>{patch}" for time_s in times_s)
        placeholder = self.video_token if _keeps_outer_markers() else self.start + self.video_token + self.end
        return rendered.replace(placeholder, expanded, 1)


class Qwen25VL(_Qwen):
    """One run of video tokens; time is in the position ids (`second_per_grid_ts`)."""

    mean, std = OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
    patch_size = 14

    def with_video(self, rendered: str, grid: tuple[int, int, int], clock: FrameClock) -> str:
        del clock
        return rendered.replace(self.video_token, self.video_token * (grid[0] * self._tokens(grid)), 1)

    def collate(self, batch: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        seconds = torch.tensor([p.seconds_per_grid for p in batch], dtype=torch.float32)  # as the stock processor
        return super().collate(batch) | {"second_per_grid_ts": seconds}


class SmolVLM:
    """Every frame is a picture of its own, announced by its time."""

    fake, image, whole = "<fake_token_around_image>", "<image>", "<global-img>"

    def __init__(self, checkpoint: Checkpoint, tokenizer: Any) -> None:
        vision = checkpoint.config["vision_config"]
        self.norm = _normalisation(checkpoint.video, IMAGENET_STANDARD, IMAGENET_STANDARD)
        self.edge = int(vision["image_size"])
        scale = checkpoint.config.get("scale_factor", 2)
        self.tokens_per_frame = (self.edge // int(vision["patch_size"])) ** 2 // scale**2
        self.tokenizer = tokenizer
        self.pad_id = _pad_id(tokenizer)

    def prepare(self, turns: Sequence[Turn], frames: Frames, clock: FrameClock) -> Prepared:
        check_size(frames.shape[1], frames.shape[2], self.edge)
        rendered = "<|im_start|>" + "".join(_smol_turn(t) for t in turns) + "Assistant:"
        _refuse_token(rendered, self.image)
        text = _one_placeholder(rendered, "<video>").replace("<video>", self._video_text(clock), 1)
        pixels = self.norm.apply(torch.from_numpy(frames).permute(0, 3, 1, 2), channel_axis=1)
        return Prepared(self.tokenizer(text)["input_ids"], pixels)

    def collate(self, batch: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        """Clips with fewer frames are filled with zero frames, which the model leaves out."""
        inputs = _left_padded([p.input_ids for p in batch], self.pad_id)
        most = max(len(p.pixels) for p in batch)
        pixels = torch.zeros(len(batch), most, 3, self.edge, self.edge)
        mask = torch.zeros(len(batch), most, self.edge, self.edge, dtype=torch.long)
        for row, one in enumerate(batch):
            pixels[row, : len(one.pixels)] = one.pixels
            mask[row, : len(one.pixels)] = 1
        return inputs | {"pixel_values": pixels, "pixel_attention_mask": mask}

    def _video_text(self, clock: FrameClock) -> str:
        times_s = clock.timestamps_s
        duration = timedelta(seconds=int(clock.duration))
        picture = self.fake + self.whole + self.image * self.tokens_per_frame + self.fake
        intro = (
            f"You are provided the following series of {number_in_words(len(times_s))} frames"
            f" from a {duration} [H:MM:SS] video.\n"
        )
        return intro + "".join(f"\nFrame from {_minutes(t)}:{picture}" for t in times_s) + "\n\n"


def patch_times_s(clock: FrameClock, temporal_patch_size: int) -> list[float]:
    """The time of each temporal patch: the mean of its first and last frame's (`_calculate_timestamps`)."""
    times_s = clock.timestamps_s
    times_s += [times_s[-1]] * (-len(times_s) % temporal_patch_size)
    return [
        (times_s[at] + times_s[at + temporal_patch_size - 1]) / 2 for at in range(0, len(times_s), temporal_patch_size)
    ]


def number_in_words(number: int) -> str:
    """`twenty-two`, `one hundred and five`: English words for 0 to 9999, as the num2words package writes them."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_SMALL[number % 10]}" if number % 10 else "")
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = number % unit
    joint = "" if not rest else " and " if rest < 100 else ", "
    return f"{number_in_words(number // unit)} {name}{joint}{number_in_words(rest) if rest else ''}"


_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_FAMILIES: dict[str, Any] = {"qwen3_vl": Qwen3VL, "qwen2_5_vl": Qwen25VL, "smolvlm": SmolVLM}


def _normalisation(video: dict[str, Any], mean: Sequence[float], std: Sequence[float]) -> Normalisation:
    red, green, blue = video.get("image_mean") or mean
    red_std, green_std, blue_std = video.get("image_std") or std
    return Normalisation((red, green, blue), (red_std, green_std, blue_std), video.get("rescale_factor") or 1 / 255)


def _chat_template(checkpoint: Checkpoint, tokenizer: Any) -> str:
    """The tokenizer's, or the processor's of older checkpoints (`chat_template.json`)."""
    if tokenizer.chat_template:
        return str(tokenizer.chat_template)
    legacy = checkpoint.folder / "chat_template.json"
    if not legacy.exists():
        raise ConfigError("the model has no chat template", given=str(checkpoint.folder))
    return str(json.loads(legacy.read_text(encoding="utf-8"))["chat_template"])


def _content(turn: Turn) -> str | list[dict[str, str]]:
    return [{"type": "video"}, {"type": "text", "text": turn.text}] if turn.has_video else turn.text


def _smol_turn(turn: Turn) -> str:
    return f"{turn.role.capitalize()}: {'<video>' if turn.has_video else ''}{turn.text}<end_of_utterance>\n"


def _one_placeholder(rendered: str, token: str) -> str:
    if rendered.count(token) != 1:
        raise CaptionRejected(
            "the prompt does not hold exactly one video",
            given=f"{rendered.count(token)} of {token}",
            remedy=f"take {token} out of the text" if token in rendered else "check the model's chat template",
        )
    return rendered


def _refuse_token(rendered: str, token: str) -> None:
    if token in rendered:
        raise CaptionRejected("the prompt holds a token of the model's own", given=token, remedy="take it out")


def _keeps_outer_markers() -> bool:
    """Processors of transformers 5.10 and later expand the bare video token between its start and end markers; earlier
    ones replaced the markers too. Prompts follow the installed version, as vLLM's do."""
    from transformers.processing_utils import ProcessorMixin

    return hasattr(ProcessorMixin, "replace_video_token")


def _left_padded(rows: Sequence[list[int]], pad_id: int) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    input_ids = torch.full((len(rows), longest), pad_id)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for at, row in enumerate(rows):
        input_ids[at, longest - len(row) :] = torch.tensor(row)
        mask[at, longest - len(row) :] = 1
    return {"input_ids": input_ids, "attention_mask": mask}


def _pad_id(tokenizer: Any) -> int:
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return int(pad_id)


def _minutes(time_s: float) -> str:
    return f"{int(time_s // 60):02d}:{int(time_s % 60):02d}"
