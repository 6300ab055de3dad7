"""What a pool and its workers say to each other, errors included. `wire` carries it."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from framefleet import errors
from framefleet.decode.tasks import Job
from framefleet.errors import DecoderBug, FramefleetError, SourceTooLarge
from framefleet.media.source import VideoSource

_FOREIGN = "foreign:"
_OUT_OF_MEMORY = f"{_FOREIGN}MemoryError"
_TRACE_CHARS = 20_000


class Problem(msgspec.Struct):
    """An error. `kind` names a class of `framefleet.errors`, or is `foreign:` and the name of any other class."""

    kind: str
    what: str
    given: str = ""
    allowed: str = ""
    remedy: str = ""
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """To send `error`. A third party's subclass becomes the class of the tree above it.

        What memory was short for is sent as MemoryError: the parent finds out whether another worker has enough. (A
        damaged header that promises the moon also fails with one, but as SourceCorrupt.)
        """
        is_short = isinstance(error, SourceTooLarge) and isinstance(error.__cause__, MemoryError)
        if is_short or isinstance(error, MemoryError):
            return cls(_OUT_OF_MEMORY, _plain(str(error)))
        if isinstance(error, FramefleetError):
            kind = next(c for c in type(error).__mro__ if c.__module__ == FramefleetError.__module__)
            return cls(kind.__name__, *map(_plain, (error.what, error.given, error.allowed, error.remedy)))
        trace = "".join(traceback.format_exception(error))[-_TRACE_CHARS:]
        return cls(_FOREIGN + type(error).__qualname__, _plain(str(error)), trace=_plain(trace))

    def error(self, clip_name: str) -> FramefleetError | MemoryError:
        """To raise what was sent: the same class, MemoryError, or DecoderBug (its notes hold the traceback)."""
        if self.kind == _OUT_OF_MEMORY:
            return MemoryError(self.what)
        if not self.kind.startswith(_FOREIGN):
            kind: type[FramefleetError] = getattr(errors, self.kind)
            return kind(self.what, given=self.given, allowed=self.allowed, remedy=self.remedy)
        bug = DecoderBug(
            f"decoding raised {self.kind.removeprefix(_FOREIGN)}: {self.what}",
            given=repr(clip_name),
            allowed="errors of framefleet.errors only",
            remedy="another backend, and report it with the clip and the traceback",
        )
        bug.add_note(self.trace)
        return bug


class Vitals(msgspec.Struct):
    """How a worker is after a job."""

    rss_bytes: int
    peak_rss_bytes: int
    """Highest during the job."""
    num_files: int
    num_threads: int


class Setup(msgspec.Struct, tag="setup"):
    """First message to a worker."""

    tasks: str
    """Module the tasks are taken from."""
    memory_bytes: int | None
    """Private memory the worker may take besides the frames it was granted (RLIMIT_DATA)."""
    niceness: int = 0
    """Added to the process's own."""


class Ready(msgspec.Struct, tag="ready"):
    """Libraries are loaded; jobs may come."""


class Ask(msgspec.Struct, tag="ask"):
    """The output frames will take this much."""

    nbytes: int


class Grant(msgspec.Struct, tag="grant"):
    """There is room."""


class Deny(msgspec.Struct, tag="deny"):
    """There is none; give the job up."""

    problem: Problem


class Answer(msgspec.Struct, tag="answer"):
    """The task's result, of the type that the tasks' `RESULTS` name."""

    result: msgspec.Raw
    vitals: Vitals


class Failure(msgspec.Struct, tag="failure"):
    """The task raised."""

    problem: Problem
    vitals: Vitals


ToWorker = Setup | Job | Grant | Deny
FromWorker = Ready | Ask | Answer | Failure


_ODD_NAME = "\0"
"""Before the location of a file whose name is not UTF-8, in a message. No path begins with it."""


def sendable(value: Any) -> Any:
    """`value` with the names of its sources in valid UTF-8: file names may hold any bytes, messages may not."""
    return _with_sources(value, _hide)


def restored(value: Any) -> Any:
    """What `sendable` was given."""
    return _with_sources(value, _reveal)


def _with_sources(value: Any, change: Callable[[VideoSource], VideoSource]) -> Any:
    if isinstance(value, VideoSource):
        return change(value)
    parts = {name: getattr(value, name, None) for name in ("source", "scanned", "clip")}
    changed = {name: _with_sources(part, change) for name, part in parts.items() if part is not None}
    if all(part is parts[name] for name, part in changed.items()):
        return value
    replace = msgspec.structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
    return replace(value, **changed)


def _hide(source: VideoSource) -> VideoSource:
    if _plain(source.location) == source.location:
        return source
    hidden = source.location.encode("utf-8", "surrogatepass").decode("latin-1")
    return dataclasses.replace(source, location=_ODD_NAME + hidden)


def _reveal(source: VideoSource) -> VideoSource:
    if not source.location.startswith(_ODD_NAME):
        return source
    location = source.location[1:].encode("latin-1", "replace").decode("utf-8", "surrogatepass")
    return dataclasses.replace(source, location=location)


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
