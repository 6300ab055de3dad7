"""What a pool and its workers say to each other, errors included. `wire` carries it."""

from __future__ import annotations

import traceback

import msgspec

from framefleet import errors
from framefleet.decode.tasks import Job
from framefleet.errors import DecoderBug, FramefleetError

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
        """To send `error`. A third party's subclass becomes the class of the tree above it; whatever MemoryError caused
        is sent as that, for the parent to find out whether another worker would have had enough."""
        if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
            return cls(_OUT_OF_MEMORY, str(error))
        if isinstance(error, FramefleetError):
            kind = next(c for c in type(error).__mro__ if c.__module__ == FramefleetError.__module__)
            return cls(kind.__name__, error.what, error.given, error.allowed, error.remedy)
        trace = "".join(traceback.format_exception(error))[-_TRACE_CHARS:]
        return cls(_FOREIGN + type(error).__qualname__, str(error), trace=trace)

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
