"""OpenAI's chat-completions format as a server reads and writes it. Pure. What is not understood is refused."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.judging import clean_text
from framefleet.engine.question import Answer, Turn
from framefleet.errors import CaptionRejected

EXTRA_FIELDS = ("top_k", "min_p", "repetition_penalty", "no_repeat_ngram_size", "ignore_eos")
HARMLESS_FIELDS = ("user", "metadata", "store", "service_tier", "request_id", "priority")
"""Say nothing about the answer."""
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,), "stop": ((), []), "logprobs": (False,), "frequency_penalty": (0,), "presence_penalty": (0,),
    "tools": ([],), "mm_processor_kwargs": ({},),
}  # fmt: skip
"""Accepted at the value that changes nothing (or null)."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, checked."""

    model: str
    turns: tuple[Turn, ...]
    video_url: str
    generation: GenerationSettings
    media_io: dict[str, Any] = {}
    """`media_io_kwargs.video`."""
    schema: dict[str, Any] | None = None
    stream: bool = False
    include_usage: bool = False


class _Number(msgspec.Struct, frozen=True):
    """The numbers of a request, with OpenAI's ranges."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None


def parse_chat(body: Any, *, default_max_tokens: int) -> ChatRequest:
    """The request in a JSON body. Raises CaptionRejected naming the field that is wrong or not supported."""
    if not isinstance(body, dict):
        raise CaptionRejected("the body is not a JSON object", given=type(body).__name__)
    _refuse_unknown(body)
    turns, video_url = _parse_messages(body.get("messages"))
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise CaptionRejected("not stream_options", given=str(stream_options)[:80], allowed='{"include_usage": true}')
    return ChatRequest(
        model=str(body.get("model") or ""),
        turns=turns,
        video_url=video_url,
        generation=_parse_generation(body, default_max_tokens),
        media_io=_parse_media_io(body.get("media_io_kwargs")),
        schema=_parse_schema(body.get("response_format")),
        stream=bool(body.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
    )


def completion(answer: Answer, *, answer_id: str, model: str) -> dict[str, Any]:
    """The whole answer."""
    message = {"role": "assistant", "content": clean_text(answer.text)}
    return {
        "id": answer_id, "object": "chat.completion", "created": int(time.time()), "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
        "usage": usage_of(answer), "framefleet": {"seconds": answer.seconds, "mean_logprob": answer.mean_logprob},
    }  # fmt: skip


def chunk(
    delta: dict[str, str], *, answer_id: str, model: str, created: int, finish_reason: str | None = None
) -> dict[str, Any]:
    """One event of a streamed answer."""
    return {
        "id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }  # fmt: skip


def usage_of(answer: Answer) -> dict[str, int]:
    """Token counts."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def error_body(message: str, kind: str, status: int) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


_KNOWN = {
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stream",
    "stream_options", "response_format", "media_io_kwargs", *EXTRA_FIELDS, *HARMLESS_FIELDS,
}  # fmt: skip


def _refuse_unknown(body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name in _KNOWN or value is None or value in NEUTRAL_VALUES.get(name, ()):
            continue
        raise CaptionRejected(
            "this server does not support a field of the request",
            given=f"{name}={str(value)[:80]}",
            allowed=", ".join(sorted(_KNOWN - set(HARMLESS_FIELDS))),
        )


def _parse_messages(messages: Any) -> tuple[tuple[Turn, ...], str]:
    if not isinstance(messages, list) or not messages:
        raise CaptionRejected("messages must be a list of messages", given=str(messages)[:80])
    parsed = [_parse_message(message) for message in messages]
    urls = [url for _, urls in parsed for url in urls]
    if len(urls) != 1:
        raise CaptionRejected("exactly one video belongs in a request", given=f"{len(urls)} of type video_url")
    turns = tuple(turn for turn, _ in parsed)
    if turns[-1].role != "user":
        raise CaptionRejected("the last message must be the user's", given=turns[-1].role)
    return turns, urls[0]


def _parse_message(message: Any) -> tuple[Turn, list[str]]:
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant"):
        raise CaptionRejected("not a message", given=str(message)[:80], allowed="role system, user or assistant")
    content = message.get("content")
    if isinstance(content, str):
        return Turn(message["role"], content), []
    if not isinstance(content, list):
        raise CaptionRejected("not a message's content", given=str(content)[:80], allowed="a string or a list of parts")
    texts, urls = [], []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "video_url", "video_url": {"url": str(url)}} if message["role"] == "user":
                urls.append(url)
            case _:
                raise CaptionRejected(
                    "not a part that this server takes", given=str(part)[:80], allowed="text; video_url of the user"
                )
    return Turn(message["role"], "\n".join(texts), has_video=bool(urls)), urls


def _parse_generation(body: dict[str, Any], default_max_tokens: int) -> GenerationSettings:
    max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
    plain = {
        "max_tokens": default_max_tokens if max_tokens is None else max_tokens,
        "temperature": 1.0 if body.get("temperature") is None else body["temperature"],
        "top_p": 1.0 if body.get("top_p") is None else body["top_p"],
        "seed": body.get("seed"),
    }
    try:
        numbers = msgspec.convert(plain, _Number)
    except msgspec.ValidationError as error:
        raise CaptionRejected("a generation setting is wrong", given=str(error)) from error
    if not (numbers.max_tokens >= 1 and 0 <= numbers.temperature <= 2 and 0 < numbers.top_p <= 1):
        raise CaptionRejected(
            "a generation setting is out of range",
            given=str(plain),
            allowed="max_tokens 1 up, temperature 0-2, top_p 0-1",
        )
    extra = {name: body[name] for name in EXTRA_FIELDS if body.get(name) is not None}
    return GenerationSettings(
        max_tokens=numbers.max_tokens,
        temperature=numbers.temperature,
        top_p=numbers.top_p,
        seed=numbers.seed,
        extra=extra,
    )


def _parse_media_io(media_io: Any) -> dict[str, Any]:
    if not media_io and isinstance(media_io, dict | None):
        return {}
    match media_io:
        case {"video": dict(video), **others} if not any(others.values()):
            return video
    raise CaptionRejected("not media_io_kwargs", given=str(media_io)[:80], allowed='{"video": {...}}')


def _parse_schema(response_format: Any) -> dict[str, Any] | None:
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    raise CaptionRejected(
        "not a response_format", given=str(response_format)[:80], allowed="text, json_object, json_schema"
    )
