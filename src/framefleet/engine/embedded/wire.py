"""What the engine and its model process say to each other. `decode.wire` carries it: frames are mapped, not copied."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet import errors
from framefleet.decode import wire
from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.clock import FrameClock
from framefleet.engine.question import FinishReason, Turn

Frames = npt.NDArray[np.uint8]


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
    """One question."""

    id: int
    turns: tuple[Turn, ...]
    clock: FrameClock
    frames: Frames | None
    """[T, H, W, 3] uint8; None once they are prepared."""
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
    """One end of a SOCK_SEQPACKET socket. `send` may be called from several threads, `receive` from one."""

    def __init__(self, link: socket.socket, receives: Any) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._receives = receives

    def send(self, message: ToProcess | FromProcess) -> None:
        """Send one message. Raises OSError."""
        with self._sending:
            wire.send(self._link, message)

    def receive(self) -> Any:
        """The next message. Raises EOFError when the other end is gone or talks nonsense."""
        try:
            received = wire.receive(self._link)
            if received is not None:
                return received.decode(self._receives)
        except errors.DecoderLost as error:
            raise EOFError(str(error)) from error
        raise EOFError

    def close(self) -> None:
        """End the conversation; a `receive` that waits in another thread ends with EOFError."""
        with contextlib.suppress(OSError):  # the other end went first
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
