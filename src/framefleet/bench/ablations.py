"""Clips that take work off a server while it still sees the same requests: decoded before, and with half the frames.

Every server takes a video file, and not every one takes bare frames. So the frames that the model would choose are
chosen here, brought to the model's own size, and written as a clip of just these frames, each by itself decodable:
what is left of decoding is a small fraction, and the prompt is as long as before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet.bench.clips import LoadClip, load_clips
from framefleet.bench.experiment import Trial
from framefleet.decode.options import DecodeOptions
from framefleet.decode.session import decode
from framefleet.errors import ConfigError, FramefleetError

FALLBACK = DecodeOptions(fps=2.0)
"""For a model whose files cannot be read here: the rate of the Qwen rules, at the clip's own size."""
SAME_PROMPT = 0.05
"""Relative difference of prompt lengths up to which the server saw as much."""
SHORTER_PROMPT = 0.8


class PreparedClips(msgspec.Struct, frozen=True, kw_only=True):
    """The clips of both ablations; they go inside the requests, so no server needs to be let at them."""

    decoded_before: list[LoadClip]
    half_frames: list[LoadClip]
    left_out: dict[str, str]
    """Clip -> why it could not be decoded here."""


def policy_for(model: str, changes: Mapping[str, Any]) -> DecodeOptions:
    """The model's own choice of frames with `changes`, at sizes that its processor keeps; FALLBACK where the model's
    files cannot be read. Raises ConfigError for changes that DecodeOptions does not have."""
    from framefleet.engine.embedded.frame_policy import frame_policy_for

    try:
        policy = msgspec.structs.replace(frame_policy_for(model), keeps_size=True)
    except FramefleetError:
        policy = FALLBACK
    try:
        return msgspec.convert(msgspec.structs.asdict(policy) | dict(changes), DecodeOptions)
    except msgspec.ValidationError as error:
        raise ConfigError("no such rule of choosing frames", given=str(dict(changes)), allowed=str(error)) from error


def prepare_clips(paths: Sequence[str], policy: DecodeOptions) -> PreparedClips:
    """Decode and write them. Raises DecodeError or SourceError when not a single one can be decoded."""
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        whole, half = Path(folder) / "whole", Path(folder) / "half"
        whole.mkdir()
        half.mkdir()
        for number, path in enumerate(paths):
            try:
                _prepare(path, policy, whole / f"{number:05d}.mp4", half / f"{number:05d}.mp4")
            except FramefleetError as error:
                left_out[path] = str(error)
                if len(left_out) == len(paths):
                    raise
        return PreparedClips(
            decoded_before=load_clips([str(whole)], "bytes"),
            half_frames=load_clips([str(half)], "bytes"),
            left_out=left_out,
        )


def always_takes_as_many(policy: DecodeOptions) -> bool:
    """Whether the number of frames does not follow the clip's length."""
    return policy.num_frames is not None or policy.min_frames == policy.max_frames is not None


def half_sized(policy: DecodeOptions) -> DecodeOptions:
    """Half the area of every budget that the policy has. Pure."""
    budgets = {"total_pixels": policy.total_pixels, "max_pixels": policy.max_pixels}
    return msgspec.structs.replace(policy, **{name: value // 2 for name, value in budgets.items() if value})


def _prepare(path: str, policy: DecodeOptions, whole: Path, half: Path) -> None:
    """Half the frames; where the rule would only take the rest twice, as many at half the area."""
    frames = decode(path, policy)
    rate = len(frames) / max(frames.duration_s, 1e-3)
    _write(frames.data, rate, whole)
    if always_takes_as_many(policy):
        _write(decode(path, half_sized(policy)).data, rate, half)
    else:
        _write(frames.data[::2], rate, half)


def _write(pictures: npt.NDArray[np.uint8], rate: float, path: Path) -> None:
    """`pictures` [T, H, W, 3] uint8 RGB, evenly spread; a side of odd length loses its last line (4:2:0)."""
    from framefleet.scenes.encode import ClipFormat, encode_frames

    _, height, width, _ = pictures.shape
    even = pictures[:, : height // 2 * 2, : width // 2 * 2]
    times_s = np.arange(len(even)) / rate
    form = ClipFormat(gop=1, b_frames=0, crf=16, preset="ultrafast")
    encode_frames(even, times_s, path, fps=rate, form=form)


def why_invalid(plain: Sequence[Trial], trials: Sequence[Trial], *, is_shorter: bool) -> str:
    """Why an ablation says nothing, by the lengths of the prompts that the server counted; empty when it is valid."""
    before, after = _prompt_tokens(plain), _prompt_tokens(trials)
    if not before or not after:
        return "" if not is_shorter else "the server does not count prompt tokens"
    if is_shorter and after > SHORTER_PROMPT * before:
        return f"its prompts are not shorter ({after:.0f} tokens, {before:.0f} before)"
    if not is_shorter and abs(after - before) > SAME_PROMPT * before:
        return f"its prompts are not as long ({after:.0f} tokens, {before:.0f} before)"
    return ""


def _prompt_tokens(trials: Sequence[Trial]) -> float:
    counts = [one.prompt_tokens for trial in trials for one in trial.measurements if not one.error]
    return sum(counts) / len(counts) if counts else 0.0
