"""The backend's side of the host: start it, have streams decoded by their deadlines, kill it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet.decode import wire
from framefleet.decode.child import ChildProcess, last_line
from framefleet.decode.deepstream.messages import Ask, FromHost, Open, Reply
from framefleet.errors import DecoderLost, DecodeTimeout, DeviceError, FramefleetError
from framefleet.media.limits import Deadline

_MODULE = "framefleet.decode.deepstream.host"
_LEAST_S = 0.01
_BURIAL_S = 15.0


@dataclass(frozen=True, slots=True)
class HostSetting:
    """What a host is started with."""

    opening: Open
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {}
    """Variables of its own, given an empty folder that lasts as long as the process."""
    start_timeout_s: float = 60.0


class HostProcess:
    """One host. `decode` serves many threads at once; when the process ends, all of them hear of it.

    Raises DeviceError when it cannot be started.
    """

    def __init__(self, setting: HostSetting) -> None:
        self._setting = setting
        self._numbers = count()
        self._waiting: dict[int, Future[Any]] = {}
        self._changing = threading.Lock()
        self._is_open = True
        self._why_killed = ""
        started: Future[ChildProcess] = Future()
        self._life = threading.Thread(target=self._live, args=(started,), name="deepstream-host", daemon=True)
        self._life.start()
        self._child = started.result()

    @property
    def is_alive(self) -> bool:
        """Whether streams can be sent to it."""
        return self._is_open

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def decode(self, ask: Ask, deadline: Deadline, name: str) -> npt.NDArray[np.uint8]:
        """uint8 [R, H, W, 3]. A passed deadline kills the process, with what else it was at.

        Raises DecodeTimeout, DecoderLost, or what the host raised.
        """
        deadline.check("waiting for DeepStream", name)  # what was not begun need not be killed
        ask = msgspec.structs.replace(ask, number=next(self._numbers))
        reply = self._expect(ask.number)
        try:
            wire.send(self._child.link, ask)
            answer: Reply = reply.result(max(deadline.remaining_s, _LEAST_S))
        except TimeoutError:
            self.kill("another clip passed its deadline")
            raise DecodeTimeout(
                "the clip's deadline passed; DeepStream's process was killed",
                given=repr(name),
                allowed=f"{deadline.timeout_s:g} s",
                remedy="a longer timeout_s, or another backend",
            ) from None
        except OSError as error:
            raise DecoderLost("DeepStream's process is gone", given=repr(name)) from error
        finally:
            self._waiting.pop(ask.number, None)
        if answer.problem:
            raise answer.problem.error(name)
        assert answer.frames is not None
        return answer.frames

    def kill(self, why: str = "") -> None:
        """End it now."""
        self._is_open = False
        self._why_killed = self._why_killed or why
        self._child.kill()

    def close(self) -> None:
        """End it, and wait until it is buried."""
        self.kill()
        self._life.join(_BURIAL_S)

    def _expect(self, number: int) -> Future[Any]:
        reply: Future[Any] = Future()
        with self._changing:
            if not self._is_open:
                raise DecoderLost("DeepStream's process is gone", remedy="another backend")
            self._waiting[number] = reply
        return reply

    def _live(self, started: Future[ChildProcess]) -> None:
        """The thread the process lives under: starts it, hands out its replies, buries it."""
        with TemporaryDirectory(prefix="framefleet-deepstream-") as scratch:
            try:
                child = ChildProcess(_MODULE, num_threads=1, environment=self._setting.environment(Path(scratch)))
                self._open(child)
            except (OSError, FramefleetError) as error:
                self._is_open = False
                started.set_exception(error)
                return
            started.set_result(child)
            while self._hand_out_one(child):
                pass
            with self._changing:
                self._is_open = False
            how, words = child.end()
        for reply in list(self._waiting.values()):
            if not reply.done():
                reply.set_exception(self._lost(how, words))

    def _open(self, child: ChildProcess) -> None:
        """Have the pool opened. Raises DeviceError if it cannot be, and has ended the process then."""
        child.link.settimeout(self._setting.start_timeout_s)
        try:
            wire.send(child.link, self._setting.opening)
            received = wire.receive(child.link)
            problem = received.decode(FromHost).problem if received else None
        except (OSError, DecoderLost):
            received = problem = None
        if received is not None and problem is None:
            child.link.settimeout(None)
            return
        child.kill()
        how, words = child.end()
        if problem is not None:
            raise problem.error("")
        raise DeviceError(
            "DeepStream's process does not start", given=f"{how} ({last_line(words)})", remedy="framefleet doctor"
        )

    def _hand_out_one(self, child: ChildProcess) -> bool:
        """Wait for a reply; False when there will be none. Keeps nothing of it: it holds frames."""
        try:
            received = wire.receive(child.link)
            message = received.decode(FromHost) if received else None
        except (OSError, DecoderLost):
            message = None
        if not isinstance(message, Reply):
            child.kill()
            return False
        if reply := self._waiting.get(message.number):
            reply.set_result(message)
        return True

    def _lost(self, how: str, words: str) -> DecoderLost:
        why = self._why_killed or "; ".join(part for part in (how, last_line(words)) if part)
        error = DecoderLost(f"DeepStream's process died ({why})", remedy="another backend")
        if words:
            error.add_note(words)
        return error
