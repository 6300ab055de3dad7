"""Trials run for real on a server of a known speed, and read what it tells."""

import asyncio
import os
from pathlib import Path

import pytest
from chat_server import ChatServer
from http_server import serving
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from framefleet.bench.clips import load_clips
from framefleet.bench.executor import TrialRunner, phases_of
from framefleet.bench.experiment import Arm, Measurement, metric_value
from framefleet.bench.exposition import Exposition
from framefleet.bench.load import LoadSettings
from framefleet.bench.scheduler import Slot
from framefleet.bench.site import find_site, gauges_of
from framefleet.errors import ConfigError, EngineBusy, EngineLost

CLIP = str(Path(__file__).parents[1] / "corpus" / "files" / "base.mp4")
GAUGES = """vllm:num_requests_running{engine="0"} 3.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""


@pytest.fixture(scope="module")
def server():
    stub = ChatServer(lanes=4, first_s=0.02, metrics=GAUGES)
    with serving(stub.app()) as url:
        yield stub, url


def runner_of(url):
    load = LoadSettings(endpoint=url, inputs=(CLIP,), max_tokens=3, concurrency=4, num_requests=24)
    return TrialRunner(load, {"as_is": load_clips([CLIP], "url")})


def run(url, **settings):
    arm = Arm(name="a", settings=settings)
    return asyncio.run(runner_of(url)(arm, Slot("a", 2, 1)))


def test_a_trial_holds_rates_phases_gauges_and_their_course(server):
    found = run(server[1])
    assert (found.block, found.position, found.error_share) == (2, 1, 0.0)
    assert 0 < metric_value(found, "requests_per_s") < 4 / 0.02  # four lanes, 20 ms at least
    assert found.phases_s["ttft"]["p95"] >= found.phases_s["ttft"]["p50"] >= 0.02
    assert found.gauges["engine/running"] == 3.0
    assert found.gauges["engine/kv_use_peak"] == 0.25
    assert found.gauges["cpu/api_server"] > 0  # the server stands in this process
    assert found.series is not None
    assert "engine/running" in found.series.values


def test_an_arm_changes_what_is_asked(server):
    stub, url = server
    stub.bodies.clear()
    run(url, max_tokens=1, concurrency=1, num_requests=3)
    assert [body["max_tokens"] for body in stub.bodies] == [1, 1, 1]


def test_a_set_of_clips_that_is_not_there(server):
    with pytest.raises(ConfigError, match="no such set of clips"):
        run(server[1], clips="decoded_before")


def test_when_every_request_fails_the_servers_own_words_are_told():
    with serving(ChatServer(fail_every=1).app()) as url, pytest.raises(EngineBusy, match="HTTP 503: stub"):
        run(url)


def test_what_stands_where(server):
    _, url = server
    site = find_site(url + "/v1/")
    assert (site.endpoint, site.engine_urls, site.has_proxy) == (url, (url,), False)
    found = gauges_of(site)
    assert found.cores <= len(os.sched_getaffinity(0))
    assert not found.is_gpu
    assert any("NVML" in word for word in found.unread)
    with pytest.raises(EngineLost, match="nothing answers"):
        find_site("http://127.0.0.1:9")


def test_a_server_that_wants_a_key_is_there_all_the_same():
    refuses = Starlette(routes=[Route("/v1/models", lambda _: PlainTextResponse("no", 401))])
    with serving(refuses) as url:
        site = find_site(url)
    assert (site.engine_urls, site.metrics_urls, site.missing) == ((url,), (), (url,))


def test_what_stands_before_the_engine_is_what_the_client_waited_less_what_the_engine_tells():
    counted = Exposition(
        values={
            "vllm:request_queue_time_seconds_sum": 1.0, "vllm:request_queue_time_seconds_count": 2.0,
            "vllm:request_prefill_time_seconds_sum": 0.4, "vllm:request_prefill_time_seconds_count": 2.0,
        }
    )  # fmt: skip
    phases = phases_of([Measurement(clip="c", total_s=3.0, ttft_s=2.0)], counted)
    assert phases["before_engine"]["mean"] == pytest.approx(2.0 - 0.5 - 0.2)
    assert "before_engine" not in phases_of([Measurement(clip="c", total_s=3.0, ttft_s=2.0)], Exposition())
