"""The HTTP engine against servers that misbehave."""

import asyncio
import base64
import json

import httpx
import pytest
from tiny_models import some_frames

from framefleet.decode.options import DecodeOptions
from framefleet.engine.captioner import CaptionRequest, GenerationSettings
from framefleet.engine.openai_http import OpenAiHttpEngine, OpenAiHttpSettings, base_url, open_openai_http
from framefleet.engine.question import Question, Turn
from framefleet.errors import (
    CaptionError,
    CaptionRejected,
    ConfigError,
    EngineBusy,
    EngineLost,
    SourceNotFound,
    SourceTooLarge,
)
from framefleet.units import Span


class Server:
    """Replies in turn with (status, body or exception, headers); keeps what it was sent."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        status, reply, headers = (*self.replies.pop(0), {})[:3] if self.replies else (200, said("A car."), {})
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, bytes):
            return httpx.Response(status, content=reply, headers=headers)
        return httpx.Response(status, json=reply, headers=headers)

    @property
    def bodies(self):
        return [json.loads(request.content) for request in self.requests if request.method == "POST"]


def said(text, finish_reason="stop", **message):
    choice = {"message": {"content": text, **message}, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}


def events(*payloads):
    return b"".join(b"data: " + (p if isinstance(p, bytes) else json.dumps(p).encode()) + b"\n\n" for p in payloads)


def delta(content, finish_reason=None, **more):
    return {"choices": [{"delta": {"content": content, **more}, "finish_reason": finish_reason}]}


def engine_for(server, **settings):
    defaults = {"endpoint": "http://server/v1", "model": "m", "backoff_s": 0.001, "max_backoff_s": 0.01}
    return OpenAiHttpEngine(OpenAiHttpSettings(**(defaults | settings)), httpx.MockTransport(server))


def ask(engine, on_text=None, **question):
    async def run():
        async with engine:
            turns = (Turn("user", "Hi", True),)
            return await engine.ask(Question(turns=turns, clip="http://host/c.mp4", **question), on_text)

    return asyncio.run(run())


def test_one_request_one_answer():
    server = Server()
    answer = ask(engine_for(server, api_key="secret"))
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.attempts) == ("A car.", 3, 4, 1)
    assert server.requests[0].url == "http://server/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {}), (500, {}), (502, {}), (503, {}), (504, {}), (200, b"<html>"), (0, httpx.ConnectError("refused")),
        (0, httpx.ReadError("cut")), (0, httpx.RemoteProtocolError("gone")), (0, httpx.ReadTimeout("slow")),
    ],
)  # fmt: skip
def test_what_may_succeed_later_is_tried_again(trouble):
    server = Server(trouble, trouble)
    answer = ask(engine_for(server))
    assert (answer.text, answer.attempts) == ("A car.", 3)
    assert len({json.dumps(body) for body in server.bodies}) == 1


@pytest.mark.parametrize(
    ("trouble", "kind"), [((429, {}), EngineBusy), ((500, {}), EngineLost), ((0, httpx.ConnectError("no")), EngineLost)]
)
def test_tries_are_bounded(trouble, kind):
    server = Server(*[trouble] * 10)
    with pytest.raises(kind, match="4 tries"):
        ask(engine_for(server, max_attempts=4))
    assert len(server.requests) == 4


@pytest.mark.parametrize(("status", "kind"), [(400, CaptionRejected), (413, CaptionRejected), (401, ConfigError)])
def test_a_4xx_is_final(status, kind):
    server = Server((status, {"error": {"message": "no"}}))
    with pytest.raises(kind, match="no"):
        ask(engine_for(server))
    assert len(server.requests) == 1


def test_an_answer_in_another_format_is_final():
    server = Server((200, {"hello": 1}))
    with pytest.raises(CaptionError, match="no chat completion"):
        ask(engine_for(server))
    assert len(server.requests) == 1


def test_retry_after_is_obeyed_within_the_bound(monkeypatch):
    pauses = []

    async def no_sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("framefleet.engine.openai_http.asyncio.sleep", no_sleep)
    server = Server((429, {}, {"retry-after": "7"}), (503, {}, {"retry-after": "7000"}), (500, {}))
    ask(engine_for(server, backoff_s=1.0, max_backoff_s=20.0))
    assert 7 <= pauses[0] <= 8
    assert 20 <= pauses[1] <= 22
    assert 0 <= pauses[2] <= 4


def test_the_only_model_is_found():
    server = Server((200, {"data": [{"id": "served"}]}))
    ask(engine_for(server, model=""))
    assert server.bodies[0]["model"] == "served"


@pytest.mark.parametrize(
    ("reply", "problem"), [({"data": [{"id": "a"}, {"id": "b"}]}, "a, b"), ({"x": 1}, "lists no models")]
)
def test_a_model_must_be_clear(reply, problem):
    with pytest.raises(ConfigError, match=problem):
        ask(engine_for(Server((200, reply)), model=""))


def test_streamed_text_is_told_and_summed():
    stream = events(
        delta("", role="assistant"), delta("A "), delta("car."), delta("", "stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}, b"[DONE]",
    )  # fmt: skip
    pieces = []
    server = Server((200, stream))
    answer = ask(engine_for(server), pieces.append)
    assert pieces == ["A ", "car."]
    assert (answer.text, answer.finish_reason, answer.completion_tokens) == ("A car.", "stop", 4)
    assert "first_token" in answer.seconds
    assert server.bodies[0]["stream"] is True


def test_streams_are_tried_again_only_before_their_first_text():
    whole = events(delta("A car."), delta("", "stop"), b"[DONE]")
    assert ask(engine_for(Server((503, {}), (200, whole))), lambda _: None).text == "A car."
    pieces = []
    with pytest.raises(EngineLost, match="ended early"):
        ask(engine_for(Server((200, events(delta("A "))), (200, whole))), pieces.append)
    assert pieces == ["A "]
    with pytest.raises(EngineLost, match="mid-answer"):
        ask(engine_for(Server((200, events(delta("A "), {"error": {"message": "x"}})))), pieces.append)
    with pytest.raises(CaptionRejected, match="bad"):
        ask(engine_for(Server((400, {"error": {"message": "bad"}}))), pieces.append)


def test_clips_are_sent_as_told(tmp_path):
    clip = tmp_path / "a b.mp4"
    clip.write_bytes(b"video")

    def sent(url_of=str(clip), **settings):
        server = Server()
        asyncio.run(_ask_clip(engine_for(server, **settings), url_of))
        return server.bodies[0]["messages"][0]["content"][0]["video_url"]["url"]

    assert sent() == "data:video/mp4;base64," + base64.b64encode(b"video").decode()
    assert sent(send="url") == clip.as_uri()
    assert sent("https://host/c.mp4") == "https://host/c.mp4"
    with pytest.raises(SourceTooLarge, match="max_upload_bytes"):
        sent(max_upload_bytes=4)
    with pytest.raises(SourceNotFound):
        sent(str(tmp_path / "none.mp4"))


async def _ask_clip(engine, clip):
    async with engine:
        return await engine.ask(Question(turns=(Turn("user", "Hi", True),), clip=clip))


def test_windows_go_as_frames():
    server = Server()
    assert engine_for(server, send="frames").needs_frames
    assert not engine_for(server).needs_frames
    with pytest.raises(ConfigError, match="sent as frames"):
        ask(engine_for(server), span=Span(0, 10**9))
    ask(engine_for(server), span=Span(0, 10**9), frames=some_frames(2))
    assert server.bodies[0]["messages"][0]["content"][0]["video_url"]["url"].startswith("data:video/jpeg;base64,")
    assert server.bodies[0]["media_io_kwargs"]["video"]["num_frames"] == 2


def caption(server, schema=None, **generation):
    request = CaptionRequest(
        clip="http://host/c.mp4", content_digest="0", span=None, prompt="Describe", schema=schema, model="m",
        frames=DecodeOptions(), generation=GenerationSettings(**generation),
    )  # fmt: skip

    async def run():
        async with engine_for(server) as engine:
            return await engine.caption(request, None)

    return asyncio.run(run())


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_wrong_json_is_mended_by_a_second_try():
    server = Server((200, said('{"n": "one"}')), (200, said('{"n": 1}')))
    record = caption(server, SCHEMA)
    assert (record.status, record.json, record.attempts, record.completion_tokens) == ("ok", '{"n":1}', 2, 8)
    again = server.bodies[1]["messages"]
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert "'one' is not of type 'integer'" in again[2]["content"]


def test_json_that_stays_wrong_is_rejected_with_its_text():
    record = caption(Server((200, said("no")), (200, said("still no"))), SCHEMA)
    assert (record.status, record.reason, record.text, record.attempts) == (
        "rejected", "CaptionRejected", "still no", 2
    )  # fmt: skip
    assert "not JSON" in record.message


def test_cut_json_gets_more_tokens():
    server = Server((200, said('{"n": ', "length")), (200, said('{"n": 1}')))
    assert caption(server, SCHEMA, max_tokens=8).status == "ok"
    assert [body["max_tokens"] for body in server.bodies] == [8, 16]


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (said("A ca", "length"), "truncated", "cut at max_tokens"),
        (said("", reasoning_content="thinking ..."), "rejected", "reasoning"),
        (said(None), "rejected", "empty"),
        (said("again " * 500, "length"), "rejected", "repeats itself"),
    ],
)
def test_answers_that_are_none_are_flagged(reply, status, words):
    record = caption(Server((200, reply)))
    assert record.status == status
    assert words in record.message


def test_text_that_no_store_takes_is_cleaned():
    reply = b'{"choices": [{"message": {"content": "a \\ud83d b \\u0000"}, "finish_reason": "stop"}]}'
    assert caption(Server((200, reply))).text == "a � b �"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://h:8000", "http://h:8000/v1/"), ("http://h:8000/", "http://h:8000/v1/"),
        ("http://h:8000/v1", "http://h:8000/v1/"), ("https://h/x/v1/", "https://h/x/v1/"),
        ("http://h/v1/chat/completions", "http://h/v1/"),
    ],
)  # fmt: skip
def test_endpoints_are_understood(endpoint, expected):
    assert base_url(endpoint) == expected


def test_no_endpoint_is_a_config_error():
    with pytest.raises(ConfigError, match="no endpoint"):
        open_openai_http(endpoint="localhost:8000")


def test_cancelling_closes_the_connection():
    async def run():
        closed = asyncio.Event()

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            while await reader.read(65536):
                pass
            closed.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, open_openai_http(endpoint=f"http://127.0.0.1:{port}", model="m") as engine:
            asking = asyncio.create_task(engine.ask(Question(turns=(Turn("user", "Hi", True),), clip="http://h/c")))
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.wait_for(closed.wait(), 5)

    asyncio.run(run())
