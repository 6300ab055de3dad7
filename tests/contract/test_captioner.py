"""One suite over every engine: what a runner may rely on."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
from http_server import engine_server
from tiny_models import make_model, some_frames

from framefleet.decode.options import DecodeOptions
from framefleet.engine import ENGINES, open_engine
from framefleet.engine.captioner import CaptionRecord, CaptionRequest, GenerationSettings
from framefleet.errors import CaptionError, ConfigError
from framefleet.units import Span

CLIP = Path(__file__).parents[1] / "corpus" / "files" / "base.mp4"


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_model("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


@pytest.fixture(scope="module", params=["fake", "embedded", "openai_http", "openai_http frames"])
def engine(request, runner, tiny):
    name, _, mode = request.param.partition(" ")
    settings = {
        "fake": {}, "embedded": {"model": str(tiny), "num_threads": 1},
        "openai_http": {"send": mode or "bytes"},
    }[name]  # fmt: skip
    with ExitStack() as stack:
        if name == "openai_http":
            url = stack.enter_context(engine_server("--model", tiny, "--num-threads", 1, "--decode-workers", 1))
            settings |= {"endpoint": url}
        engine = open_engine(name, **settings)
        runner.run(engine.__aenter__())
        yield engine
        runner.run(engine.aclose())
        runner.run(engine.aclose())  # twice does no harm


def asked(engine, number=0, **more):
    request = CaptionRequest(
        **{
            "clip": str(CLIP), "content_digest": f"{number:032x}", "span": None,
            "prompt": "Describe the video. " + "more " * number, "model": engine.model, "frames": DecodeOptions(),
            "generation": GenerationSettings(max_tokens=8),
        } | more
    )  # fmt: skip
    needs_frames = engine.needs_frames or request.span is not None
    return request, some_frames(4, 64, 192, seed=number) if needs_frames else None


def test_every_built_in_engine_is_in_this_suite():
    """`fleet` is `openai_http` in front of replicas that it starts: tests/serve/test_fleet_engine.py."""
    assert set(ENGINES.names()) - {"fleet"} == {"fake", "embedded", "openai_http"}


def test_a_record_says_what_was_asked_seen_and_answered(engine, runner):
    request, frames = asked(engine)
    record = runner.run(engine.caption(request, frames))
    assert isinstance(record, CaptionRecord)
    assert (record.digest, record.clip, record.content_digest) == (request.digest, request.clip, "0" * 32)
    assert (record.prompt, record.engine, record.attempts) == (request.prompt, engine.name, 1)
    assert record.model
    assert record.text
    assert record.status in ("ok", "truncated")
    assert record.completion_tokens > 0
    assert {"generate", "total"} <= record.seconds.keys()
    assert record.versions["framefleet"]
    assert record.created_at.endswith("+00:00")
    if frames is not None:
        assert record.frame_pts_s == frames.pts_s.tolist()
        assert (record.num_frames, record.width, record.height) == (4, 192, 64)
        assert (record.start_s, record.end_s, record.backend) == (0.0, 1.6, "fake")
        assert record.seconds["decode"] == frames.stats.seconds["decode"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=CaptionRecord) == record


def test_many_at_a_time_keep_their_own_answers(engine, runner):
    async def together():
        return await asyncio.gather(*(engine.caption(*asked(engine, n)) for n in range(6)))

    alone = [runner.run(engine.caption(*asked(engine, n))) for n in range(6)]
    many = runner.run(together())
    assert [r.digest for r in many] == [asked(engine, n)[0].digest for n in range(6)]
    assert [r.text for r in many] == [r.text for r in alone]


def test_a_window_is_told_by_its_span(engine, runner):
    request, frames = asked(engine, span=Span(10**9, 3 * 10**9))
    record = runner.run(engine.caption(request, frames))
    assert (record.start_s, record.end_s) == (1.0, 3.0)


def test_frames_are_not_changed(engine, runner):
    request, frames = asked(engine)
    if frames is None:
        frames = some_frames(4, 64, 192)
    before = frames.data.copy()
    runner.run(engine.caption(request, frames))
    assert np.array_equal(frames.data, before)


def test_missing_frames_are_the_callers_fault(engine, runner):
    span = None if engine.needs_frames else Span(0, 10**9)
    request, _ = asked(engine, span=span)
    with pytest.raises(ConfigError):
        runner.run(engine.caption(request, None))


def test_a_schema_gives_json_or_a_rejected_record(engine, runner):
    schema = {"type": "object", "properties": {"caption": {"type": "string"}}, "required": ["caption"]}
    record = runner.run(engine.caption(*asked(engine, schema=schema)))
    if record.status == "ok":
        assert set(msgspec.json.decode(record.json)) == {"caption"}
    else:
        assert (record.status, record.reason, record.json) == ("rejected", "CaptionRejected", "")
        assert record.message
        assert record.attempts == 2


def test_cancelling_one_leaves_the_others(engine, runner):
    async def run():
        tasks = [asyncio.create_task(engine.caption(*asked(engine, n))) for n in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = runner.run(run())
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert all(isinstance(outcomes[n], CaptionRecord) for n in (0, 2, 3))


def test_a_clip_that_is_none_is_an_error_of_ours(engine, runner):
    if engine.needs_frames:
        return  # the decoder's business
    broken = CLIP.parent / "html_404.mp4"
    with pytest.raises(CaptionError, match="web page"):
        runner.run(engine.caption(*asked(engine, clip=str(broken))))
