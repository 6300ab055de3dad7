import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.openai_wire import chat_body
from framefleet.engine.question import Question, Turn
from framefleet.errors import CaptionRejected
from framefleet.serve.chat_format import parse_chat

VIDEO = {"type": "video_url", "video_url": {"url": "data:x"}}
MESSAGES = [{"role": "user", "content": [VIDEO, {"type": "text", "text": "Describe"}]}]


def parse(**body):
    return parse_chat({"messages": MESSAGES} | body, default_max_tokens=99)


def test_the_plainest_request():
    chat = parse(model="m")
    assert (chat.model, chat.turns, chat.video_url) == ("m", (Turn("user", "Describe", True),), "data:x")
    assert chat.generation == GenerationSettings(max_tokens=99, temperature=1.0)
    assert not chat.stream


def test_what_our_own_client_sends_is_understood():
    turns = (Turn("system", "S"), Turn("user", "U", True), Turn("assistant", "A"), Turn("user", "again"))
    generation = GenerationSettings(max_tokens=5, temperature=0.3, top_p=0.9, seed=7, extra={"top_k": 3})
    schema = {"type": "object"}
    question = Question(turns=turns, generation=generation, schema=schema)
    body = chat_body(
        question, model="m", video_url="data:x", json_mode="json_schema", tokens_field="max_tokens",
        extra={"media_io_kwargs": {"video": {"fps": 1}}},
    )  # fmt: skip
    chat = parse_chat(body | {"stream": True, "stream_options": {"include_usage": True}}, default_max_tokens=1)
    assert (chat.turns, chat.generation, chat.schema, chat.media_io) == (turns, generation, schema, {"fps": 1})
    assert chat.stream
    assert chat.include_usage


@pytest.mark.parametrize("field", [{"n": 1}, {"stop": None}, {"stop": []}, {"user": "x"}, {"frequency_penalty": 0}])
def test_fields_that_change_nothing_are_taken(field):
    assert parse(**field)


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2}, {"stop": ["\n"]}, {"logprobs": True}, {"frequency_penalty": 0.5}, {"tools": [{}]}, {"temprature": 1},
        {"temperature": 3}, {"temperature": "hot"}, {"top_p": 0}, {"max_tokens": -1}, {"max_tokens": "many"},
        {"seed": 1.5}, {"media_io_kwargs": {"image": {"x": 1}}}, {"media_io_kwargs": []}, {"response_format": "json"},
        {"mm_processor_kwargs": {"fps": 1}},
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(field):
    with pytest.raises(CaptionRejected):
        parse(**field)


@pytest.mark.parametrize(
    "messages",
    [
        None, [], "hi", [3], [{"role": "user"}], [{"role": "tool", "content": "x"}], [{"role": "user", "content": "x"}],
        [{"role": "user", "content": [VIDEO, VIDEO]}], [{"role": "system", "content": [VIDEO]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}, VIDEO]}],
        [*MESSAGES, {"role": "assistant", "content": "x"}], [{"role": "user", "content": [{"type": "video_url"}]}],
    ],
)  # fmt: skip
def test_messages_without_exactly_one_video_are_refused(messages):
    with pytest.raises(CaptionRejected):
        parse(messages=messages)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3),
    max_leaves=6,
)
FIELDS = ["messages", "model", "max_tokens", "stream_options", "media_io_kwargs", "response_format", "n", "seed"]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values) | json_values)
def test_no_body_is_a_fault_of_ours(body):
    with contextlib.suppress(CaptionRejected):
        parse_chat(body, default_max_tokens=1)


@given(st.dictionaries(st.sampled_from(FIELDS[2:]), json_values))
def test_no_field_is_a_fault_of_ours(body):
    with contextlib.suppress(CaptionRejected):
        parse(**body)
