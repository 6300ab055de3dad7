"""The loader's options as `--media-io-kwargs` has them, and what they mean for decoding. No vLLM here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from framefleet.config import PREFIX
from framefleet.decode.options import DecodeOptions
from framefleet.engine.embedded.checkpoint import Checkpoint, open_checkpoint
from framefleet.engine.embedded.frame_policy import policy_of
from framefleet.errors import ConfigError

MODEL_VARIABLE = PREFIX + "MODEL"
Count = Annotated[int, msgspec.Meta(ge=1)]


class LoaderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every option but vLLM's own `num_frames`. None: as the model's processor configuration has it."""

    fps: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Frames per second of presentation time (the Qwen rules cap it at 30)."""
    min_frames: Count | None = None
    """Fewest frames, where the clip has as many. Above `max_frames` it counts as that, as in vLLM."""
    max_frames: Count | None = None
    """Most frames."""
    frame_recovery: bool = False
    """After a damaged frame give the nearest decodable one, instead of leaving it out."""
    model: str | None = None
    """The model served: a folder or a hub id. None: FRAMEFLEET_MODEL. Start-up only."""
    size: dict[str, Count] | None = None
    """`longest_edge` and `shortest_edge` as `--mm-processor-kwargs` has them (Qwen3-VL). Start-up only."""
    backend: str = "auto"
    """`auto` (the decode service's choice, or a CPU backend), a CPU backend, or `pynvvideocodec`: NVDEC in this API
    server, for which vLLM then reserves memory. Start-up only."""
    hw_decoders: Count = 2
    """With `pynvvideocodec`: decoders this API server keeps (vLLM's own default). Start-up only."""
    pool_size: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    """vLLM's DeepStream has it; accepted, so that settings made for that need no change, and not used: our `deepstream`
    backend is not offered inside vLLM. Start-up only."""
    num_ffmpeg_threads: Count = 1
    """Threads of one decode. Start-up only."""
    max_width: Count | None = None
    """With `max_height`: pictures of more pixels than this are refused. Start-up only."""
    max_height: Count | None = None
    """See `max_width`. Start-up only."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """Deadline of one clip. Start-up only."""


REQUEST_OPTIONS = frozenset({"fps", "min_frames", "max_frames", "frame_recovery"})
STARTUP_ONLY = (frozenset(LoaderOptions.__struct_fields__) | {"device"}) - REQUEST_OPTIONS


@dataclass(frozen=True, slots=True)
class ModelFrames:
    """How a model wants its frames."""

    policy: DecodeOptions
    temporal_patch: int
    """Its video processor takes no fewer frames than this."""


def parse_loader_options(asked: dict[str, Any]) -> LoaderOptions:
    """Raises ConfigError for unknown names, wrong types and half a picture size. Pure."""
    try:
        options = msgspec.convert(asked, LoaderOptions)
    except msgspec.ValidationError as error:
        allowed = ", ".join(["num_frames", *LoaderOptions.__struct_fields__])
        raise ConfigError("wrong option of the video loader", given=str(error), allowed=allowed) from error
    if (options.max_width is None) != (options.max_height is None):
        raise ConfigError("half a picture size", remedy="max_width and max_height together")
    return options


def without_startup_only(request: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A request's options that it may set, and the names of the others. Pure."""
    kept = {name: value for name, value in request.items() if name not in STARTUP_ONLY}
    return kept, sorted(request.keys() - kept.keys())


def model_frames(options: LoaderOptions, environ_model: str) -> ModelFrames:
    """For the model in the options, else `environ_model`. Raises ConfigError if there is none or it cannot be read."""
    model = options.model or environ_model
    if not model:
        raise ConfigError(
            "the video loader does not know which model it decodes for",
            remedy=f'"model" in --media-io-kwargs\' "video", or {MODEL_VARIABLE}',
        )
    return frames_for(model, tuple(sorted((options.size or {}).items())))


@lru_cache(maxsize=8)
def frames_for(model: str, size: tuple[tuple[str, int], ...] = ()) -> ModelFrames:
    """Read from the checkpoint, once. `size` holds the changes to its processor's. Raises ConfigError."""
    checkpoint = open_checkpoint(model)
    patch = 1 if checkpoint.family == "smolvlm" else int(checkpoint.video.get("temporal_patch_size", 2))
    return ModelFrames(policy_of(_resized(checkpoint, dict(size))), patch)


def _resized(checkpoint: Checkpoint, size: dict[str, int]) -> Checkpoint:
    if not size:
        return checkpoint
    if checkpoint.family != "qwen3_vl" or size.keys() - {"longest_edge", "shortest_edge"}:
        raise ConfigError(
            "not a size of this model's video processor",
            given=f"{size} for {checkpoint.family}",
            allowed="longest_edge and shortest_edge, for qwen3_vl",
        )
    return replace(checkpoint, video={**checkpoint.video, "size": {**(checkpoint.video.get("size") or {}), **size}})


def decode_options(options: LoaderOptions, frames: ModelFrames) -> DecodeOptions:
    """The model's policy with what the options change in it. Pure."""
    most = options.max_frames or frames.policy.max_frames
    least = options.min_frames or frames.policy.min_frames
    wanted = msgspec.structs.replace(
        frames.policy,
        fps=options.fps or frames.policy.fps,
        max_frames=most,
        min_frames=least if least is None or most is None else min(least, most),
        backend=options.backend,
        hw_decoders=options.hw_decoders,
        pool_size=options.pool_size,
        num_ffmpeg_threads=options.num_ffmpeg_threads,
        frame_recovery=options.frame_recovery,
        timeout_s=options.timeout_s,
        keeps_size=True,
    )
    if options.max_width and options.max_height:
        wanted = msgspec.structs.replace(wanted, max_source_pixels=options.max_width * options.max_height)
    return wanted
