"""The video loader that vLLM calls: bytes in, frames at the model's own size and true metadata out.

It runs in vLLM's API server, on the threads that vLLM gives it; `decoding` says where the clips are decoded.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.decode.decoder import DecodeBackend, DecodedFrames
from framefleet.errors import BudgetTooLarge, ConfigError, FramefleetError
from framefleet.vllm_plugin import spans
from framefleet.vllm_plugin.compat import facts_here, gpu_pool
from framefleet.vllm_plugin.decoding import Decoding, DecodingSettings
from framefleet.vllm_plugin.options import (
    MODEL_VARIABLE,
    LoaderOptions,
    decode_options,
    model_frames,
    parse_loader_options,
)
from framefleet.vllm_plugin.reservation import kv_reservation

LOADER_NAME = "framefleet"
Frames = npt.NDArray[np.uint8]


@cache
def _decoding() -> Decoding:
    """This process's, settled at its first clip: vLLM forks its servers after the plugin was registered."""
    return Decoding(DecodingSettings.of(os.environ), _gpu_backend)


def _gpu_backend(decoders: int) -> DecodeBackend:
    from framefleet.decode.backends.pynvvideocodec import visible_gpu
    from framefleet.vllm_plugin.gpu_decoding import reserved_backend

    reserved = kv_reservation(0, decodes_on_gpu=True, hw_decoders=decoders, facts=facts_here())
    return reserved_backend(
        visible_gpu, gpu_pool(), decoders=decoders, reserved_bytes=reserved.decoders_bytes // decoders
    )


class FramefleetLoader:
    """Has the one method that vLLM calls of a loader; derives from nothing of vLLM's, so that it needs none."""

    @classmethod
    def load_bytes(cls, data: bytes, num_frames: int = -1, **asked: Any) -> tuple[Frames, dict[str, Any]]:
        """Frames [T, H, W, 3] uint8 RGB of one clip, and the metadata vLLM wants of it.

        The frames are those that the model's own rule chooses, at the size that its processor would give them, so
        that it resizes nothing. `num_frames`, which vLLM always passes (32 unless set), does not enter into these
        rules; vLLM's own loaders for such models leave it aside, too.

        Raises ValueError (vLLM answers 400) for a clip that is no video, damaged beyond use, too large or too slow,
        and for options that do not exist; ConfigError (500) where the server was set up wrong.
        """
        del num_frames
        options = _parsed(asked)
        frames = model_frames(options, os.environ.get(MODEL_VARIABLE, ""))
        wanted = decode_options(options, frames)
        try:
            decoded = _decoding().decode(data, wanted)
        except FramefleetError as error:
            if error.blame == "input" or isinstance(error, BudgetTooLarge):
                raise ValueError(str(error)) from error
            raise
        spans.observe(decoded.stats.seconds)
        return padded(decoded, frames.temporal_patch)


def _parsed(asked: dict[str, Any]) -> LoaderOptions:
    try:
        return parse_loader_options(asked)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def padded(decoded: DecodedFrames, least: int) -> tuple[Frames, dict[str, Any]]:
    """Frames and metadata, the last frame repeated up to `least` frames. Pure.

    Qwen's processors refuse fewer frames than their temporal patch (transformers 5.24 `smart_resize`); a longer clip
    with an odd frame they pad themselves.
    """
    missing = max(least - len(decoded), 0)
    rows = [int(row) for row in decoded.indices]
    frames: Frames = decoded.data
    if missing:
        frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
        rows += rows[-1:] * missing
    return frames, metadata_of(decoded, rows)


def metadata_of(decoded: DecodedFrames, rows: list[int]) -> dict[str, Any]:
    """As vLLM 0.32 `VideoLoader.create_hf_metadata` names it, of the clip itself: all its frames, rate and seconds.

    `do_sample_frames` is False: the processor must not choose again among frames that were chosen.
    """
    return {
        "total_num_frames": decoded.total_num_frames,
        "fps": decoded.fps,
        "duration": decoded.duration_s,
        "video_backend": f"{LOADER_NAME}_{decoded.stats.backend}",
        "frames_indices": rows,
        "do_sample_frames": False,
    }
