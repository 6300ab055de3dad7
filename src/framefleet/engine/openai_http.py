"""Any OpenAI-compatible server as an engine: vLLM, SGLang, ours, or a hosted one."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import msgspec
from msgspec import Meta

from framefleet.config import resolve
from framefleet.engine.asking import AskingCaptioner
from framefleet.engine.openai_wire import (
    JsonMode,
    answer_of,
    bytes_url,
    chat_body,
    clip_url,
    error_of,
    finish_reason,
    frames_url,
    local_path,
    retry_after_s,
)
from framefleet.engine.question import Answer, OnText, Question
from framefleet.engine.record import library_versions
from framefleet.errors import (
    ConfigError,
    EngineBusy,
    EngineLost,
    FramefleetError,
    SourceNotFound,
    SourceTooLarge,
)
from framefleet.units import MIB, format_bytes

_log = logging.getLogger(__name__)


class OpenAiHttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server is and how it is asked."""

    endpoint: str = ""
    """Base URL, like `http://127.0.0.1:8000/v1` (the `/v1` may be left out)."""
    model: str = ""
    """Empty: the only model that the server lists."""
    api_key: str = ""
    """Sent as a bearer token."""
    send: Literal["bytes", "url", "frames"] = "bytes"
    """`bytes`: the clip as base64. `url`: its address, for a server that may open it (`--allowed-local-media-path`).
    `frames`: JPEG frames decoded here, as vLLM takes them with `--trust-request-mm-kwargs`; always so for windows."""
    max_upload_bytes: Annotated[int, Meta(ge=1)] = 512 * MIB
    """Larger clips are not sent as bytes."""
    extra_body: dict[str, Any] = {}
    """Further fields of the request: `mm_processor_kwargs`, `media_io_kwargs`, `chat_template_kwargs` ..."""
    json_mode: JsonMode = "json_schema"
    """How a schema is told to the server beside the prompt; `none` for servers that refuse `response_format`."""
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name by which the server takes the bound on tokens."""
    max_attempts: Annotated[int, Meta(ge=1)] = 6
    """Tries of one question over 408, 429, 5xx and lost connections."""
    backoff_s: Annotated[float, Meta(gt=0)] = 0.5
    """Longest wait before the second try; it doubles with each further one."""
    max_backoff_s: Annotated[float, Meta(gt=0)] = 60.0
    """Longest wait at all, also when Retry-After asks for more."""
    connect_timeout_s: Annotated[float, Meta(gt=0)] = 10.0
    """To a connection."""
    write_timeout_s: Annotated[float, Meta(gt=0)] = 120.0
    """Between two parts of the request that the server takes."""
    read_timeout_s: Annotated[float, Meta(gt=0)] = 900.0
    """To the answer (or its next part)."""
    max_connections: Annotated[int, Meta(ge=1)] = 512
    """At a time; more questions wait."""


def open_openai_http(**settings: Any) -> OpenAiHttpEngine:
    """An OpenAI-compatible server as an engine (see OpenAiHttpSettings). Raises ConfigError."""
    return OpenAiHttpEngine(resolve(OpenAiHttpSettings, "openai_http", flags=settings).value)


class OpenAiHttpEngine(AskingCaptioner):
    """Captions by a server. Tries again, with growing and random waits, what may succeed later; a 4xx is final."""

    name = "openai_http"

    def __init__(self, settings: OpenAiHttpSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.settings = settings
        self.model = settings.model
        self.needs_frames = settings.send == "frames"
        self._base_url = base_url(settings.endpoint)
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    @property
    def versions(self) -> dict[str, str]:
        return library_versions("httpx")

    async def start(self) -> None:
        """Connect, and learn the model's name where none was given. Raises ConfigError or EngineLost."""
        s = self.settings
        self._client = httpx.AsyncClient(
            base_url=self._base_url,
            headers={"Authorization": f"Bearer {s.api_key}"} if s.api_key else {},
            timeout=httpx.Timeout(
                connect=s.connect_timeout_s, write=s.write_timeout_s, read=s.read_timeout_s, pool=None
            ),
            limits=httpx.Limits(max_connections=s.max_connections, max_keepalive_connections=s.max_connections),
            transport=self._transport,
        )
        if not self.model:
            self.model = await self._only_model()

    async def aclose(self) -> None:
        """Close every connection; servers stop what they do for them."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        """Put one question. Raises CaptionRejected, EngineBusy, EngineLost, ConfigError or SourceError."""
        body = chat_body(
            question,
            model=self.model,
            video_url=await self._video_url(question),
            json_mode=self.settings.json_mode,
            tokens_field=self.settings.tokens_field,
            extra=self.settings.extra_body,
        )
        content = await asyncio.to_thread(lambda: json.dumps(body).encode())
        waited_s = 0.0
        for attempt in itertools.count(1):
            started_s = time.perf_counter()
            outcome = await self._try(content, body, on_text)
            if isinstance(outcome, Answer):
                seconds = outcome.seconds | {"generate": time.perf_counter() - started_s, "backoff": waited_s}
                return msgspec.structs.replace(outcome, attempts=attempt, seconds=seconds)
            if attempt >= self.settings.max_attempts:
                outcome.error.given += f"; {attempt} tries"
                raise outcome.error
            pause_s = self._pause_s(attempt, outcome.after_s)
            _log.debug("try %d: %s; again in %.1f s", attempt, outcome.error, pause_s)
            waited_s += pause_s
            await asyncio.sleep(pause_s)
        raise AssertionError

    async def _try(self, content: bytes, body: dict[str, Any], on_text: OnText | None) -> Answer | _Later:
        """One request. Raises what no other try can mend."""
        if on_text is not None:
            streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
            return await self._stream(json.dumps(streamed).encode(), on_text)
        try:
            response = await self._opened.post("chat/completions", content=content, headers=_JSON)
        except httpx.TransportError as error:
            return _Later(_lost(error, self._base_url))
        if response.is_error:
            return _later(response)
        try:
            return answer_of(response.json())
        except ValueError:
            return _Later(EngineLost("the server's answer is not JSON", given=response.text[:200]))

    async def _stream(self, content: bytes, on_text: OnText) -> Answer | _Later:
        """As `_try`, telling the text as it comes. What was told cannot be taken back: no other try after that."""
        started_s = time.perf_counter()
        heard = _Heard()
        try:
            async with self._opened.stream("POST", "chat/completions", content=content, headers=_JSON) as response:
                if response.is_error:
                    await response.aread()
                    return _later(response)
                async for event in _events(response):
                    if (piece := heard.take(event)) and not heard.first_s:
                        heard.first_s = time.perf_counter() - started_s
                    if piece:
                        on_text(piece)
        except httpx.TransportError as error:
            if heard.text:
                raise _lost(error, self._base_url) from error
            return _Later(_lost(error, self._base_url))
        if not heard.is_whole:
            raise EngineLost("the server's stream ended early", given=f"{len(heard.text)} characters")
        return heard.answer()

    @property
    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            raise EngineLost("the engine is closed")
        return self._client

    async def _only_model(self) -> str:
        try:
            response = await self._opened.get("models")
        except httpx.TransportError as error:
            raise _lost(error, self._base_url) from error
        if response.is_error:
            raise error_of(response.status_code, response.text)
        try:
            names = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError("the endpoint lists no models", given=self._base_url) from error
        if len(names) != 1:
            raise ConfigError("which model?", given=self._base_url, allowed=", ".join(names), remedy="--model")
        return names[0]

    async def _video_url(self, question: Question) -> str:
        if question.frames is not None:
            return await asyncio.to_thread(frames_url, question.frames)
        if question.span is not None or self.settings.send == "frames":
            raise ConfigError("a window of a clip is sent as frames", given=f"no frames of {question.clip!r}")
        path = local_path(question.clip)
        if path is None or self.settings.send == "url":
            return clip_url(question.clip)
        return await asyncio.to_thread(self._bytes_url, path)

    def _bytes_url(self, path: Path) -> str:
        try:
            size_bytes = path.stat().st_size
            if size_bytes > self.settings.max_upload_bytes:
                raise SourceTooLarge(
                    "the clip is too large to be sent as bytes",
                    given=f"{path} ({format_bytes(size_bytes)})",
                    allowed=format_bytes(self.settings.max_upload_bytes),
                    remedy="send url or frames, or raise max_upload_bytes",
                )
            return bytes_url(path.name, path.read_bytes())
        except OSError as error:
            raise SourceNotFound("cannot read the clip", given=f"{str(path)!r} ({error.strerror})") from error

    def _pause_s(self, attempt: int, after_s: float | None) -> float:
        longest_s = min(self.settings.backoff_s * 2 ** (attempt - 1), self.settings.max_backoff_s)
        drawn_s = random.uniform(0, longest_s)
        return drawn_s if after_s is None else min(after_s, self.settings.max_backoff_s) + drawn_s


def base_url(endpoint: str) -> str:
    """`http://host:port/v1/` of what a user writes. Raises ConfigError."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError("no endpoint", given=repr(endpoint), allowed="a URL like http://127.0.0.1:8000/v1")
    bare = endpoint.rstrip("/").removesuffix("/chat/completions")
    return f"{bare}/" if bare.endswith("/v1") else f"{bare}/v1/"


_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class _Later:
    """The same request may succeed later."""

    error: FramefleetError
    after_s: float | None = None


class _Heard:
    """What a stream has said so far."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.first_s = 0.0
        self._reported: Any = None
        self._usage: dict[str, Any] = {}

    @property
    def is_whole(self) -> bool:
        return self._reported is not None

    def take(self, event: dict[str, Any]) -> str:
        """One event; the text that it adds."""
        self._usage = event.get("usage") or self._usage
        if not event.get("choices"):
            return ""
        choice = event["choices"][0]
        delta = choice.get("delta") or {}
        self._reported = choice.get("finish_reason") or self._reported
        self.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        piece = str(delta.get("content") or "")
        self.text += piece
        return piece

    def answer(self) -> Answer:
        return Answer(
            text=self.text,
            reasoning=self.reasoning,
            finish_reason=finish_reason(self._reported),
            prompt_tokens=int(self._usage.get("prompt_tokens") or 0),
            completion_tokens=int(self._usage.get("completion_tokens") or 0),
            seconds={"first_token": self.first_s},
        )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events up to `[DONE]`. Raises EngineLost for an error event (vLLM reports late failures so)."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        payload = line.removeprefix("data:").strip()
        if payload == "[DONE]":
            return
        event = json.loads(payload)
        if "error" in event:
            raise EngineLost("the server failed in mid-answer", given=str(event["error"])[:300])
        yield event


def _later(response: httpx.Response) -> _Later:
    """Of an error status. Raises the error where no later try can mend it."""
    error = error_of(response.status_code, response.text)
    if isinstance(error, EngineBusy | EngineLost):
        return _Later(error, retry_after_s(response.headers))
    raise error


def _lost(error: httpx.TransportError, endpoint: str) -> EngineLost:
    what = "the server did not answer in time" if isinstance(error, httpx.TimeoutException) else "no connection"
    return EngineLost(
        what, given=f"{endpoint} ({type(error).__name__}: {error})", remedy="look whether it runs, and at its log"
    )
