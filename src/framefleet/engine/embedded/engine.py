"""The embedded engine: questions go to a model process of ours, which may die and is then started again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from framefleet.config import resolve
from framefleet.decode.options import DecodeOptions
from framefleet.engine.asking import AskingCaptioner
from framefleet.engine.clock import clock_of
from framefleet.engine.embedded.checkpoint import BUNDLED, Checkpoint, open_checkpoint
from framefleet.engine.embedded.frame_policy import policy_of
from framefleet.engine.embedded.process import ModelProcess
from framefleet.engine.embedded.wire import (
    Ask,
    Cancel,
    Done,
    Failed,
    FromProcess,
    Load,
    Piece,
    Ready,
    Started,
)
from framefleet.engine.question import Answer, OnText, Question
from framefleet.errors import CaptionRejected, EngineBusy, EngineLost, FramefleetError

_log = logging.getLogger(__name__)


class EmbeddedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model is loaded and batched."""

    model: str = BUNDLED
    """`dashcam_tiny` (bundled), a local folder, or a hub id of the Qwen3-VL, Qwen2.5-VL or SmolVLM2 families."""
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    dtype: Annotated[str, Meta(pattern="^(auto|float32|bfloat16|float16)$")] = "auto"
    """`auto` is the checkpoint's on a GPU and float32 on the CPU."""
    max_batch: Annotated[int, Meta(ge=1)] = 8
    """Questions generated together. More is faster and takes more memory."""
    max_batch_tokens: Annotated[int, Meta(ge=1)] = 65536
    """Bound on rows x longest (prompt + answer) of a batch; what memory is needed follows this."""
    batch_wait_ms: Annotated[float, Meta(ge=0)] = 5.0
    """How long a first question waits for others to join it."""
    max_queue: Annotated[int, Meta(ge=1)] = 256
    """Questions held at a time, frames included; one more is refused with EngineBusy."""
    num_threads: Annotated[int, Meta(ge=0)] = 0
    """CPU threads of the model process; 0 is one per core."""
    start_timeout_s: Annotated[float, Meta(gt=0)] = 900.0
    """Loading (a download included) may take this long."""
    stall_timeout_s: Annotated[float, Meta(gt=0)] = 600.0
    """A process that works on questions and gives no sign for this long is killed."""
    max_restarts: Annotated[int, Meta(ge=0)] = 5
    """Deaths in a row, with no answer between them, before the engine stays down."""


@dataclass(slots=True)
class _Pending:
    """A question that the process has."""

    answer: asyncio.Future[Done]
    on_text: OnText | None
    is_running: bool = False


def open_embedded(**settings: Any) -> EmbeddedEngine:
    """The embedded engine with these settings (see EmbeddedSettings)."""
    return EmbeddedEngine(resolve(EmbeddedSettings, "embedded", flags=settings).value)


class EmbeddedEngine(AskingCaptioner):
    """Captions with a model on this machine's CPU or GPU.

    Questions of any number of tasks are batched. When the process dies, those in flight raise EngineLost (retry
    later) and the next question starts it anew.
    """

    name = "embedded"
    needs_frames = True

    def __init__(self, settings: EmbeddedSettings) -> None:
        self.settings = settings
        self.model = settings.model
        self.ready: Ready | None = None
        """What the running process said when it had loaded."""
        self._versions: dict[str, str] = {}
        self._checkpoint: Checkpoint | None = None
        self._process: ModelProcess | None = None
        self._loaded: asyncio.Future[Ready] | None = None
        self._starting = asyncio.Lock()
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        self._deaths_in_a_row = 0
        self._last_sign_s = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._revival: asyncio.Task[None] | None = None
        self._has_warned = False
        self._is_closed = False

    @property
    def versions(self) -> dict[str, str]:
        return self._versions

    @property
    def is_ready(self) -> bool:
        return self._process is not None and self.ready is not None

    @property
    def num_running(self) -> int:
        return sum(pending.is_running for pending in self._pending.values())

    @property
    def num_waiting(self) -> int:
        return len(self._pending) - self.num_running

    @property
    def pid(self) -> int | None:
        """Of the model process, while it runs."""
        return self._process.pid if self._process else None

    @property
    def frame_policy(self) -> DecodeOptions:
        """How the model wants its frames."""
        return policy_of(self._opened())

    @property
    def revision(self) -> str:
        """Of the model's files, for the resume key."""
        return self._opened().revision

    async def start(self) -> None:
        """Load the model. Raises ConfigError, MissingLibrary, DeviceError or EngineLost."""
        self._checkpoint = await asyncio.to_thread(open_checkpoint, self.settings.model)
        self._is_closed = False
        await self._running()
        self._watch = asyncio.create_task(self._kill_when_silent())
        if notice := self._checkpoint.notice.get("notice"):
            _log.info("%s", notice)

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        """Put one question. Raises EngineBusy, EngineLost, CaptionRejected, DeviceError or ConfigError."""
        if question.frames is None or len(question.frames) == 0:
            raise CaptionRejected("there are no frames to describe", given=repr(question.clip))
        if len(self._pending) >= self.settings.max_queue:
            raise EngineBusy("the engine's queue is full", given=f"max_queue={self.settings.max_queue}")
        process = await self._running()
        question_id = next(self._ids)
        pending = _Pending(asyncio.get_running_loop().create_future(), on_text)
        self._pending[question_id] = pending
        try:
            await self._send_question(process, question_id, question, wants_text=on_text is not None)
            done = await pending.answer
        except asyncio.CancelledError:
            self._withdraw(process, question_id)
            raise
        finally:
            self._pending.pop(question_id, None)
        self._warn_once(done.mean_logprob)
        return _answer(done)

    async def aclose(self) -> None:
        """End the process. Questions in flight raise EngineLost."""
        self._is_closed = True
        for task in (self._watch, self._revival):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if process := self._process:
            self._process = None
            await asyncio.to_thread(process.close)
        self._fail_all(EngineLost("the engine was closed"))

    def _opened(self) -> Checkpoint:
        if self._checkpoint is None:
            self._checkpoint = open_checkpoint(self.settings.model)
        return self._checkpoint

    async def _running(self) -> ModelProcess:
        """The process, loaded; started if there is none."""
        async with self._starting:
            if self._is_closed:
                raise EngineLost("the engine is closed")
            if self._process is None:
                if self._deaths_in_a_row > self.settings.max_restarts:
                    raise EngineLost(
                        "the model process keeps dying",
                        given=f"{self._deaths_in_a_row} deaths in a row",
                        remedy="see its output; smaller batches or a smaller model",
                    )
                await self._launch()
            assert self._process is not None
            return self._process

    async def _revive(self) -> None:
        """Start it again without waiting for the next question, so that health comes back by itself."""
        await asyncio.sleep(min(0.1 * 2**self._deaths_in_a_row, 10.0))
        try:
            await self._running()
        except FramefleetError as error:
            _log.warning("the model process was not started again: %s", error)

    async def _launch(self) -> None:
        self.ready = None
        loop = asyncio.get_running_loop()
        self._loaded = loop.create_future()

        def on_message(message: FromProcess) -> None:
            loop.call_soon_threadsafe(self._on_message, message)

        def on_end(process: ModelProcess) -> None:
            loop.call_soon_threadsafe(self._on_end, process)

        process = await asyncio.to_thread(ModelProcess, _load(self.settings), on_message, on_end)
        self._process = process
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                self.ready = await self._loaded
        except TimeoutError:
            await self._discard(process)
            raise EngineLost(
                "the model was not loaded in time", given=f"start_timeout_s={self.settings.start_timeout_s:g}"
            ) from None
        except BaseException:
            await self._discard(process)
            raise
        self._versions = self.ready.versions
        self._last_sign_s = time.monotonic()
        _log.info("%s is loaded on %s (%s)", self.model, self.ready.device, self.ready.dtype)

    async def _discard(self, process: ModelProcess) -> None:
        self._process = None
        await asyncio.to_thread(process.close)

    async def _send_question(
        self, process: ModelProcess, question_id: int, question: Question, *, wants_text: bool
    ) -> None:
        frames = question.frames
        assert frames is not None
        message = Ask(
            id=question_id,
            turns=question.turns,
            clock=clock_of(frames, question.span),
            frames=frames.data.cpu().numpy() if hasattr(frames.data, "cpu") else frames.data,
            generation=question.generation,
            wants_text=wants_text,
        )
        if len(self._pending) == 1:
            self._last_sign_s = time.monotonic()  # it was idle until now
        try:
            await asyncio.to_thread(process.send, message)
        except OSError as error:
            raise EngineLost("the model process is gone", given=str(error)) from error

    def _withdraw(self, process: ModelProcess, question_id: int) -> None:
        with contextlib.suppress(OSError):  # it is gone, and the question with it
            process.send(Cancel(question_id))

    def _on_message(self, message: FromProcess) -> None:
        self._last_sign_s = time.monotonic()
        match message:
            case Ready():
                _settle(self._loaded, message)
            case Failed(id=0):
                _settle(self._loaded, message.error())
            case Started(ids=ids):
                for started in filter(None, map(self._pending.get, ids)):
                    started.is_running = True
            case Piece(id=question_id, text=text):
                if (pending := self._pending.get(question_id)) and pending.on_text:
                    pending.on_text(text)
            case Done() | Failed():
                self._deaths_in_a_row = 0
                if pending := self._pending.get(message.id):
                    _settle(pending.answer, message.error() if isinstance(message, Failed) else message)

    def _on_end(self, process: ModelProcess) -> None:
        """The process is gone: everything it had is lost."""
        if process is not self._process:
            return
        was_loaded, self._process, self.ready = self.is_ready, None, None
        self._deaths_in_a_row += 1
        error = EngineLost("the model process is gone", given=process.fate(), remedy="the next request starts it anew")
        _log.warning("%s", error)
        _settle(self._loaded, error)
        self._fail_all(error)
        if was_loaded and not self._is_closed:
            self._revival = asyncio.create_task(self._revive())

    def _fail_all(self, error: Exception) -> None:
        for pending in self._pending.values():
            _settle(pending.answer, error)

    async def _kill_when_silent(self) -> None:
        limit_s = self.settings.stall_timeout_s
        while True:
            await asyncio.sleep(min(limit_s / 4, 10.0))
            if self._pending and self._process and time.monotonic() - self._last_sign_s > limit_s:
                _log.warning("the model process gave no sign for %.0f s and is killed", limit_s)
                self._process.kill()

    def _warn_once(self, mean_logprob: float | None) -> None:
        """A model of limited knowledge says so the first time that it is clearly unsure of its words."""
        notice = self._opened().notice
        floor = notice.get("min_mean_logprob")
        if self._has_warned or mean_logprob is None or floor is None or mean_logprob >= floor:
            return
        self._has_warned = True
        _log.warning("%s (this clip looks like nothing that the model knows)", notice.get("notice", self.model))


def _load(settings: EmbeddedSettings) -> Load:
    return Load(
        model=settings.model,
        device=settings.device,
        dtype=settings.dtype,
        max_batch=settings.max_batch,
        max_batch_tokens=settings.max_batch_tokens,
        batch_wait_s=settings.batch_wait_ms / 1000,
        num_threads=settings.num_threads or len(os.sched_getaffinity(0)),
    )


def _settle(future: asyncio.Future[Any] | None, outcome: object) -> None:
    if future is None or future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _answer(done: Done) -> Answer:
    return Answer(
        text=done.text,
        finish_reason=done.finish_reason,
        prompt_tokens=done.prompt_tokens,
        completion_tokens=done.completion_tokens,
        mean_logprob=done.mean_logprob,
        seconds=done.seconds,
    )
