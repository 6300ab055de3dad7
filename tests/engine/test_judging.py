"""What answers are worth: cut, fenced, silent, looping, wrong JSON (R19)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.judging import another_try, check_schema, clean_text, is_looping, judge, parse_json
from framefleet.engine.question import Answer, Question, Turn
from framefleet.errors import ConfigError

SCHEMA = {
    "type": "object",
    "properties": {"caption": {"type": "string"}, "count": {"type": "integer", "minimum": 0}},
    "required": ["caption"],
    "additionalProperties": False,
}


def question(schema=None, **generation):
    return Question(turns=(Turn("user", "Describe", True),), schema=schema, generation=GenerationSettings(**generation))


def answer(text, finish_reason="stop", **more):
    return Answer(text=text, finish_reason=finish_reason, **more)


def test_plain_text_is_ok():
    assert judge(answer("A car waits."), question()).status == "ok"


def test_a_cut_text_is_truncated_and_says_where():
    verdict = judge(answer("A car", "length"), question(max_tokens=7))
    assert (verdict.status, verdict.message) == ("truncated", "cut at max_tokens=7")


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_silence_is_rejected(text):
    assert judge(answer(text), question()).status == "rejected"


def test_text_that_came_as_reasoning_is_told_apart():
    assert "reasoning" in judge(answer("", reasoning="hm"), question()).message


@pytest.mark.parametrize(
    "text",
    ["again " * 500, "A car drives. " + "It stops and it goes. " * 30, "the red the red " * 8],
)
def test_loops_are_seen(text):
    assert is_looping(text)
    assert judge(answer(text, "length"), question()).status == "rejected"


@pytest.mark.parametrize(
    "text",
    [
        "no no no",
        "A red car and a blue car and a green car and a white car wait at the light while people cross the wet road.",
        "The ego vehicle travels along a multi-lane urban road in daylight. A red truck ahead brakes. It stops.",
    ],
)
def test_ordinary_texts_are_no_loops(text):
    assert not is_looping(text)


@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6),
    st.integers(8, 40),
    st.lists(st.text("xyz", min_size=1), max_size=5),
)
def test_any_phrase_said_often_enough_is_a_loop(phrase, rounds, before):
    words = before + phrase * max(rounds, 32 // len(phrase))
    assert is_looping(" ".join(words))


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=200))
def test_texts_without_repetition_are_never_loops(words):
    assert not is_looping(" ".join(map(str, words)))


@pytest.mark.parametrize(
    "text",
    [
        '{"caption": "a car"}',
        '```json\n{"caption": "a car"}\n```',
        'Sure! Here it is:\n```\n{"caption": "a car"}```\nAnything else?',
        'The answer [as JSON] is {"caption": "a car"} as asked.',
    ],
)
def test_json_is_found_where_models_put_it(text):
    verdict = judge(answer(text), question(SCHEMA))
    assert verdict.status == "ok"
    assert json.loads(verdict.json) == {"caption": "a car"}


def test_json_is_kept_in_one_canonical_form():
    first = judge(answer('{"count": 1,   "caption": "é"}'), question(SCHEMA))
    second = judge(answer('{"caption":"é","count":1}'), question(SCHEMA))
    assert first.json == second.json == '{"caption":"é","count":1}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a car", "no JSON object"),
        ('{"caption": 3}', "not of type 'string' (at $.caption)"),
        ('{"count": 1}', "'caption' is a required property"),
        ('{"caption": "a", "more": 1}', "Additional properties"),
        ('"a string"', "not of type 'object'"),
        ('{"caption": NaN}', "no JSON object"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_wrong_json_is_rejected_with_the_reason(text, problem):
    verdict = judge(answer(text), question(SCHEMA))
    assert verdict.status == "rejected"
    assert problem in verdict.problem or problem in verdict.message


def test_wrong_json_goes_back_to_the_model_with_the_reason():
    asked, got = question(SCHEMA), answer('{"count": -1}')
    again = another_try(asked, got, judge(got, asked))
    assert [turn.role for turn in again.turns] == ["user", "assistant", "user"]
    assert again.turns[1].text == '{"count": -1}'
    assert "does not meet the schema" in again.turns[2].text
    assert sum(turn.has_video for turn in again.turns) == 1


def test_cut_json_is_asked_again_with_more_tokens():
    asked, got = question(SCHEMA, max_tokens=10), answer('{"caption": "a', "length")
    verdict = judge(got, asked)
    assert "cut at max_tokens=10" in verdict.message
    again = another_try(asked, got, verdict)
    assert again.generation.max_tokens == 20
    assert again.turns == asked.turns


def test_a_greedy_engine_is_not_asked_for_the_same_again():
    got = answer("")
    assert another_try(question(), got, judge(got, question())) is None
    assert another_try(question(temperature=1.0, seed=3), got, judge(got, question())) is None
    assert another_try(question(temperature=1.0), got, judge(got, question())) == question(temperature=1.0)


def test_good_answers_are_not_asked_again():
    for got in (answer("A car."), answer("A car", "length")):
        assert another_try(question(), got, judge(got, question())) is None


@given(st.text(st.characters(), max_size=50))
def test_cleaned_text_can_be_stored(text):
    clean = clean_text(text)
    clean.encode()
    assert "\0" not in clean
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert clean == text.replace("\0", "�")


def test_surrogate_pairs_become_the_character_they_mean():
    assert clean_text("\ud83d\ude00 \ud83d") == "😀 �"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_comes_back_from_a_fence(value):
    assert parse_json(f"```json\n{json.dumps(value)}\n```") == value


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"minimum": "one"}, [], 3, True])
def test_schemas_are_checked(schema):
    with pytest.raises(ConfigError, match="not a JSON schema"):
        check_schema(schema)


def test_a_schema_cannot_send_us_to_the_network():
    asked = question({"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(ConfigError, match="refers to what it does not hold"):
        judge(answer('{"a": 1}'), asked)
