"""Words and phrases; the fusion of rankings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError
from framefleet.search.query import MAX_QUERY_CHARS, RRF_K, fuse, parse_query


@pytest.mark.parametrize(
    ("text", "words", "phrases"),
    [
        ("red truck, wet road", "red truck, wet road", ()),
        ('red "traffic  light" at night', "red at night", ("traffic light",)),
        ("“wet road”", "", ("wet road",)),
        ("„nasse Straße“ Nacht", "Nacht", ("nasse Straße",)),
        ('"a" "b" c', "c", ("a", "b")),
        ('an unfinished "quote', 'an unfinished "quote', ()),
        ('"" "!!" x', "x", ()),
        ("it's '; DROP TABLE captions --", "it's '; DROP TABLE captions --", ()),
        ("  \n\t ", "", ()),
        ("nul\0 and \ud83d", "nul and", ()),
    ],
)
def test_parsing(text, words, phrases):
    parsed = parse_query(text)
    assert (parsed.words, parsed.phrases) == (words, phrases)


def test_the_sentence_keeps_its_order():
    assert parse_query('red "traffic  light" at night').text == "red traffic light at night"


@pytest.mark.parametrize("text", ["", " ", "\0", '"', '""', "?!", "--", "🚚", '"..."'])
def test_nothing_to_look_for(text):
    assert parse_query(text).is_empty


@given(st.text(st.characters(), max_size=80))
def test_parsing_never_fails_and_keeps_the_words(text):
    parsed = parse_query(text)
    assert not any(0xD800 <= ord(char) < 0xE000 or char == "\0" for char in parsed.text)
    assert sorted(filter(str.isalnum, parsed.text)) == sorted(filter(str.isalnum, text))


def test_a_query_too_long():
    assert parse_query("x" * MAX_QUERY_CHARS)
    with pytest.raises(ConfigError, match="too long; got 4097 characters; allowed: 4096"):
        parse_query("x" * (MAX_QUERY_CHARS + 1))


def test_fusion_by_hand():
    fused = fuse([["a", "b", "c"], ["c", "d"]])
    assert [item for item, _ in fused] == ["c", "a", "b", "d"]
    assert dict(fused)["c"] == pytest.approx(1 / (RRF_K + 3) + 1 / (RRF_K + 1))
    assert fuse([]) == fuse([[], []]) == []


RANKINGS = st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=4)


@given(RANKINGS)
def test_fusion(rankings):
    fused = fuse(rankings)
    scores = [score for _, score in fused]
    assert scores == sorted(scores, reverse=True)
    assert {item for item, _ in fused} == {item for ranking in rankings for item in ranking}
    assert len(fused) == len(dict(fused))
    assert max(scores, default=0) <= len(rankings) / (RRF_K + 1) + 1e-12


@given(st.lists(st.integers(), unique=True))
def test_fusing_one_ranking_changes_nothing(ranking):
    assert [item for item, _ in fuse([ranking])] == ranking


@given(RANKINGS, st.integers(0, 9))
def test_being_first_everywhere_wins(rankings, winner):
    led = [[winner, *(item for item in ranking if item != winner)] for ranking in rankings] or [[winner]]
    assert fuse(led)[0][0] == winner
