"""What the backend and the process that holds DeepStream's pool say to each other. `decode.wire` carries it."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet.decode.messages import Problem


class Open(msgspec.Struct, tag="open"):
    """First message to the host: load the pool."""

    pool: str
    """`module:attribute` of a class like the wheel's DecodePool."""
    num_workers: int
    bundle: str
    """Folder of a GStreamer bundle, or empty."""
    python_path: tuple[str, ...]
    """Where to look for PyGObject after everything else."""


class Opened(msgspec.Struct, tag="opened"):
    """The pool is there, or why it is not."""

    problem: Problem | None = None


class Ask(msgspec.Struct, tag="ask"):
    """Decode one stream."""

    number: int
    """The reply carries it; replies come in any order."""
    content: npt.NDArray[np.uint8]
    codec: str
    places: npt.NDArray[np.int64]
    num_pictures: int
    width: int
    height: int
    """Of the frames to give, before they are turned upright."""
    timeout_s: float


class Reply(msgspec.Struct, tag="reply"):
    """Frames uint8 [R, H, W, 3], or why there are none."""

    number: int
    frames: npt.NDArray[np.uint8] | None = None
    problem: Problem | None = None


ToHost = Open | Ask
FromHost = Opened | Reply
