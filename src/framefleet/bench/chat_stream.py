"""One request of a load: a streamed chat completion over aiohttp, timed to its first token and to its end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from framefleet.bench.clips import LoadClip
from framefleet.bench.experiment import Measurement

_WHOLE_BYTES = 512 * 1024
"""Smaller bodies are sent in one piece."""
_PIECE_BYTES = 256 * 1024
_URL_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
_HEADERS = {"Content-Type": "application/json"}


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class Question:
    """The body that all requests of a load have in common; `parts` completes it for one request. Pure."""

    def __init__(self, fields: dict[str, Any], prompt: str, *, is_fresh: bool) -> None:
        self.is_fresh = is_fresh
        video: dict[str, Any] = {"type": "video_url", "video_url": {"url": _URL_MARK}}
        if is_fresh:
            video["uuid"] = _URL_MARK
        content = [video, {"type": "text", "text": prompt}]
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        body = {**fields, **stream, "messages": [{"role": "user", "content": content}]}
        mark = json.dumps(_URL_MARK)[1:-1]
        self._around = [part.encode() for part in json.dumps(body).split(mark)]

    def parts(self, clip: LoadClip, number: int, run: str) -> list[bytes]:
        """The body in pieces; the clip's own bytes are not copied."""
        tail = clip.tail(number) if self.is_fresh else b""
        if not self.is_fresh:
            return [self._around[0], clip.head, self._around[1]]
        return [self._around[0], clip.head, tail, self._around[1], f"{run}-{number}".encode(), self._around[2]]


class _Heard:
    """What came of one request so far."""

    def __init__(self) -> None:
        self.started_s = time.perf_counter()
        self.first_s: float | None = None
        self._first_piece_s: float | None = None
        """Stands for the first text where none comes: tokens need not be text."""
        self.status = 0
        self.error = ""
        self.text: list[str] = []
        self.usage = _Usage()
        self._rest = b""

    @property
    def ttft_s(self) -> float | None:
        """None where nothing came."""
        came_s = self.first_s or self._first_piece_s
        return None if came_s is None else came_s - self.started_s

    async def answer(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        if self.status != 200:
            self.error = f"http_{self.status}"
            self.text.append((await response.text())[:300])
            return
        async for part in response.content.iter_any():
            self._take(part)

    def _take(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (payload := line[5:].strip()) != b"[DONE]":
                self._event(_decode_event(payload))

    def _event(self, event: _Event) -> None:
        if event.error is not None:
            self.error = "error_in_stream"
        if event.usage is not None:
            self.usage = event.usage
        for choice in event.choices:
            self._first_piece_s = self._first_piece_s or time.perf_counter()
            if text := choice.delta.content or choice.delta.reasoning_content:
                if self.first_s is None:
                    self.first_s = time.perf_counter()
                self.text.append(text)


async def ask(
    session: aiohttp.ClientSession, url: str, body: list[bytes], clip: LoadClip, *, began_s: float, timeout_s: float
) -> Measurement:
    """Send one request and hear it to its end. Never raises what a server can cause: that is the measurement's error.

    `began_s`: when the load began, on `time.perf_counter`'s scale.
    """
    heard = _Heard()
    try:
        async with asyncio.timeout(timeout_s), _posted(session, url, body) as response:
            await heard.answer(response)
    except TimeoutError:
        heard.error = "timeout"
    except (aiohttp.ClientError, ConnectionError) as lost:
        heard.error = f"lost_{type(lost).__name__}"
    except msgspec.DecodeError:
        heard.error = "not_a_chat_completion"
    return _measured(heard, clip, sum(map(len, body)), began_s)


def _posted(session: aiohttp.ClientSession, url: str, body: list[bytes]) -> Any:
    num_bytes = sum(map(len, body))
    if num_bytes <= _WHOLE_BYTES:
        return session.post(url, data=b"".join(body), headers=_HEADERS)
    return session.post(url, data=_pieces(body), headers={**_HEADERS, "Content-Length": str(num_bytes)})


async def _pieces(body: list[bytes]) -> AsyncIterator[bytes]:
    for part in body:
        view = memoryview(part)
        for at in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[at : at + _PIECE_BYTES])


def _measured(heard: _Heard, clip: LoadClip, sent_bytes: int, began_s: float) -> Measurement:
    text = "".join(heard.text)
    tokens = heard.usage.prompt_tokens
    return Measurement(
        clip=clip.digest,
        total_s=time.perf_counter() - heard.started_s,
        started_s=heard.started_s - began_s,
        ttft_s=heard.ttft_s,
        status=heard.status,
        prompt_tokens=tokens,
        output_tokens=heard.usage.completion_tokens,
        sent_bytes=sent_bytes,
        caption=text,
        frames_digest=f"{tokens} prompt tokens" if tokens else "",
        caption_digest="" if heard.error else hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
        error=heard.error,
    )
