"""One step: a window in, a record out, whatever happens. Every runner calls this and nothing else.

Every error of the tree becomes a record with its class and message. `retry = later` is tried again after a pause, a few
times; `elsewhere` is not (another backend is for `auto` to find, another replica for the proxy). An error outside the
tree is a fault of ours: it becomes a record too (`blame` bug), with its traceback in the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from framefleet import errors
from framefleet._version import __version__
from framefleet.caption.ledger import stamp_of
from framefleet.caption.reader import ClipReader
from framefleet.decode.decoder import DecodedFrames, ScannedClip
from framefleet.decode.options import DecodeOptions
from framefleet.engine.captioner import Captioner, CaptionRecord, CaptionRequest, Status
from framefleet.errors import CaptionRejected, FramefleetError, SourceUnavailable
from framefleet.media.source import VideoSource
from framefleet.telemetry import Occupancy, PhaseClock
from framefleet.units import NS_PER_S

_log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_MESSAGE_CHARS = 2000


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A window that is to be described. Pickles."""

    request: CaptionRequest
    source: VideoSource
    stamp: str = ""
    """The file's stamp when its content digest was taken; empty where none is known."""
    scanned: ScannedClip | None = None
    """The clip's scan, where windows needed one: it need not be scanned again for each."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How often and after what pause something is tried again."""

    attempts: int = 3
    """Tries in all, the first included."""
    first_pause_s: float = 0.5
    """Doubles each time, by chance up to half longer."""
    max_pause_s: float = 30.0

    def pause_s(self, tries: int) -> float:
        """After so many tries."""
        return min(self.max_pause_s, self.first_pause_s * 2.0 ** (tries - 1)) * random.uniform(1.0, 1.5)


DEFAULT_PATIENCE = Patience()
EngineSlot = Callable[[], AbstractAsyncContextManager[object]]


def no_slot() -> AbstractAsyncContextManager[object]:
    """For callers that bound the engine's load themselves."""
    return nullcontext()


async def step(
    work: Work,
    *,
    reader: ClipReader,
    engine: Captioner,
    patience: Patience = DEFAULT_PATIENCE,
    engine_slot: EngineSlot = no_slot,
    occupancy: Occupancy | None = None,
) -> CaptionRecord:
    """Decode (where the engine wants frames) and caption one window. Raises nothing but cancellation.

    `engine_slot` is entered around the captioning, so frames may wait decoded; `occupancy` counts who stands where.
    """
    tries = _Tries(work, reader, engine, engine_slot, occupancy or Occupancy())
    try:
        record = await patiently(tries.run, patience)
    except FramefleetError as error:
        return failure(work.request, error, engine.name, tries.clock, tries.count)
    except Exception as error:  # noqa: BLE001  # whatever it is, the window must not be lost
        _log.exception("a fault of framefleet's own on %s", work.request.clip)
        return failure(work.request, error, engine.name, tries.clock, tries.count)
    seconds = record.seconds | tries.clock.as_seconds()
    versions = record.versions | ({"model": work.request.revision} if work.request.revision else {})
    return msgspec.structs.replace(
        record,
        digest=work.request.digest,  # whatever an engine made of them: by these the window is found again
        clip=work.request.clip,
        attempts=record.attempts + tries.count - 1,
        seconds=seconds,
        versions=versions,
    )


async def patiently(act: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """`await act()`, again after a pause when it says `retry = later`, until patience ends."""
    tries = 1
    while True:
        try:
            return await act()
        except FramefleetError as error:
            if error.retry != "later" or tries >= patience.attempts:
                raise
        await asyncio.sleep(patience.pause_s(tries))
        tries += 1


class _Tries:
    """The tries at one window; decoded frames are kept for the next one."""

    def __init__(
        self, work: Work, reader: ClipReader, engine: Captioner, engine_slot: EngineSlot, occupancy: Occupancy
    ) -> None:
        self.work, self.reader, self.engine = work, reader, engine
        self.engine_slot, self.occupancy = engine_slot, occupancy
        self.clock = PhaseClock()
        self.frames: DecodedFrames | None = None
        self.count = 0

    async def run(self) -> CaptionRecord:
        self.count += 1
        wants_frames = self.engine.needs_frames or self.work.request.span is not None  # no server cuts windows
        if wants_frames and self.frames is None:
            self.frames = await self._decode()
        async with AsyncExitStack() as stack:
            with self.clock.phase("wait_engine"), self.occupancy.at("ready"):
                await stack.enter_async_context(self.engine_slot())
            with self.clock.phase("caption"), self.occupancy.at("caption"):
                return await self.engine.caption(self.work.request, self.frames)

    async def _decode(self) -> DecodedFrames:
        with self.clock.phase("read"), self.occupancy.at("decode"):
            clip = self.work.scanned or self.work.source
            frames = await self.reader.decode(clip, options_for(self.work.request))
        await check_unchanged(self.work)
        return frames


def options_for(request: CaptionRequest) -> DecodeOptions:
    """The frame policy with the request's window in it."""
    return msgspec.structs.replace(request.frames, span=request.span)


async def check_unchanged(work: Work) -> None:
    """Raises SourceUnavailable when the file is no longer the one whose digest the request bears."""
    if not work.stamp or work.source.kind != "file":
        return
    try:
        now = await asyncio.to_thread(stamp_of, work.source.location)
    except OSError as error:
        now = f"gone ({error.strerror})"
    if now != work.stamp:
        raise SourceUnavailable(
            "the clip changed while it was read", given=repr(work.request.clip), remedy="run again when it is complete"
        )


def failure(
    request: CaptionRequest, error: Exception, engine: str, clock: PhaseClock | None = None, attempts: int = 1
) -> CaptionRecord:
    """The record of a window that could not be described."""
    status: Status = "rejected" if isinstance(error, CaptionRejected) else "failed"
    text = str(error)
    if not isinstance(error, FramefleetError):
        text = f"{type(error).__name__}: {error} (a fault of framefleet's own, please report it)"
    span = request.span
    return CaptionRecord(
        digest=request.digest,
        clip=request.clip,
        content_digest=request.content_digest,
        start_s=span.start_ns / NS_PER_S if span else 0.0,
        end_s=span.end_ns / NS_PER_S if span else 0.0,
        prompt=request.prompt,
        status=status,
        reason=type(error).__name__,
        message=storable(text),
        model=request.model,
        engine=engine,
        attempts=attempts,
        seconds=clock.as_seconds() if clock else {},
        versions={"framefleet": __version__},
        created_at=utc_now(),
    )


def copied(record: CaptionRecord, request: CaptionRequest) -> CaptionRecord:
    """A finished record for another place of the same content: same words, no work (`attempts` 0)."""
    return msgspec.structs.replace(
        record, digest=request.digest, clip=request.clip, attempts=0, seconds={}, created_at=utc_now()
    )


def error_class_of(record: CaptionRecord) -> type[FramefleetError]:
    """The class that a failed or rejected record names; FramefleetError itself (blame bug) for what is not ours."""
    found = getattr(errors, record.reason, FramefleetError)
    return found if isinstance(found, type) and issubclass(found, FramefleetError) else FramefleetError


def utc_now() -> str:
    """ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def storable(text: str) -> str:
    """One line that any store takes: no lone surrogates, no NUL, no line ends, of bounded length."""
    clean = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return " ".join(clean.split())[:MAX_MESSAGE_CHARS]
