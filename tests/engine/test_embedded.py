"""The embedded engine as a whole: batches, cancellation, death of its process, bounds. With tiny random models."""

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, SIZES, some_frames
from transformers import AutoModelForImageTextToText, AutoTokenizer

from framefleet.engine import open_engine
from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.clock import clock_of
from framefleet.engine.embedded.checkpoint import open_checkpoint
from framefleet.engine.embedded.families import family_of
from framefleet.engine.embedded.generation import own_tokens
from framefleet.engine.question import Question, Turn
from framefleet.errors import CaptionRejected, ConfigError, DeviceError, EngineBusy, EngineLost

FAST = {"num_threads": 1, "batch_wait_ms": 30}
ENDLESS = {"max_tokens": 3000, "extra": {"ignore_eos": True}}
"""Longer than any test: without `ignore_eos` the random model stops after a third of a second."""


def question(family="qwen3_vl", shown=0, text="Describe", num_frames=4, **generation):
    return Question(
        turns=(Turn("user", text, True),),
        frames=some_frames(num_frames, *SIZES[family], seed=shown),
        generation=GenerationSettings(**({"max_tokens": 12} | generation)),
    )


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(models, runner):
    engine = open_engine("embedded", model=str(models / "qwen3_vl"), **FAST)
    runner.run(engine.__aenter__())
    yield engine
    runner.run(engine.aclose())


@pytest.mark.parametrize("family", FAMILIES)
def test_words_do_not_depend_on_company_and_are_those_of_transformers(models, runner, family):
    asked = [question(family, i, "Describe " + "it " * i, 2 + i, max_tokens=10 + i) for i in range(6)]

    async def both_ways():
        async with open_engine("embedded", model=str(models / family), **FAST) as engine:
            together = await asyncio.gather(*map(engine.ask, asked))
            alone = [await engine.ask(one) for one in asked]
            return together, alone

    together, alone = runner.run(both_ways())
    assert [a.text for a in together] == [a.text for a in alone]
    assert len({a.text for a in together}) == len(asked), "the model does not look at the frames"
    assert [a.text for a in alone] == [by_hand(models / family, one) for one in asked]
    assert all(a.finish_reason == "length" and a.completion_tokens == 10 + i for i, a in enumerate(together))


def by_hand(folder, one):
    """The plain way: one question, transformers' generate."""
    family = family_of(open_checkpoint(str(folder)), AutoTokenizer.from_pretrained(folder))
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    prepared = family.prepare(one.turns, one.frames.data, clock_of(one.frames, None))
    with torch.inference_mode():
        output = model.generate(**family.collate([prepared]), max_new_tokens=one.generation.max_tokens, do_sample=False)
    return family.tokenizer.decode(output[0, len(prepared.input_ids) :], skip_special_tokens=True)


def test_an_answer_says_what_it_took(engine, runner):
    answer = runner.run(engine.ask(question()))
    assert {"preprocess", "queue", "prefill", "generate"} <= set(answer.seconds)
    assert answer.prompt_tokens > 10
    assert answer.mean_logprob < 0
    assert engine.versions.keys() == {"torch", "transformers"}


def test_text_is_told_as_it_comes(engine, runner):
    pieces = []
    answer = runner.run(engine.ask(question(max_tokens=40), pieces.append))
    assert len(pieces) > 3
    assert "".join(pieces) == answer.text == runner.run(engine.ask(question(max_tokens=40))).text


def test_seeds_repeat_and_differ(engine, runner):
    texts = [runner.run(engine.ask(question(temperature=1.0, seed=s, max_tokens=20))).text for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("generation", "problem"),
    [
        ({"extra": {"beam_width": 4}}, r"beam_width.*repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused(engine, runner, generation, problem):
    with pytest.raises(CaptionRejected, match=problem):
        runner.run(engine.ask(question(**generation)))


def test_one_bad_question_spoils_no_batch(engine, runner):
    async def mixed():
        asked = [
            question(shown=1),
            question(text="<|video_pad|>"),
            question(shown=2, extra={"repetition_penalty": "x"}),
        ]
        return await asyncio.gather(*map(engine.ask, asked), return_exceptions=True)

    good, injected, wrong_type = runner.run(mixed())
    assert good.text
    assert isinstance(injected, CaptionRejected)
    assert type(wrong_type).__name__ == "CaptionError"


def test_penalties_are_applied(engine, runner):
    plain = runner.run(engine.ask(question(max_tokens=30))).text
    assert runner.run(engine.ask(question(max_tokens=30, extra={"repetition_penalty": 3.0}))).text != plain


def test_no_frames_no_question(engine, runner):
    with pytest.raises(CaptionRejected, match="no frames"):
        runner.run(engine.ask(Question(turns=(Turn("user", "Hi", True),))))


def test_cancelling_frees_the_model(engine, runner):
    """A withdrawn question of thousands of tokens must not hold up the next one."""

    async def cancelled_then_next():
        long = asyncio.create_task(engine.ask(question(**ENDLESS)))
        while not engine.num_running:
            await asyncio.sleep(0.01)
        long.cancel()
        await asyncio.wait([long])
        assert long.cancelled()
        assert engine.num_waiting == engine.num_running == 0
        return await asyncio.wait_for(engine.ask(question()), 20)

    assert runner.run(cancelled_then_next()).text


def test_too_many_questions_are_refused_at_once(models, runner):
    async def crowd():
        async with open_engine("embedded", model=str(models / "qwen3_vl"), max_queue=3, **FAST) as engine:
            asking = (engine.ask(question(shown=s)) for s in range(5))
            return await asyncio.gather(*asking, return_exceptions=True)

    outcomes = runner.run(crowd())
    assert [type(o) is EngineBusy for o in outcomes] == [False] * 3 + [True] * 2
    assert outcomes[3].retry == "later"


def test_a_dead_process_loses_what_it_had_and_comes_back(models, runner):
    async def killed():
        async with open_engine("embedded", model=str(models / "qwen3_vl"), **FAST) as engine:
            asked = [asyncio.create_task(engine.ask(question(shown=s, **ENDLESS))) for s in range(3)]
            while engine.num_running < 3:
                await asyncio.sleep(0.01)
            first_pid = engine.pid
            os.kill(first_pid, signal.SIGKILL)
            lost = await asyncio.gather(*asked, return_exceptions=True)
            assert not engine.is_ready
            while not engine.is_ready:  # by itself, nobody asks
                await asyncio.sleep(0.05)
            assert engine.pid != first_pid
            return lost, await engine.ask(question())

    lost, answer = runner.run(killed())
    assert [type(error) for error in lost] == [EngineLost] * 3
    assert "signal 9" in str(lost[0])
    assert answer.text


def test_a_process_that_keeps_dying_stays_down(models, runner):
    async def dying():
        settings = {"max_restarts": 0, **FAST}
        async with open_engine("embedded", model=str(models / "qwen3_vl"), **settings) as engine:
            os.kill(engine.pid, signal.SIGKILL)
            while engine.pid:
                await asyncio.sleep(0.01)
            with pytest.raises(EngineLost, match="keeps dying"):
                await engine.ask(question())

    runner.run(dying())


def test_a_process_that_hangs_is_killed(models, runner):
    async def hanging():
        settings = {"stall_timeout_s": 1.0, **FAST}
        async with open_engine("embedded", model=str(models / "qwen3_vl"), **settings) as engine:
            pid = engine.pid
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(EngineLost, match="signal 9"):
                await engine.ask(question())
            assert await engine.ask(question())
            return pid, engine.pid

    old, new = runner.run(hanging())
    assert old != new


def test_closing_leaves_nothing(models, runner):
    async def opened_and_closed():
        engine = open_engine("embedded", model=str(models / "qwen3_vl"), **FAST)
        async with engine:
            pid = engine.pid
            waiting = asyncio.create_task(engine.ask(question(**ENDLESS)))
            while not engine.num_running:
                await asyncio.sleep(0.01)
        with pytest.raises(EngineLost, match="closed"):
            await waiting
        with pytest.raises(EngineLost, match="closed"):
            await engine.ask(question())
        return pid

    fds = num_fds()
    pid = runner.run(opened_and_closed())
    assert not is_alive(pid)
    assert num_fds() <= fds


def test_the_process_does_not_outlive_a_killed_parent(models):
    code = f"""
import asyncio
from framefleet.engine import open_engine
async def main():
    async with open_engine("embedded", model={str(models / "qwen3_vl")!r}, num_threads=1) as engine:
        print(engine.pid, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    deadline_s = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_alive(pid)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def num_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "nowhere"}, ConfigError, "no such model"),
        ({"dtype": "float8"}, ConfigError, "dtype"),
        ({"max_batsch": 3}, ConfigError, "max_batch"),
        ({"device": "cuda:7"}, DeviceError, "no CUDA device"),
    ],
)
def test_wrong_settings_are_told_before_anything_runs(models, runner, settings, error, message):
    async def start():
        async with open_engine("embedded", **({"model": str(models / "qwen3_vl")} | settings)):
            pass

    if settings.get("device") and torch.cuda.is_available():
        return  # the last case is for machines without a GPU
    with pytest.raises(error, match=message):
        runner.run(start())


def test_damaged_weights_are_a_config_error(models, runner, tmp_path):
    folder = shutil.copytree(models / "qwen3_vl", tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")

    async def start():
        async with open_engine("embedded", model=str(folder), **FAST):
            pass

    with pytest.raises(ConfigError, match="files cannot be loaded"):
        runner.run(start())


def test_a_model_of_limited_knowledge_says_so_once(models, runner, tmp_path, caplog):
    folder = shutil.copytree(models / "qwen3_vl", tmp_path / "model")
    notice = {"notice": "knows drawn scenes only; name another with --model", "min_mean_logprob": -1e-6}
    (folder / "framefleet.json").write_text(json.dumps(notice))

    async def twice():
        async with open_engine("embedded", model=str(folder), **FAST) as engine:
            await engine.ask(question())
            await engine.ask(question())

    with caplog.at_level(logging.WARNING, "framefleet"):
        runner.run(twice())
    assert [r.getMessage().count("--model") for r in caplog.records] == [1]


def test_a_row_ends_at_its_own_end():
    assert own_tokens([5, 6, 0, 0], {0, 9}, 10) == ([5, 6, 0], True)
    assert own_tokens([5, 6, 7, 0], {0}, 2) == ([5, 6], False)
    assert own_tokens([5, 9, 0], {0, 9}, 2) == ([5, 9], True)
    assert own_tokens([], {0}, 2) == ([], False)
