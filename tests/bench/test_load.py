"""The load generator keeps the load it says, times what happened, and knows when it is itself the limit."""

import asyncio
import base64
import itertools
import time
from pathlib import Path

import msgspec
import pytest
from chat_server import ChatServer
from http_server import engine_server, serving

import framefleet
from framefleet.bench import load as load_module
from framefleet.bench.clips import load_clips
from framefleet.bench.load import LoadSettings, run_load
from framefleet.errors import ConfigError, EngineLost, SourceNotFound

CORPUS = Path(__file__).parents[1] / "corpus" / "files"
BASE = str(CORPUS / "base.mp4")


def run(server, **settings):
    with serving(server.app()) as url:
        fields = {"endpoint": url, "inputs": (BASE, str(CORPUS / "rot90.mp4")), "max_tokens": 4, **settings}
        return asyncio.run(run_load(LoadSettings(**fields)))


def video_of(body):
    return body["messages"][0]["content"][0]


def test_a_closed_loop_keeps_as_many_in_flight_and_asks_clips_in_turn():
    server = ChatServer(lanes=8)
    result = run(server, concurrency=6, num_requests=30)
    assert server.most_at_once == 6
    assert len(result.measurements) == 30
    assert {one.error for one in result.measurements} == {""}
    names = [video_of(body)["video_url"]["url"].rsplit("/", 1)[1] for body in server.bodies]
    assert sorted(names) == ["base.mp4"] * 15 + ["rot90.mp4"] * 15
    assert all(body["max_tokens"] == 4 and body["ignore_eos"] for body in server.bodies)


def test_what_is_timed_is_what_happened():
    server = ChatServer(first_s=0.05, token_s=0.01)
    result = run(server, concurrency=1, num_requests=3)
    for one in result.measurements:
        assert 0.05 <= one.ttft_s < one.total_s
        assert one.total_s >= 0.09
        assert (one.output_tokens, one.prompt_tokens, one.status) == (4, 11, 200)
    starts = [one.started_s for one in result.measurements]
    assert starts == sorted(starts)


def test_the_steady_rate_leaves_out_the_first_round_and_the_drain():
    result = run(ChatServer(lanes=4, first_s=0.02), concurrency=4, num_requests=40)
    assert len(result.steady) < 40
    assert result.steady_from_s > 0
    rate = len(result.steady) / result.steady_s
    assert rate == pytest.approx(result.summary()["requests_per_s"])


def test_the_first_requests_may_begin_spread_out():
    result = run(ChatServer(lanes=4, first_s=1.0), concurrency=4, num_requests=4, spread_s=0.8)
    starts = sorted(one.started_s for one in result.measurements)
    assert all(start >= due_s - 0.01 for start, due_s in zip(starts, [0, 0.2, 0.4, 0.6], strict=True))


def test_an_open_loop_does_not_wait_for_answers():
    server = ChatServer(lanes=1, first_s=0.05)
    result = run(server, rate_per_s=200.0, num_requests=20)
    assert server.most_at_once > 3
    assert len(result.measurements) == 20


def test_arrivals_are_seeded_and_none_comes_early():
    due_s = {seed: list(itertools.islice(load_module.arrivals(50.0, seed), 4000)) for seed in (1, 2)}
    assert due_s[1] == list(itertools.islice(load_module.arrivals(50.0, 1), 4000))
    assert due_s[1] != due_s[2]
    assert due_s[1] == sorted(due_s[1])
    assert due_s[1][-1] / 3999 == pytest.approx(1 / 50, rel=0.1)
    result = run(ChatServer(lanes=64), rate_per_s=50.0, num_requests=8, seed=1)
    starts = sorted(one.started_s for one in result.measurements)
    assert all(start >= due - 0.01 for start, due in zip(starts, due_s[1][:8], strict=True))


def test_no_request_is_like_another_and_every_clip_still_decodes():
    server = ChatServer()
    run(server, send="bytes", num_requests=4)
    urls = [video_of(body)["video_url"]["url"] for body in server.bodies]
    assert len(set(urls)) == 4
    assert len({video_of(body)["uuid"] for body in server.bodies}) == 4
    for url in urls:
        content = base64.b64decode(url.partition(",")[2], validate=True)
        assert len(framefleet.decode(content, num_frames=2)) == 2


def test_without_fresh_requests_it_says_so():
    server = ChatServer()
    result = run(server, num_requests=2, fresh=False)
    assert "uuid" not in video_of(server.bodies[0])
    assert result.cache_defeat.startswith("none")


def test_failures_are_kept_by_class_and_do_not_count_as_rate():
    result = run(ChatServer(fail_every=2), num_requests=10, concurrency=1)
    summary = result.summary()
    assert summary["errors"] == {"http_503": 5}
    assert summary["requests_per_s"] == pytest.approx(5 / result.steady_s, rel=0.3)
    assert all(not one.caption_digest for one in result.measurements if one.error)


def test_it_ends_when_the_time_is_over():
    result = run(ChatServer(), duration_s=0.3, concurrency=2)
    assert max(one.started_s for one in result.measurements) < 3  # a stalled machine adds to it


def test_a_busy_client_is_called_the_bottleneck(monkeypatch):
    async def slow(*arguments, **named):
        until_s = time.perf_counter() + 0.05
        while time.perf_counter() < until_s:
            pass
        await asyncio.sleep(0)
        return load_module.Measurement(clip="c", total_s=0.05)

    monkeypatch.setattr("framefleet.bench.chat_stream.ask", slow)
    assert run(ChatServer(), num_requests=30, concurrency=8).client.is_bottleneck


def test_errors_of_the_user(tmp_path):
    with pytest.raises(ConfigError, match="without end"):
        LoadSettings(endpoint="http://x", inputs=(BASE,))
    with pytest.raises(SourceNotFound):
        load_clips([str(tmp_path)], "url")
    with pytest.raises(EngineLost, match="no model"):
        asyncio.run(run_load(LoadSettings(endpoint="http://127.0.0.1:9", inputs=(BASE,), num_requests=1)))


def test_a_clip_whose_last_box_is_open_ended_keeps_its_bytes(tmp_path):
    clip = tmp_path / "open.mp4"
    clip.write_bytes(Path(BASE).read_bytes() + b"\0\0\0\0free")
    assert not load_clips([str(clip)], "bytes")[0].can_be_fresh
    assert load_clips([BASE], "bytes")[0].can_be_fresh


def test_results_are_json_and_back():
    result = run(ChatServer(), num_requests=3)
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result


def test_our_own_server_answers_at_the_length_that_was_asked():
    with engine_server("--allowed-local-media-path", CORPUS, "--decode-workers", 1, "--num-threads", 1) as url:
        settings = LoadSettings(endpoint=url + "/v1", inputs=(BASE,), max_tokens=70, num_requests=2, concurrency=2)
        results = [asyncio.run(run_load(msgspec.structs.replace(settings, send=send))) for send in ("url", "bytes")]
    answers = [one for result in results for one in result.measurements]
    assert [one.error for one in answers] == [""] * 4
    assert {one.output_tokens for one in answers} == {70}
    assert len({one.caption_digest for one in answers}) == 1
