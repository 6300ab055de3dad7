"""The client's side: blocking, from any number of threads; a service that dies and comes back loses no request.

    client = ServiceClient("/run/decode.sock")
    frames = client.decode(clip, DecodeOptions(num_frames=16))

Every request has a connection of its own, which stays open as long as its frames are kept: so whatever ends the
client, or makes it drop the frames, gives their room back.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from framefleet.decode import wire
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.messages import restored, sendable
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import Source
from framefleet.decode.service.protocol import (
    Again,
    Answer,
    Ask,
    AskStats,
    Failure,
    FromService,
    ServiceStats,
    Started,
)
from framefleet.errors import DecoderLost, DeviceError, ServiceUnreachable
from framefleet.media.limits import Deadline
from framefleet.media.source import VideoSource

MAX_DEATHS = 2
"""A clip that a service died at so often is refused. (After the first it is decoded in a worker, if it may be.)"""
_RETRY_S = 0.05
_STATS_TIMEOUT_S = 5.0
_MAX_REMEMBERED = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class _Ended:
    """The connection ended without an answer."""

    was_at_it: bool
    """The service was decoding this clip, and not in a worker."""


class ServiceClient:
    """Asks the service at `path`.

    `patience_s`: how long one request may take in all, its turn and the service's restarts included (the clip's own
    clock is `DecodeOptions.timeout_s`). `grace_s`: how long requests wait for a service that does not answer.
    """

    def __init__(self, path: str | os.PathLike[str], *, patience_s: float = 600.0, grace_s: float = 30.0) -> None:
        self.path = os.fspath(path)
        self._patience_s = patience_s
        self._grace_s = grace_s
        self._away_since_s: float | None = None
        self._deaths: dict[str, int] = {}
        self._changing = threading.Lock()

    def decode(self, source: Source, options: DecodeOptions | None = None) -> DecodedFrames:
        """As `DecodePool.decode`, in the service. The frames lie in shared memory.

        Raises what it raises; DeviceError when `patience_s` is over; DecoderLost for a clip that killed the service
        MAX_DEATHS times; ServiceUnreachable when there is none for longer than the grace.
        """
        clip, clock = VideoSource.of(source), Deadline(self._patience_s)
        with _as_file(clip) as file:
            bare = _bare(clip, is_beside=file is not None)
            while (deaths := self._deaths.get(clip.name, 0)) < MAX_DEATHS:
                ask = Ask(sendable(bare), options or DecodeOptions(), is_suspect=deaths > 0)
                answer = self._ask(ask, file, clip, clock)
                if isinstance(answer, DecodedFrames):
                    return answer
                if answer.was_at_it:
                    self._note_death(clip)
                time.sleep(_RETRY_S)
        raise _quarantined(clip)

    def stats(self, timeout_s: float = _STATS_TIMEOUT_S) -> ServiceStats:
        """How the service is. Raises ServiceUnreachable."""
        try:
            with _open(self.path, timeout_s) as link:
                wire.send(link, AskStats())
                received = wire.receive(link)
        except OSError as error:
            raise self._unreachable(str(error), timeout_s) from error
        if received is None:
            raise self._unreachable("it closed the connection", timeout_s)
        stats: ServiceStats = received.decode(ServiceStats)
        return stats

    def _ask(self, ask: Ask, file: int | None, clip: VideoSource, clock: Deadline) -> DecodedFrames | _Ended:
        link = self._connect(clip, clock)
        answer: DecodedFrames | _Ended | None = None
        try:
            answer, files = _converse(link, ask, file, clip, clock)
        except TimeoutError:
            raise _impatient(clip, self._patience_s) from None
        finally:
            if not isinstance(answer, DecodedFrames):
                link.close()
        wire.when_dropped(files, link.close)
        return answer

    def _connect(self, clip: VideoSource, clock: Deadline) -> socket.socket:
        while True:
            try:
                link = _open(self.path, max(clock.remaining_s, 0.001))
            except BlockingIOError:  # it is there, with more connections than it has taken yet
                pass
            except OSError as error:
                self._note_absence(error)
            else:
                self._away_since_s = None
                return link
            if clock.remaining_s <= _RETRY_S:
                raise _impatient(clip, self._patience_s)
            time.sleep(_RETRY_S)

    def _note_absence(self, error: OSError) -> None:
        """The grace counts from the first look in vain, of whichever request: later ones do not wait it out again."""
        now_s = time.monotonic()
        since_s = self._away_since_s = self._away_since_s or now_s
        if now_s - since_s >= self._grace_s:
            raise self._unreachable(str(error), self._grace_s) from error

    def _unreachable(self, why: str, waited_s: float) -> ServiceUnreachable:
        return ServiceUnreachable(
            f"the decode service does not answer ({why})",
            given=f"{self.path!r}, for {waited_s:g} s",
            remedy="start it (python -m framefleet.decode.service --socket ...), or look why it does not stay up",
        )

    def _note_death(self, clip: VideoSource) -> None:
        """The service died at the clip; remembered also for later requests."""
        with self._changing:
            self._deaths[clip.name] = self._deaths.get(clip.name, 0) + 1
            while len(self._deaths) > _MAX_REMEMBERED:
                del self._deaths[next(iter(self._deaths))]


def _converse(
    link: socket.socket, ask: Ask, file: int | None, clip: VideoSource, clock: Deadline
) -> tuple[DecodedFrames | _Ended, list[wire.SharedFile]]:
    """The frames and the files they lie in. Raises TimeoutError, and what the service answers."""
    was_at_it = False
    try:
        wire.send(link, ask, [] if file is None else [os.dup(file)])
        while received := _next(link, clock):
            reply = received.decode(FromService)
            if isinstance(reply, Answer):
                return restored(received.decode(DecodedFrames, reply.frames)), received.files
            if isinstance(reply, Failure):
                raise reply.problem.error(clip.name)
            if isinstance(reply, Again):
                return _Ended(was_at_it=False), []
            was_at_it = isinstance(reply, Started) and not reply.is_isolated
    except ConnectionError:
        pass
    return _Ended(was_at_it), []


def _next(link: socket.socket, clock: Deadline) -> wire.Received | None:
    link.settimeout(max(clock.remaining_s, 0.001))
    return wire.receive(link)


def _open(path: str, timeout_s: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(timeout_s)
        link.connect(path)
    except BaseException:
        link.close()
        raise
    return link


@contextmanager
def _as_file(clip: VideoSource) -> Iterator[int | None]:
    """A clip in memory as a sealed memory file. (None has nothing to map: an empty one travels in the message.)"""
    if not clip.content:
        yield None
        return
    descriptor = wire.memory_file(clip.content)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _bare(clip: VideoSource, *, is_beside: bool) -> VideoSource:
    """For the message: without the bytes that go beside it, and with a path that does not depend on the folder."""
    if is_beside:
        return dataclasses.replace(clip, content=None)
    if clip.kind != "file":
        return clip
    return dataclasses.replace(clip, location=os.path.abspath(clip.location))  # noqa: PTH100 - as plain_path


def _impatient(clip: VideoSource, patience_s: float) -> DeviceError:
    return DeviceError(
        "the decode service had no answer in time",
        given=repr(clip.name),
        allowed=f"{patience_s:g} s, its turn and restarts included",
        remedy="fewer requests at once, or more patience",
    )


def _quarantined(clip: VideoSource) -> DecoderLost:
    return DecoderLost(
        f"the clip is quarantined: the decode service died at it {MAX_DEATHS} times",
        given=repr(clip.name),
        remedy="another backend",
    )
