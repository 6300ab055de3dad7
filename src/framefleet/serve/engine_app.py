"""An engine behind OpenAI's chat-completions API, as an ASGI application. `serve.openai_app` starts it.

`/v1/chat/completions` (whole and streamed), `/v1/models`, `/health`, `/metrics` (vLLM's names), `/version`. Clips come
as data URLs (video files or `video/jpeg` frames), and as `file:` and http(s) URLs where the server was told it may open
them. `response_format` is taken but does not constrain generation: the engine has no grammar, the client validates.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from framefleet._version import __version__
from framefleet.engine.asking import AskingCaptioner
from framefleet.engine.judging import clean_text
from framefleet.engine.question import Answer, OnText, Question
from framefleet.engine.reading import VideoReader
from framefleet.errors import CaptionRejected, EngineBusy, FramefleetError
from framefleet.serve.chat_format import ChatRequest, chunk, completion, error_body, parse_chat, usage_of
from framefleet.serve.engine_metrics import EngineMetrics
from framefleet.units import MIB, format_bytes

_log = logging.getLogger(__name__)

CLIENT_GONE = 499
RETRY_AFTER_S = 1
_PARSE_IN_THREAD_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True)
class ServedEngine:
    """What the application serves: an entered engine, what reads its clips, and the limits."""

    engine: AskingCaptioner
    reader: VideoReader
    model_name: str
    api_key: str = ""
    max_body_bytes: int = 512 * MIB
    default_max_tokens: int = 512
    metrics: EngineMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = EngineMetrics(self.engine, self.model_name)


@dataclass(slots=True)
class _Spent:
    """Of one request."""

    arrived_s: float = field(default_factory=time.perf_counter)
    media_s: float = 0.0


def engine_app(served: ServedEngine) -> Starlette:
    """The application over an engine that is entered already, and stays the caller's to leave."""
    routes = [
        Route("/v1/chat/completions", _chat, methods=["POST"]),
        Route("/v1/models", _models),
        Route("/health", _health),
        Route("/ping", _health),
        Route("/metrics", _metrics),
        Route("/version", _version),
    ]
    app = Starlette(routes=routes)
    app.state.served = served
    return app


async def _chat(request: Request) -> Response:
    served: ServedEngine = request.app.state.served
    try:
        response = await _answer_chat(request, served)
    except FramefleetError as error:
        response = error_response(error)
    except ClientDisconnect:
        response = Response(status_code=CLIENT_GONE)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
        _log.exception("a fault of framefleet's own")
        response = JSONResponse(error_body(f"{type(error).__name__}: {error}", "bug", 500), 500)
    served.metrics.responded(response.status_code)
    return response


async def _answer_chat(request: Request, served: ServedEngine) -> Response:
    spent = _Spent()
    if not _is_let_in(request, served.api_key):
        return JSONResponse(error_body("wrong or missing API key", "authentication_error", 401), 401)
    content = await _body(request, served.max_body_bytes)
    if isinstance(content, Response):
        return content
    chat = await _parsed(content, served)
    del content
    if chat.model not in ("", served.model_name):
        message = f"the model {chat.model!r} is not served here; served: {served.model_name}"
        return JSONResponse(error_body(message, "not_found_error", 404), 404)
    return await _until_gone(request, _work(chat, served, spent))


async def _work(chat: ChatRequest, served: ServedEngine, spent: _Spent) -> Response:
    question = await _question(chat, served, spent)
    if chat.stream:
        return await _streamed(chat, question, served, spent)
    answer = await _ask(question, served, spent, None)
    return JSONResponse(completion(answer, answer_id=_new_id(), model=served.model_name))


async def _question(chat: ChatRequest, served: ServedEngine, spent: _Spent) -> Question:
    started_s = time.perf_counter()
    served.metrics.reading(+1)
    try:
        frames = await served.reader.read(chat.video_url, chat.media_io)
    finally:
        served.metrics.reading(-1)
    spent.media_s = time.perf_counter() - started_s
    served.metrics.read(spent.media_s, frames.stats.seconds)
    return Question(turns=chat.turns, frames=frames, generation=chat.generation, schema=chat.schema)


async def _ask(question: Question, served: ServedEngine, spent: _Spent, on_text: OnText | None) -> Answer:
    answer = await served.engine.ask(question, on_text)
    total_s = time.perf_counter() - spent.arrived_s
    served.metrics.answered(answer, media_s=spent.media_s, total_s=total_s)
    return answer


async def _streamed(chat: ChatRequest, question: Question, served: ServedEngine, spent: _Spent) -> Response:
    """Events as the text comes. An error before the first text keeps its status; one after it is an event."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    asking = asyncio.create_task(_ask(question, served, spent, pieces.put_nowait))
    asking.add_done_callback(lambda _: pieces.put_nowait(None))
    try:
        first = await pieces.get()
    except asyncio.CancelledError:
        asking.cancel()
        raise
    if first is None:
        await asking  # raises what went wrong; an empty answer has just no pieces
    events = _events(chat, first, pieces, asking, served.model_name)
    return StreamingResponse(events, media_type="text/event-stream")


async def _events(
    chat: ChatRequest,
    first: str | None,
    pieces: asyncio.Queue[str | None],
    asking: asyncio.Task[Answer],
    model: str,
) -> AsyncIterator[str]:
    about: dict[str, Any] = {"answer_id": _new_id(), "model": model, "created": int(time.time())}
    try:
        yield _event(chunk({"role": "assistant", "content": ""}, **about))
        piece = first
        while piece is not None:
            yield _event(chunk({"content": clean_text(piece)}, **about))
            piece = await pieces.get()
        answer = await asking
        yield _event(chunk({}, finish_reason=answer.finish_reason, **about))
        if chat.include_usage:
            yield _event(chunk({}, **about) | {"choices": [], "usage": usage_of(answer)})
    except FramefleetError as error:
        yield _event(error_body(str(error), type(error).__name__, status_of(error)))
    finally:
        asking.cancel()  # no effect on one that is done; else the client went away
    yield "data: [DONE]\n\n"


async def _models(request: Request) -> Response:
    served: ServedEngine = request.app.state.served
    if not _is_let_in(request, served.api_key):
        return JSONResponse(error_body("wrong or missing API key", "authentication_error", 401), 401)
    card = {"id": served.model_name, "object": "model", "owned_by": "framefleet", "root": served.engine.model}
    return JSONResponse({"object": "list", "data": [card]})


async def _health(request: Request) -> Response:
    return Response(status_code=200 if request.app.state.served.engine.is_ready else 503)


async def _metrics(request: Request) -> Response:
    metrics: EngineMetrics = request.app.state.served.metrics
    return Response(metrics.text(), headers={"Content-Type": metrics.content_type})


async def _version(request: Request) -> Response:
    return JSONResponse({"version": __version__, "engine": request.app.state.served.engine.name})


def status_of(error: FramefleetError) -> int:
    """The HTTP status: a bad clip is the client's fault (400), never 500."""
    if isinstance(error, EngineBusy):
        return 429
    if error.blame == "input":
        return 502 if error.retry == "later" else 400
    return {"device": 503, "config": 400}.get(error.blame, 500)


def error_response(error: FramefleetError) -> Response:
    """The error with its remedy; Retry-After where coming back helps."""
    status = status_of(error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if error.retry == "later" else None
    return JSONResponse(error_body(str(error), type(error).__name__, status), status, headers)


async def _until_gone(request: Request, work: Awaitable[Response]) -> Response:
    """The response, or ClientDisconnect: the work is then cancelled, and with it what the engine does for it."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.wait({working, watching})


async def _gone(request: Request) -> None:
    """Returns when the client has gone. Only for requests whose body is read: it would take the body's parts."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, max_bytes: int) -> bytes | Response:
    too_large = JSONResponse(
        error_body(f"the body is above {format_bytes(max_bytes)}; try: a URL, or frames", "too_large", 413), 413
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        return too_large
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            return too_large
    return bytes(content)


async def _parsed(content: bytes, served: ServedEngine) -> ChatRequest:
    try:
        if len(content) > _PARSE_IN_THREAD_BYTES:
            body = await asyncio.to_thread(json.loads, content)
        else:
            body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CaptionRejected("the body is not JSON", given=str(error)[:200]) from error
    return parse_chat(body, default_max_tokens=served.default_max_tokens)


def _is_let_in(request: Request, api_key: str) -> bool:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    return not api_key or hmac.compare_digest(given.encode(), api_key.encode())


def _event(payload: dict[str, Any]) -> str:
    return f"data: {json.dumps(payload, ensure_ascii=False)}\n\n"


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"
