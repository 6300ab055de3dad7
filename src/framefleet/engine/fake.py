"""The shipped fake: answers from the frames themselves or from a script, and fails on demand. No model, no waiting.

Frames with a barcode (ten 16-pixel blocks in the top row, least significant left) are answered with the numbers they
carry, so that a test sees which frames really arrived.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from framefleet.config import resolve
from framefleet.decode.decoder import DecodedFrames
from framefleet.engine.asking import AskingCaptioner
from framefleet.engine.question import Answer, OnText, Question
from framefleet.errors import CaptionRejected, ConfigError, EngineBusy, EngineLost

BARCODE_BITS, BARCODE_BLOCK = 10, 16
FAULTS = ("", "busy", "lost", "rejected", "cut", "empty", "reasoning", "looping", "wrong_type", "surrogate")


class FakeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it says and how it fails."""

    model: str = "fake"
    """The name it goes by."""
    answers: tuple[str, ...] = ()
    """Said in turn, over and over; empty: what the frames show."""
    faults: tuple[str, ...] = ()
    """Done in turn, over and over; "" is none. busy, lost and rejected are raised; the others spoil the answer."""
    delay_s: Annotated[float, Meta(ge=0)] = 0.0
    """Every answer takes this long."""
    max_at_once: Annotated[int, Meta(ge=1)] = 1_000_000
    """More questions at a time are refused with EngineBusy."""
    needs_frames: bool = True
    """False: answers from the clip's name alone."""


def open_fake(**settings: Any) -> FakeEngine:
    """The fake engine with these settings (see FakeSettings). Raises ConfigError."""
    return FakeEngine(resolve(FakeSettings, "fake", flags=settings).value)


class FakeEngine(AskingCaptioner):
    """Counts what it is asked (`num_asked`) and how many at a time (`most_at_once`)."""

    name = "fake"

    def __init__(self, settings: FakeSettings) -> None:
        if unknown := sorted(set(settings.faults) - set(FAULTS)):
            raise ConfigError("no such fault", given=", ".join(unknown), allowed=", ".join(FAULTS[1:]))
        self.settings = settings
        self.model = settings.model
        self.needs_frames = settings.needs_frames
        self.num_asked = 0
        self.num_cancelled = 0
        self.most_at_once = 0
        self._at_once = 0
        self._answers = itertools.cycle(settings.answers or ("",))
        self._faults = itertools.cycle(settings.faults or ("",))

    @property
    def num_running(self) -> int:
        return self._at_once

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        """The next answer, or the next fault."""
        if self._at_once >= self.settings.max_at_once:
            raise EngineBusy("the fake is asked too much at once", given=f"max_at_once={self.settings.max_at_once}")
        self.num_asked += 1
        fault, scripted = next(self._faults), next(self._answers)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self.settings.delay_s)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self._at_once -= 1
        _raise_fault(fault)
        answer = _spoilt(_answer(question, scripted), fault)
        if on_text:
            for piece in answer.text.splitlines(keepends=True):
                on_text(piece)
        return answer


def read_barcodes(frames: DecodedFrames) -> list[int] | None:
    """The frame numbers in the pixels [T], or None where the top row holds no barcode."""
    middle = BARCODE_BLOCK // 2
    if frames.data.shape[1] <= middle or frames.data.shape[2] < BARCODE_BITS * BARCODE_BLOCK:
        return None
    samples = np.asarray(frames.data)[:, middle, middle : BARCODE_BITS * BARCODE_BLOCK : BARCODE_BLOCK].mean(-1)
    if np.any((samples > 64) & (samples < 192)):
        return None
    return [int(number) for number in ((samples > 127) << np.arange(BARCODE_BITS)).sum(-1)]


def describe(frames: DecodedFrames) -> str:
    """What can be said of frames without a model."""
    numbers = read_barcodes(frames)
    if numbers is not None:
        return "Frames " + " ".join(map(str, numbers)) + "."
    red, green, blue = np.asarray(frames.data).reshape(-1, 3).mean(0).round().astype(int)
    times = f"from {frames.pts_s[0]:.3f} s to {frames.pts_s[-1]:.3f} s"
    _, height, width, _ = frames.data.shape
    return f"{len(frames)} frames of {width}x{height} {times}, mean colour #{red:02x}{green:02x}{blue:02x}."


def example_of(schema: Any) -> Any:
    """A value that meets a plain schema (type, enum, const, properties, items, minItems)."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    match schema.get("type", "object"):
        case "object":
            return {name: example_of(part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [example_of(schema.get("items", {}))] * max(schema.get("minItems", 0), 1)
        case plain:
            return {"string": "fake", "integer": 1, "number": 1.0, "boolean": True}.get(str(plain))


def _answer(question: Question, scripted: str) -> Answer:
    text = scripted or _own_words(question)
    words = sum(len(turn.text.split()) for turn in question.turns)
    return Answer(
        text=text,
        finish_reason="stop",
        prompt_tokens=words,
        completion_tokens=len(text.split()),
        seconds={"queue": 0.0, "generate": 0.0},
    )


def _own_words(question: Question) -> str:
    if question.schema is not None:
        return json.dumps(example_of(question.schema))
    return describe(question.frames) if question.frames is not None else f"A clip called {question.clip}."


def _raise_fault(fault: str) -> None:
    if fault == "busy":
        raise EngineBusy("the fake is busy", remedy="come again")
    if fault == "lost":
        raise EngineLost("the fake is lost", remedy="come again")
    if fault == "rejected":
        raise CaptionRejected("the fake does not want this request")


def _spoilt(answer: Answer, fault: str) -> Answer:
    spoilt: dict[str, dict[str, Any]] = {
        "cut": {"text": answer.text[: len(answer.text) // 2], "finish_reason": "length"},
        "empty": {"text": ""},
        "reasoning": {"text": "", "reasoning": answer.text},
        "looping": {"text": "again " * 500, "finish_reason": "length"},
        "wrong_type": {"text": '"a string"'},
        "surrogate": {"text": "a \ud83d lone surrogate and a \0"},
    }
    return msgspec.structs.replace(answer, **spoilt.get(fault, {}))
