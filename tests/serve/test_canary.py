"""The verdict on a canary; it is asked in tests/e2e/test_fleet.py."""

import asyncio

import pytest
from http_server import serving
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from framefleet.errors import ConfigError
from framefleet.serve.canary import Answered, ask, difference_of, judge, sample_paths
from framefleet.serve.fleet_settings import CanarySettings

OLD = [Answered(clip=name, text=f"a red car {name} turns left", ttft_s=1.0) for name in "abcd"]


def changed(**more):
    return [Answered(**{"clip": one.clip, "text": one.text, "ttft_s": one.ttft_s, **more}) for one in OLD]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (OLD, []),
        (changed(ttft_s=3.4), []),
        (changed(ttft_s=3.6), ["first token after 3.60 s (before 1.00 s, allowed 3.50 s)"]),
        (changed(text="nothing of the sort"), ["captions differ in 100% of words, allowed 50%"]),
        (changed(error="HTTP 500: no"), ["no answer about 4 of 4 clips: HTTP 500: no"]),
    ],
)
def test_the_verdict(new, said):
    assert list(judge(OLD, new, CanarySettings()).reasons) == said


def test_what_the_old_one_could_not_answer_is_not_held_against_the_new_one():
    old = [*OLD[:3], Answered(clip="d", error="HTTP 400: no video")]
    new = [*OLD[:3], Answered(clip="d", error="HTTP 400: no video")]
    verdict = judge(old, new, CanarySettings())
    assert verdict.is_good
    assert verdict.num_errors == 1
    assert not judge([], new, CanarySettings()).is_good  # with nothing to compare with it must answer everything
    assert judge([], OLD, CanarySettings()).is_good


def test_difference_is_a_share_of_words():
    assert difference_of("a b c d", "a b c d") == 0
    assert difference_of("a b c d", "a b x d") == 0.25
    assert difference_of("a", "") == 1


def server(answer):
    return serving(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])]))


def asked(answer, settings=None):
    settings = settings or CanarySettings(clips=(str(sample_paths()[0]),))
    with server(answer) as url:
        return asyncio.run(ask(url, "m", settings))


async def streams(request):
    body = await request.json()
    assert body["temperature"] == 0
    assert body["messages"][0]["content"][1]["video_url"]["url"].startswith("data:video/mp4;base64,AAAA")
    pieces = ['{"choices": [{"delta": {"content": "a"}}]}', '{"choices": [{"delta": {"content": " car"}}]}', "[DONE]"]
    return StreamingResponse(iter(f"data: {piece}\n\n" for piece in pieces))


async def refuses(_):
    return Response("too busy", 503)


async def breaks(_):
    return StreamingResponse(iter(['data: {"error": {"message": "engine died"}}\n\n']))


async def says_nothing(_):
    return StreamingResponse(iter(["data: [DONE]\n\n"]))


def test_an_answer_is_put_together():
    (one,) = asked(streams)
    assert (one.text, one.error, one.ttft_s > 0) == ("a car", "", True)


@pytest.mark.parametrize(
    ("answer", "said"), [(refuses, "HTTP 503: too busy"), (breaks, "engine died"), (says_nothing, "an empty caption")]
)
def test_what_is_no_answer(answer, said):
    (one,) = asked(answer)
    assert said in one.error


def test_a_replica_that_is_gone_and_a_clip_that_is_not_there():
    answers = asyncio.run(ask("http://127.0.0.1:9", "m", CanarySettings()))
    assert len(answers) == 4
    assert all(one.error for one in answers)
    with pytest.raises(ConfigError, match="cannot read a canary's clip"):
        asked(streams, CanarySettings(clips=("/nosuch.mp4",)))
