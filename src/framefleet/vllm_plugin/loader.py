"""The video loader that vLLM calls: bytes in, frames at the model's own size and true metadata out.

It decodes in vLLM's API server, on the thread that vLLM gives it, on the CPU. There is no decode service yet: every
API server decodes for itself, and a decoder that crashes takes its server along.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.session import decode
from framefleet.errors import ConfigError, FramefleetError
from framefleet.vllm_plugin.options import (
    MODEL_VARIABLE,
    LoaderOptions,
    decode_options,
    model_frames,
    parse_loader_options,
)

LOADER_NAME = "framefleet"
Frames = npt.NDArray[np.uint8]


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
            decoded = decode(data, wanted)
        except FramefleetError as error:
            if error.blame == "input":
                raise ValueError(str(error)) from error
            raise
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
