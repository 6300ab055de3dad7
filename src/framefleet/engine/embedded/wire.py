"""What the engine and its model process say to each other: msgpack messages over a Unix socket, frames by memfd."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import threading
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet import errors
from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.clock import FrameClock
from framefleet.engine.question import FinishReason, Turn

Frames = npt.NDArray[np.uint8]
_LENGTH_BYTES = 4


class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message to the process: what to load and how to batch."""

    model: str
    device: str
    dtype: str
    max_batch: int
    max_batch_tokens: int
    batch_wait_s: float
    num_threads: int


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One question; its frames travel as a memfd beside it."""

    id: int
    turns: tuple[Turn, ...]
    clock: FrameClock
    shape: tuple[int, int, int, int]
    generation: GenerationSettings
    wants_text: bool


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for this one any more."""

    id: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The model is loaded."""

    device: str
    dtype: str
    load_s: float
    versions: dict[str, str]


class Started(msgspec.Struct, frozen=True, tag=True):
    """These are in the model now."""

    ids: tuple[int, ...]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Work goes on (sent at most once a second)."""


class Piece(msgspec.Struct, frozen=True, tag=True):
    """Further text of an answer."""

    id: int
    text: str


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An answer."""

    id: int
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    mean_logprob: float | None
    seconds: dict[str, float]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No answer; `id` 0 says that the model could not be loaded."""

    id: int
    kind: str
    what: str
    given: str = ""
    allowed: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, question_id: int, error: errors.FramefleetError) -> Failed:
        """The error, to be rebuilt on the other side."""
        return cls(
            id=question_id, kind=type(error).__name__, what=error.what, given=error.given, allowed=error.allowed,
            remedy=error.remedy,
        )  # fmt: skip

    def error(self) -> errors.FramefleetError:
        """The error again."""
        kind = cast(type[errors.FramefleetError], getattr(errors, self.kind))
        return kind(self.what, given=self.given, allowed=self.allowed, remedy=self.remedy)


ToProcess = Load | Ask | Cancel
FromProcess = Ready | Started | Alive | Piece | Done | Failed


class Channel:
    """One end of the socket. `send` may be called from several threads, `receive` from one."""

    def __init__(self, sock: socket.socket, receives: Any) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(receives)

    def send(self, message: ToProcess | FromProcess, fd: int | None = None) -> None:
        """Send one message, with a file descriptor where given (which stays open here). Raises OSError."""
        payload = msgspec.msgpack.encode(message)
        length = len(payload).to_bytes(_LENGTH_BYTES, "little")
        with self._sending:
            socket.send_fds(self._sock, [length], [] if fd is None else [fd])
            self._sock.sendall(payload)

    def receive(self) -> tuple[Any, int | None]:
        """The next message and its descriptor (the caller's to close). Raises EOFError when the other end is gone."""
        length, fds, _, _ = socket.recv_fds(self._sock, _LENGTH_BYTES, 1)
        payload = self._exactly(int.from_bytes(length + self._exactly(_LENGTH_BYTES - len(length)), "little"))
        return self._decoder.decode(payload), fds[0] if fds else None

    def close(self) -> None:
        """End the conversation; a `receive` that waits in another thread ends with EOFError."""
        with contextlib.suppress(OSError):  # the other end went first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _exactly(self, num_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < num_bytes:
            part = self._sock.recv(num_bytes - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


def frames_to_memfd(frames: Any) -> int:
    """Frames [T, H, W, 3] uint8 (ndarray or tensor) in anonymous memory; the descriptor is the caller's to close."""
    array = np.ascontiguousarray(frames.cpu().numpy() if hasattr(frames, "cpu") else frames)
    fd = os.memfd_create("framefleet-frames", os.MFD_CLOEXEC)
    try:
        os.truncate(fd, array.nbytes)
        with mmap.mmap(fd, array.nbytes) as memory:
            np.frombuffer(memory, np.uint8)[:] = array.reshape(-1)
    except BaseException:
        os.close(fd)
        raise
    return fd


def frames_from_memfd(fd: int, shape: tuple[int, int, int, int]) -> Frames:
    """The frames, mapped and not copied; closes the descriptor (the mapping lives as long as the array)."""
    try:
        memory = mmap.mmap(fd, int(np.prod(shape)), access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)
    return np.frombuffer(memory, np.uint8).reshape(shape)
