"""What an engine is asked, and what it answers: the level below captions, where turns, cuts and tokens are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from framefleet.decode.decoder import DecodedFrames
from framefleet.engine.captioner import GenerationSettings
from framefleet.units import Span

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length"]
OnText = Callable[[str], None]
"""Called in the event loop with each further piece of the answer."""


class Turn(msgspec.Struct, frozen=True):
    """One message of the conversation."""

    role: Role
    text: str
    has_video: bool = False
    """The clip stands before the text of this turn; true for exactly one turn."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation about one window of one clip."""

    turns: tuple[Turn, ...]
    clip: str = ""
    """Where the clip is; read by engines that need no frames."""
    span: Span | None = None
    frames: DecodedFrames | None = None
    generation: GenerationSettings = GenerationSettings()
    schema: dict[str, Any] | None = None
    """The JSON schema that the answer should meet. Servers that can constrain generation are told of it."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back, as it came."""

    text: str
    finish_reason: FinishReason
    reasoning: str = ""
    """What a reasoning model said beside its answer (`reasoning_content`)."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
    """Requests it took, those answered with an error included."""
    mean_logprob: float | None = None
    """Mean log-probability of the chosen tokens; None where the engine does not tell."""
    seconds: dict[str, float] = {}
