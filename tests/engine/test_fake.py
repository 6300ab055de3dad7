import asyncio

import numpy as np
import pytest
from tiny_models import some_frames

from framefleet.engine import open_engine
from framefleet.engine.fake import FAULTS, example_of, read_barcodes
from framefleet.engine.judging import judge
from framefleet.engine.question import Question, Turn
from framefleet.errors import CaptionRejected, ConfigError, EngineBusy, EngineLost


def with_barcodes(numbers, height=32, width=200):
    frames = some_frames(len(numbers), height, width)
    frames.data[:, :16, :160] = 0
    for row, number in enumerate(numbers):
        for bit in range(10):
            if number >> bit & 1:
                frames.data[row, :16, bit * 16 : bit * 16 + 16] = 255
    return frames


def ask(engine, frames=None, schema=None):
    question = Question(turns=(Turn("user", "Hi", True),), clip="c.mp4", frames=frames, schema=schema)
    return asyncio.run(engine.ask(question))


def test_it_reads_which_frames_arrived():
    frames = with_barcodes([0, 1, 682, 1023])
    assert read_barcodes(frames) == [0, 1, 682, 1023]
    assert ask(open_engine("fake"), frames).text == "Frames 0 1 682 1023."


def test_without_barcodes_it_tells_size_times_and_colour():
    frames = some_frames(3, 32, 64)
    frames.data[:] = np.array([255, 0, 16], np.uint8)
    assert ask(open_engine("fake"), frames).text == "3 frames of 64x32 from 0.000 s to 0.800 s, mean colour #ff0010."
    assert read_barcodes(some_frames(2, 64, 200)) is None


def test_answers_come_in_turn():
    engine = open_engine("fake", answers=["one", "two"])
    assert [ask(engine).text for _ in range(3)] == ["one", "two", "one"]
    assert engine.num_asked == 3


@pytest.mark.parametrize(
    ("fault", "error"), [("busy", EngineBusy), ("lost", EngineLost), ("rejected", CaptionRejected)]
)
def test_faults_are_raised_in_turn(fault, error):
    engine = open_engine("fake", answers=["fine"], faults=["", fault])
    assert ask(engine).text == "fine"
    with pytest.raises(error):
        ask(engine)
    assert ask(engine).text == "fine"


@pytest.mark.parametrize("fault", FAULTS[4:8])
def test_spoilt_answers_are_not_taken_for_good(fault):
    engine = open_engine("fake", answers=["A car waits at the light."], faults=[fault])
    assert judge(ask(engine), Question(turns=())).status in ("truncated", "rejected")


def test_unknown_faults_and_settings_are_refused():
    with pytest.raises(ConfigError, match="no such fault"):
        open_engine("fake", faults=["explode"])
    with pytest.raises(ConfigError, match="answers"):
        open_engine("fake", answer=["x"])
    with pytest.raises(ConfigError, match=r"no such engine.*embedded.*did you mean 'fake'"):
        open_engine("fakee")


def test_more_than_its_share_is_refused_and_cancellation_counted():
    async def crowd():
        engine = open_engine("fake", delay_s=0.05, max_at_once=2)
        questions = [Question(turns=(Turn("user", "Hi", True),), clip="c") for _ in range(3)]
        outcomes = await asyncio.gather(*map(engine.ask, questions), return_exceptions=True)
        cancelled = asyncio.create_task(engine.ask(questions[0]))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        return engine, outcomes

    engine, outcomes = asyncio.run(crowd())
    assert sum(isinstance(o, EngineBusy) for o in outcomes) == 1
    assert (engine.most_at_once, engine.num_cancelled, engine.num_running) == (2, 1, 0)


def test_a_schema_is_met():
    schema = {
        "type": "object",
        "properties": {
            "caption": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2}, "x": {"const": 7},
        },
    }  # fmt: skip
    assert example_of(schema) == {"caption": "fake", "n": 1, "ok": True, "tags": ["a", "a"], "x": 7}
    answer = ask(open_engine("fake"), some_frames(1), schema)
    assert judge(answer, Question(turns=(), schema=schema)).status == "ok"
