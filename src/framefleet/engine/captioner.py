"""The engine contract: a request with its frames in, a record out. The record is what the store keeps."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, Protocol

import msgspec

from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.units import Span

Status = Literal["ok", "truncated", "rejected", "failed"]


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drawn. Part of the resume key."""

    max_tokens: int = 200
    """Longest answer; a longer one is cut (`truncated`)."""
    temperature: float = 0.0
    """0 takes the likeliest token every time; higher is more varied and less repeatable."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that make up this share."""
    seed: int | None = None
    """Makes drawn answers repeatable, where the engine can."""
    extra: dict[str, Any] = {}
    """Passed through to the server unchanged (`top_k`, `repetition_penalty` ...)."""


class CaptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One window of one clip to be described."""

    clip: str
    """Where the clip is: an absolute path or a URL (see caption.inputs.clip_name)."""
    content_digest: str
    """Digest of the clip's bytes (hex); empty when they could not be read."""
    span: Span | None
    """The window; None is the whole clip."""
    prompt: str
    schema: dict[str, Any] | None = None
    """JSON schema that the answer must meet."""
    model: str
    revision: str = ""
    """Tells one state of the model from another under the same name; empty where the engine cannot tell."""
    frames: DecodeOptions
    """The frame policy; only the parts that change the picture enter the digest."""
    generation: GenerationSettings = GenerationSettings()

    @property
    def digest(self) -> str:
        """The resume key (32 hex digits): place of the clip + all that `answer_digest` has. One record each."""
        return self._digest_of(self.clip)

    @property
    def answer_digest(self) -> str:
        """What decides the answer: content, window, prompt, schema, model and its revision, frame policy, generation.

        Equal for clips of equal content, so one answer serves them all.
        """
        return self._digest_of()

    def _digest_of(self, *place: str) -> str:
        key = (
            *place, self.content_digest, self.span, self.prompt, self.schema, self.model, self.revision,
            frame_policy(self.frames), self.generation,
        )  # fmt: skip
        return hashlib.blake2b(msgspec.json.encode(key, order="deterministic"), digest_size=16).hexdigest()


def frame_policy(options: DecodeOptions) -> dict[str, Any]:
    """The fields of `options` that decide which pixels come out (not how fast, where or by which backend)."""
    how = {
        "backend", "num_ffmpeg_threads", "seek_mode", "hw_decoders", "pool_size", "prefer", "device", "timeout_s",
        "span", "max_source_bytes", "max_source_pixels", "max_source_frames", "max_output_bytes",
    }  # fmt: skip
    return {k: v for k, v in msgspec.structs.asdict(options).items() if k not in how}


class CaptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request. Every field is stored."""

    digest: str
    """CaptionRequest.digest: each appears at most once in a store with status other than `failed`."""
    clip: str
    content_digest: str
    start_s: float
    end_s: float
    """The window [start_s, end_s) on the clip's own clock; equal when unknown (the clip could not be read)."""
    prompt: str
    text: str = ""
    json: str = ""
    """The parsed answer as canonical JSON when a schema was asked for, else empty."""
    status: Status = "ok"
    reason: str = ""
    """The error's class name (`SourceCorrupt` ...) for failed and rejected."""
    message: str = ""
    """The error in one line, with its remedy."""
    model: str = ""
    engine: str = ""
    backend: str = ""
    """The decode backend that gave the frames; empty where the server decoded."""
    num_frames: int = 0
    num_missing: int = 0
    """Asked-for frames that could not be had (the caption is of a partial clip)."""
    frame_pts_s: list[float] = []
    width: int = 0
    height: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    attempts: int = 1
    """0: the answer was copied from a clip of equal content."""
    seconds: dict[str, float] = {}
    """Per phase: fetch, probe, decode, preprocess, queue, generate, total ..."""
    versions: dict[str, str] = {}
    """framefleet, engine library, decode library ..."""
    created_at: str = ""
    """UTC, ISO 8601."""


class Captioner(Protocol):
    """An engine. `async with` opens and closes it; `caption` may be called concurrently."""

    name: str

    needs_frames: bool
    """True: the caller decodes and passes frames. False: the engine reads the clip itself (by URL or bytes)."""

    async def caption(self, request: CaptionRequest, frames: DecodedFrames | None) -> CaptionRecord:
        """Describe the window. Raises CaptionError; never returns a record for an answer that did not come."""
        ...

    async def aclose(self) -> None:
        """End it; no process, socket or memory is left."""
        ...
