"""From asking to captioning: what every engine of ours does around one question (schema, judgement, one more try)."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import msgspec

from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.engine.captioner import Captioner, CaptionRecord, CaptionRequest
from framefleet.engine.judging import Verdict, another_try, judge
from framefleet.engine.prompts import schema_instruction
from framefleet.engine.question import Answer, OnText, Question, Turn
from framefleet.engine.record import record_of
from framefleet.errors import CaptionRejected, ConfigError


class AskingCaptioner:
    """A Captioner whose engine answers questions. Subclasses give `ask`; everything about captions is here."""

    name: str = ""
    needs_frames: bool = True
    model: str = ""

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        """Put one question. Raises CaptionError when no answer comes; never judges what the answer says.

        Cancelling the task withdraws the question where the engine works on it.
        """
        raise NotImplementedError

    async def start(self) -> None:
        """Open what is needed. Called by `async with`."""

    async def aclose(self) -> None:
        """End it; no process, socket or memory is left."""

    @property
    def is_ready(self) -> bool:
        """Whether a question would be worked on now."""
        return True

    @property
    def num_running(self) -> int:
        """Questions in the model now."""
        return 0

    @property
    def num_waiting(self) -> int:
        """Questions held that are not in the model yet."""
        return 0

    @property
    def versions(self) -> dict[str, str]:
        """Library -> version, for the record."""
        return {}

    async def caption(self, request: CaptionRequest, frames: DecodedFrames | None) -> CaptionRecord:
        """Describe the window. An answer that fails its schema, is empty or loops is a `rejected` record with the text.

        Raises CaptionError when no answer came, ConfigError when frames are needed and not given.
        """
        if self.needs_frames and frames is None:
            raise ConfigError(
                f"the engine {self.name} reads frames", given=f"no frames of {request.clip!r}", remedy="decode them"
            )
        started_s = time.perf_counter()
        answer, verdict = await self._settle(question_of(request, frames))
        answer = msgspec.structs.replace(answer, seconds=answer.seconds | {"total": time.perf_counter() - started_s})
        return record_of(request, frames, answer, verdict, engine=self.name, model=self.model, versions=self.versions)

    async def _settle(self, question: Question) -> tuple[Answer, Verdict]:
        """One answer and its verdict, after one more try where that can mend it."""
        answer = await self.ask(question)
        verdict = judge(answer, question)
        again = another_try(question, answer, verdict)
        if again is None:
            return answer, verdict
        answer = _together(answer, await self.ask(again))
        return answer, judge(answer, again)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AskedCaptioner(AskingCaptioner):
    """Any Captioner as something that answers questions: those of one turn, told when they are complete."""

    def __init__(self, captioner: Captioner, frame_policy: DecodeOptions) -> None:
        self._captioner = captioner
        self._frame_policy = frame_policy
        self.name = captioner.name
        self.needs_frames = captioner.needs_frames
        self.model = getattr(captioner, "model", captioner.name)

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        """The caption as an answer. Raises CaptionRejected for a conversation of several turns."""
        if len(question.turns) != 1:
            raise CaptionRejected(f"{self.name} takes one message only", given=f"{len(question.turns)} messages")
        request = CaptionRequest(
            clip=question.clip, content_digest="", span=question.span, prompt=question.turns[0].text, model=self.model,
            frames=self._frame_policy, generation=question.generation,
        )  # fmt: skip
        record = await self._captioner.caption(request, question.frames)
        if on_text:
            on_text(record.text)
        return Answer(
            text=record.text,
            finish_reason="length" if record.status == "truncated" else "stop",
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
            seconds=record.seconds,
        )

    async def aclose(self) -> None:
        """Close the captioner."""
        await self._captioner.aclose()


def question_of(request: CaptionRequest, frames: DecodedFrames | None) -> Question:
    """The request as a conversation of one turn."""
    text = request.prompt
    if request.schema is not None:
        text = f"{text}\n\n{schema_instruction(request.schema)}"
    return Question(
        turns=(Turn("user", text, has_video=True),),
        clip=request.clip,
        span=request.span,
        frames=frames,
        generation=request.generation,
        schema=request.schema,
    )


def _together(first: Answer, second: Answer) -> Answer:
    """The second answer with what both cost."""
    seconds = {
        phase: first.seconds.get(phase, 0.0) + second.seconds.get(phase, 0.0)
        for phase in first.seconds | second.seconds
    }
    return msgspec.structs.replace(
        second,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        attempts=first.attempts + second.attempts,
        seconds=seconds,
    )
