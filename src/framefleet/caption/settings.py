"""What a caption job may be told. Filled by `config.resolve(CaptionSettings, "caption", ...)`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from framefleet.caption.windowing import WindowRule
from framefleet.decode.options import DecodeOptions
from framefleet.engine.captioner import GenerationSettings
from framefleet.errors import ConfigError
from framefleet.units import parse_duration_ns

Count = Annotated[int, msgspec.Meta(ge=1)]


class CaptionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every field has a working default."""

    engine: str | None = None
    """`embedded`, `openai_http`, `fleet`, `fake` or a plugin's; unset: `openai_http` with an endpoint, else `embedded`,
    and on the command line `fleet` for a `model` that vLLM can serve here."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server (`http://host:8000/v1`)."""
    model: str | None = None
    """Folder or hub id, or the name the server knows it by; unset: the bundled model, or the server's own."""
    engine_options: dict[str, Any] = {}
    """Further settings of the engine, as its own settings name them."""
    prompt: str = "general"
    """A prompt's name (`av`, `general`, `short` ...) or the prompt itself."""
    schema: dict[str, Any] | None = None
    """JSON schema that every answer must meet; answers that do not are `rejected`, with their text."""
    frames: DecodeOptions | None = None
    """Which frames, how large, by which backend. What is unset here is as the model wants it."""
    generation: GenerationSettings = GenerationSettings()
    """How tokens are drawn. Part of the resume key."""
    window: str | None = None
    """Length of a window (`30s`, `1m30s`); unset: a clip is one window. With `shots`: no shot is longer."""
    overlap: str = "0s"
    """How much of a window the next one shows again. More overlap, more windows."""
    shots: bool = False
    """Windows from cut to cut (PySceneDetect). Every frame is decoded once more, small."""
    min_shot: str = "1s"
    """Shorter shots join their neighbour."""
    max_windows: Count = 10_000
    """A clip that gives more is recorded as failed."""
    column: str | None = None
    """The manifest's column of paths; unset: guessed."""
    concurrency: Count | None = None
    """Requests at the engine at once; unset: what the engine says suits it. More fills a server, and its queue."""
    decode_workers: Count | None = None
    """Decode processes; unset: the CPU cores."""
    frame_budget: str | None = None
    """Bytes of decoded frames in flight (`2GiB`); unset: the pool's own. Less memory, but the engine may starve."""
    retry_failed: bool = False
    """Try again what failed in earlier runs."""
    attempts: Count = 3
    """Tries at one window in a run, where the error says that later may help."""
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """After Ctrl-C, how long windows in flight may take to end."""

    def window_rule(self) -> WindowRule | None:
        """The rule for windows; None: the clip is the window. Raises ConfigError for lengths that do not fit."""
        if self.window is None and not self.shots:
            if parse_duration_ns(self.overlap):
                raise ConfigError("overlap without a window", given=self.overlap, remedy="--window 30s")
            return None
        return WindowRule(
            length_ns=None if self.window is None else parse_duration_ns(self.window),
            overlap_ns=parse_duration_ns(self.overlap),
            min_shot_ns=parse_duration_ns(self.min_shot) if self.shots else None,
            max_windows=self.max_windows,
        )


SAMPLING_FIELDS = ("num_frames", "fps", "rule", "min_frames", "max_frames", "max_duration_s")
SIZE_FIELDS = ("size", "max_pixels", "min_pixels", "total_pixels", "min_total_pixels")


def overlay(wanted: DecodeOptions | None, policy: DecodeOptions) -> DecodeOptions:
    """The model's frame policy with what the user set over it.

    A user who chooses frames (`num_frames`, `fps` or `rule`) chooses them wholly: the policy's own sampling is dropped.
    So with sizes; `size_factor` stays, since the model takes no other.
    """
    if wanted is None:
        return policy
    plain = DecodeOptions()
    changed = msgspec.structs.asdict(wanted).items()
    chosen = {name: value for name, value in changed if value != getattr(plain, name)}
    dropped: set[str] = set()
    if chosen.keys() & {"num_frames", "fps", "rule"}:
        dropped.update(SAMPLING_FIELDS)
    if chosen.keys() & set(SIZE_FIELDS):
        dropped.update(SIZE_FIELDS)
    return msgspec.structs.replace(policy, **({name: getattr(plain, name) for name in dropped} | chosen))
