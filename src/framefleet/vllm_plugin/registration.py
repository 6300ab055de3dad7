"""The loader made known to the vLLM of this process, and what a request may set guarded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from framefleet.config import PREFIX
from framefleet.vllm_plugin.compat import NEWEST_KNOWN, TABLE, facts_of, parse_version
from framefleet.vllm_plugin.loader import LOADER_NAME, FramefleetLoader
from framefleet.vllm_plugin.log import log
from framefleet.vllm_plugin.options import MODEL_VARIABLE, frames_for, without_startup_only

TAKE_OVER_VARIABLE = PREFIX + "TAKE_OVER"
FAST_PATCHIFY_VARIABLE = PREFIX + "FAST_PATCHIFY"
"""1: `fast_patchify` in vLLM's API servers. Unset: where the loader takes over."""
VLLM_DEFAULT_VARIABLE = "VLLM_VIDEO_LOADER_BACKEND"
"""vLLM's own: the loader for video processors that have none."""
PROCESSORS = ("Qwen3VLVideoProcessor", "Qwen2VLVideoProcessor")
"""Video processors that have a loader of their own in vLLM, whose rule is known here. (Qwen2.5-VL has the second.)"""


def register_in_vllm(environ: Mapping[str, str] = os.environ) -> None:
    """Make the loader known to the vLLM of this process, and guard what a request may set. May be called again.

    Raises ConfigError when taking over was asked for and the model named cannot be read.
    """
    from vllm.version import __version__

    if not _is_known(__version__):
        return
    from vllm.multimodal.media.video import VideoMediaIO
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    takes_over = environ.get(TAKE_OVER_VARIABLE) == "1"
    if takes_over:
        _check_model(environ.get(MODEL_VARIABLE, ""))
    processors = PROCESSORS if takes_over else None
    VIDEO_LOADER_REGISTRY.register(LOADER_NAME, video_processor=processors)(FramefleetLoader)
    is_default = takes_over or environ.get(VLLM_DEFAULT_VARIABLE) == LOADER_NAME
    guard_requests(VideoMediaIO, is_default=is_default)
    if environ.get(FAST_PATCHIFY_VARIABLE, "1" if takes_over else "0") == "1":
        _speed_up()


def _speed_up() -> None:
    try:
        from vllm.multimodal.processing.context import InputProcessingContext  # isort: skip - the quicker to fail
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    except ImportError as error:
        log.warning("framefleet: no faster patchify: %s", error)
        return
    from framefleet.vllm_plugin.fast_patchify import speed_up

    if speed_up(Qwen3VLVideoProcessor, InputProcessingContext):
        log.info("framefleet: clips are normalised and cut into patches in one pass")


def guard_requests(video_io: Any, *, is_default: bool) -> None:
    """Let no request set what belongs to the server's start, where ours is the loader. Idempotent.

    `is_default`: ours is the loader also where neither the server's options nor the request's name one.

    vLLM merges a request's options into the server's before a loader sees them, so this is the only place to tell
    them apart. It does the same there for options of its own decoders.
    """
    merge = video_io.merge_kwargs
    if getattr(merge, "is_guarded", False):
        return
    video_io.merge_kwargs = classmethod(_guarded(merge.__func__, is_default=is_default))


def _guarded(merge: Callable[..., dict[str, Any]], *, is_default: bool) -> Callable[..., dict[str, Any]]:
    def merge_kwargs(
        cls: type, default_kwargs: dict[str, Any] | None, runtime_kwargs: dict[str, Any] | None
    ) -> dict[str, Any]:
        start, request = default_kwargs or {}, runtime_kwargs or {}
        named = request.get("video_backend") or start.get("video_backend")
        if named == LOADER_NAME or (is_default and not named):
            request, dropped = without_startup_only(request)
            if dropped:
                log.warning("a request cannot change %s: set at the server's start", ", ".join(dropped))
        return merge(cls, default_kwargs, request or None)

    merge_kwargs.is_guarded = True  # type: ignore[attr-defined]
    return merge_kwargs


def _is_known(version: str) -> bool:
    """Whether the plugin is for this version; says so where it is not, or not yet."""
    parsed = parse_version(version)
    if parsed == (0, 0, 0) or parsed[:2] > NEWEST_KNOWN:
        log.warning("framefleet has not been read against vLLM %s, only up to %d.%d", version, *NEWEST_KNOWN)
        return True
    if facts_of(parsed) is None:
        oldest = ".".join(map(str, TABLE[0].since))
        log.warning("framefleet's video loader is off: vLLM %s is older than %s", version, oldest)
        return False
    return True


def _check_model(model: str) -> None:
    if model:
        frames_for(model)
        return
    log.warning(
        'framefleet decodes every video, but %s is unset: "model" must be in --media-io-kwargs\' "video"',
        MODEL_VARIABLE,
    )
