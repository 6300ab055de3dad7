"""The server over the fake engine: formats, errors, limits, streams, disconnects, metrics."""

import base64
import json
import socket
import time

import httpx
import pytest
from http_server import serving
from prometheus_client.parser import text_string_to_metric_families
from tiny_models import some_frames

from framefleet import errors
from framefleet.decode.options import DecodeOptions
from framefleet.engine import open_engine
from framefleet.engine.asking import AskedCaptioner
from framefleet.engine.captioner import CaptionRecord
from framefleet.engine.reading import VideoReader
from framefleet.serve.engine_app import ServedEngine, engine_app, status_of
from framefleet.serve.openai_app import ServeEngineSettings, main

CLIP = "data:video/mp4;base64," + base64.b64encode(b"clip").decode()


class Pool:
    """Gives frames, or raises what it was given."""

    def __init__(self, error=None):
        self.error = error

    async def decode(self, source, options=None):
        if self.error:
            raise self.error
        return some_frames(2)


def app_of(engine=None, error=None, **settings):
    engine = engine or open_engine("fake", answers=["A car.\nIt waits."])
    served = ServedEngine(engine=engine, reader=VideoReader(DecodeOptions(), Pool(error)), model_name="m", **settings)
    return engine_app(served)


def body(**more):
    content = [{"type": "video_url", "video_url": {"url": CLIP}}, {"type": "text", "text": "Describe"}]
    return {"model": "m", "messages": [{"role": "user", "content": content}]} | more


def post(url, **more):
    return httpx.post(f"{url}/v1/chat/completions", json=body(**more), timeout=20)


def test_a_whole_answer():
    with serving(app_of()) as url:
        reply = post(url)
    assert reply.status_code == 200
    answer = reply.json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "A car.\nIt waits."}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}


def test_a_streamed_answer():
    with serving(app_of()) as url:
        reply = post(url, stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, end = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert end == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [d["content"] for d in deltas[1:-1]] == ["A car.\n", "It waits."]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] == 5
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_an_empty_answer_streams_too():
    with serving(app_of(open_engine("fake", answers=["x"], faults=["empty"]))) as url:
        assert post(url, stream=True).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.SourceCorrupt("x"), 400), (errors.SourceUnsupported("x"), 400), (errors.SourceTooLarge("x"), 400),
        (errors.DecodeTimeout("x"), 400), (errors.DecoderLost("x"), 400), (errors.SourceUnavailable("x"), 502),
        (errors.BudgetTimeout("x"), 503), (errors.EngineBusy("x"), 429), (errors.EngineLost("x"), 503),
        (errors.DeviceError("x"), 503), (errors.CaptionRejected("x"), 400), (errors.CaptionError("x"), 500),
        (errors.ConfigError("x"), 400),
    ],
)  # fmt: skip
def test_errors_become_statuses(error, status):
    assert status_of(error) == status
    with serving(app_of(error=error)) as url:
        for stream in (False, True):
            reply = post(url, stream=stream)
            assert reply.status_code == status
            assert reply.json()["error"] == {
                "message": "x", "type": type(error).__name__, "param": None, "code": status
            }  # fmt: skip
            assert ("retry-after" in reply.headers) == (error.retry == "later")


def test_a_fault_of_ours_is_a_500_and_the_server_lives():
    with serving(app_of(error=ZeroDivisionError("boom"))) as url:
        assert post(url).status_code == 500
        assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"messages": 3}', b"[" * 300_000])
def test_broken_bodies_are_400(content):
    with serving(app_of()) as url:
        assert httpx.post(f"{url}/v1/chat/completions", content=content).status_code == 400


def test_large_bodies_are_413_declared_or_not():
    with serving(app_of(max_body_bytes=1000)) as url:
        address = f"{url}/v1/chat/completions"
        assert httpx.post(address, content=b"x" * 2000).status_code == 413
        assert httpx.post(address, content=iter([b"x" * 600] * 3)).status_code == 413


def test_another_model_is_404():
    with serving(app_of()) as url:
        reply = post(url, model="other")
    assert reply.status_code == 404
    assert "served: m" in reply.json()["error"]["message"]


def test_a_key_is_asked_for():
    with serving(app_of(api_key="secret")) as url:
        assert post(url).status_code == 401
        assert httpx.get(f"{url}/v1/models").status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/v1/models", headers=key).json()["data"][0]["id"] == "m"
        assert httpx.post(f"{url}/v1/chat/completions", json=body(), headers=key).status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_takes_its_work_along(stream):
    engine = open_engine("fake", delay_s=30)
    with serving(app_of(engine)) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json=body(stream=stream), timeout=0.3)
        wait_until(lambda: engine.num_cancelled == 1 and engine.num_running == 0)
        wait_until(lambda: value(url, "framefleet:requests_total", status="499") == 1)


def test_a_client_that_goes_in_mid_stream_takes_its_work_along():
    engine = SlowTalker()
    with serving(app_of(engine)) as url:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body(stream=True), timeout=20) as reply:
            assert reply.status_code == 200
            lines = reply.iter_lines()
            while "word" not in next(lines):
                pass
        wait_until(lambda: engine.num_cancelled == 1)


class SlowTalker(type(open_engine("fake"))):
    """Says a word every 20 ms, for ever."""

    def __init__(self):
        super().__init__(open_engine("fake").settings)

    async def ask(self, question, on_text=None):
        import asyncio

        try:
            while True:
                on_text("word ")
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise


def test_any_captioner_can_be_served():
    class Captioner:
        name, needs_frames = "plain", True

        async def caption(self, request, frames):
            return CaptionRecord(
                digest="", clip="", content_digest="", start_s=0, end_s=0, prompt=request.prompt,
                text=f"{len(frames)} frames: {request.prompt}", status="truncated",
            )  # fmt: skip

        async def aclose(self):
            pass

    with serving(app_of(AskedCaptioner(Captioner(), DecodeOptions()))) as url:
        choice = post(url).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("2 frames: Describe", "length")
        assert "2 frames: Describe" in post(url, stream=True).text
        two_turns = [*body()["messages"], {"role": "user", "content": "and?"}]
        assert post(url, messages=two_turns).status_code == 400


def test_metrics_have_vllms_names():
    with serving(app_of(open_engine("fake", answers=["A car."], faults=["", "cut"]))) as url:
        post(url)
        post(url)
        post(url, model="other")
        assert value(url, "vllm:request_success_total", finished_reason="stop") == 1
        assert value(url, "vllm:request_success_total", finished_reason="length") == 1
        assert value(url, "vllm:prompt_tokens_total") == 2
        assert value(url, "vllm:e2e_request_latency_seconds_count") == 2
        assert value(url, "vllm:time_to_first_token_seconds_count") == 2
        assert value(url, "vllm:num_requests_running") == 0
        assert value(url, "framefleet:media_seconds_count") == 2
        assert value(url, "framefleet:requests_total", status="404") == 1


def test_health_follows_the_engine():
    class Down(SlowTalker):
        is_ready = False

    with serving(app_of(Down())) as url:
        assert httpx.get(f"{url}/health").status_code == 503
        assert value(url, "framefleet:engine_ready") == 0
        assert httpx.get(f"{url}/version").json()["engine"] == "fake"


def value(url, name, **labels):
    text = httpx.get(f"{url}/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                assert sample.labels["model_name"] == "m"
                return sample.value
    return None


def wait_until(holds, limit_s=10):
    until_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "nowhere"], "no such model"), (["--port", "99999"], "port"),
        (["--engine", "vllm"], "wrong value for engine"),
    ],
)  # fmt: skip
def test_the_command_tells_what_is_wrong(capsys, flags, words):
    assert main(flags) == 2
    assert words in capsys.readouterr().err


def test_the_command_ends_when_the_port_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--engine", "fake", "--port", str(port)]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_every_setting_is_a_flag(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all("--" + name.replace("_", "-") in shown for name in ServeEngineSettings.__struct_fields__)
