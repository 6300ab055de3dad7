"""The process that holds DeepStream's pool: GStreamer, the wheel and the GPU live here and nowhere else.

`python -m framefleet.decode.deepstream.host FD PARENT_PID` takes an `Open`, answers `Opened`, then each `Ask` with a
`Reply`, as many at a time as the pool has workers. It keeps no deadline: whoever asked kills it when one passes. It
ends when the socket closes, and the kernel ends it when the thread that started it does.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.decode import wire
from framefleet.decode.backends.rgb_size import resize_rgb
from framefleet.decode.deepstream.messages import Ask, Open, Opened, Reply, ToHost
from framefleet.decode.deepstream.preload import load_gstreamer
from framefleet.decode.gpu.resize import resize_tensor
from framefleet.decode.messages import Problem
from framefleet.decode.worker import settle_in
from framefleet.errors import DecodeError, DeviceError, FramefleetError

_WHEEL = "nvidia.deepstream_videodecode"


def main(descriptor: int, parent_pid: int) -> None:
    """Serve until the parent closes the socket."""
    settle_in(parent_pid)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))  # a decode worker's own limit is not for the GPU's maps
    link = socket.socket(fileno=descriptor)
    opening = _receive(link)
    try:
        pool = _open_pool(opening)
    except FramefleetError as error:
        wire.send(link, Opened(Problem.of(error)))
        return
    wire.send(link, Opened())
    threads = ThreadPoolExecutor(opening.num_workers)
    while (ask := _receive(link)) is not None:
        threads.submit(_answer, link, pool, ask)
    os._exit(0)  # GStreamer's threads may hang; nothing here is worth waiting for


def _receive(link: socket.socket) -> Any:
    received = wire.receive(link)
    return None if received is None else received.decode(ToHost)


def _open_pool(opening: Open) -> Any:
    """Raises DeviceError, whatever went wrong: loading runs other people's code from top to bottom."""
    module, _, attribute = opening.pool.partition(":")
    os.environ.setdefault("DS_SYNC_COPY", "1")  # else a picture may be copied before it is finished
    try:
        if module == _WHEEL:
            load_gstreamer(opening.bundle, opening.python_path)
        pool = getattr(import_module(module), attribute)(num_workers=opening.num_workers)
    except FramefleetError:
        raise
    except Exception as error:
        raise DeviceError(
            "DeepStream does not load", given=f"{type(error).__name__}: {error}", remedy="framefleet doctor"
        ) from error
    logging.getLogger(_WHEEL).setLevel(logging.ERROR)  # it warns of each decode that was given room to spare
    return pool


def _answer(link: socket.socket, pool: Any, ask: Ask) -> None:
    try:
        reply = Reply(ask.number, frames=_on_host(_decode(pool, ask), ask.width, ask.height))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        reply = Reply(ask.number, problem=Problem.of(error))
    wire.send(link, reply)


def _decode(pool: Any, ask: Ask) -> Any:
    """The frames as the pool left them. Raises DecodeError unless all pictures came out.

    One frame more is allowed than wanted, so that the pool never stops early: after some early stops it hangs.
    """
    result = pool.decode(
        ask.content.tobytes(),
        target_indices=ask.places.tolist(),
        codec=ask.codec,
        max_frames=len(ask.places) + 1,
        timeout_sec=ask.timeout_s,
    )
    if result.error:
        raise DecodeError("DeepStream failed", given=result.error)
    counts = (result.n_total, result.n_kept)
    if counts != (ask.num_pictures, len(ask.places)):
        raise DecodeError(
            "DeepStream gave other pictures than it was fed",
            given=f"{result.n_total} decoded, {result.n_kept} kept",
            allowed=f"{ask.num_pictures} and {len(ask.places)}",
            remedy="backend='pyav'",
        )
    return result.frames


def _on_host(frames: Any, width: int, height: int) -> npt.NDArray[np.uint8]:
    """uint8 [R, height, width, 3]. Through pinned memory, so that the copy runs at the bus's speed and beside other
    workers' decoding; a pool in software has its frames here already.
    """
    if isinstance(frames, np.ndarray):
        return np.stack([resize_rgb(frame, width, height) for frame in frames])
    import torch

    small = resize_tensor(frames, width, height)
    pinned = torch.empty(small.shape, dtype=small.dtype, pin_memory=True)
    pinned.copy_(small)
    return pinned.numpy()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
