"""Truth to words and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError
from framefleet.scenes import (
    ATTRIBUTES,
    Truth,
    Vehicle,
    attributes_of,
    caption_of,
    mean_score,
    parse_caption,
    sample_scene,
    score,
    short_caption_of,
    truth_of,
)
from framefleet.scenes import truth as t


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    """Any truth that the drawn world allows."""
    places = sorted(draw(st.sets(st.sampled_from(t.WHERES))), key=t.WHERES.index)
    vehicles = tuple(
        Vehicle(
            where,
            draw(st.sampled_from(t.COLOURS)),
            draw(st.sampled_from(t.KINDS)),
            draw(st.sampled_from(t.actions_at(where))),
        )
        for where in places
    )
    chosen = {
        "light": draw(st.sampled_from(t.LIGHTS)),
        "weather": draw(st.sampled_from(t.WEATHERS)),
        "road": draw(st.sampled_from(t.ROADS)),
        "lanes": draw(st.sampled_from(t.LANES)),
        "traffic_light": draw(st.sampled_from(t.TRAFFIC_LIGHTS)),
        "pedestrian": draw(st.sampled_from(t.PEDESTRIANS)),
        "ego": draw(st.sampled_from(t.EGO_ACTIONS)),
        "vehicles": vehicles,
    }
    # what clashes falls back to its default, in an order that hypothesis chooses
    for name in ("", *draw(st.permutations(("road", "lanes", "vehicles", "ego", "pedestrian", "traffic_light")))):
        chosen.pop(name, None)
        try:
            return Truth(**chosen)
        except ConfigError:
            continue
    raise AssertionError("the default truth is allowed")


@given(truths())
def test_a_caption_tells_the_whole_truth(truth: Truth) -> None:
    assert truth_of(caption_of(truth)) == truth
    assert parse_caption(caption_of(truth)) == attributes_of(truth)


@given(truths(), truths())
def test_different_truths_have_different_captions(one: Truth, other: Truth) -> None:
    assert (caption_of(one) == caption_of(other)) == (one == other)


@given(truths())
def test_the_true_caption_scores_right_everywhere(truth: Truth) -> None:
    right = score(truth, caption_of(truth))
    assert set(right) == set(ATTRIBUTES)
    assert all(all(values) for values in right.values())


@given(truths())
def test_the_short_caption_names_setting_and_ego(truth: Truth) -> None:
    said = parse_caption(short_caption_of(truth))
    assert {k: said[k] for k in ("light", "weather", "road", "lanes", "ego")} == {
        k: attributes_of(truth)[k] for k in ("light", "weather", "road", "lanes", "ego")
    }


@given(truths())
def test_to_dict_and_back(truth: Truth) -> None:
    assert Truth.from_dict(truth.to_dict()) == truth


def test_the_caption_reads_as_documented() -> None:
    truth = Truth(
        vehicles=(Vehicle("ahead", "red", "truck", "brakes"),),
        traffic_light="changes from green to red",
        ego="slows and stops",
    )
    assert caption_of(truth) == (
        "The ego vehicle travels along a multi-lane urban road in daylight with clear visibility. "
        "A red truck ahead brakes. The traffic light changes from green to red; the ego vehicle slows and stops."
    )


def test_each_wrong_word_costs_its_attribute_alone() -> None:
    truth = Truth(
        vehicles=(Vehicle("ahead", "red", "truck", "brakes"), Vehicle("in the left lane", "blue", "car", "overtakes")),
        traffic_light="stays red",
        pedestrian="from left to right",
    )
    for old, new, name, expected in (
        ("daylight", "night", "light", None),
        ("red truck", "blue truck", "vehicle_colour", [False, True]),
        ("truck", "bus", "vehicle_kind", [False, True]),
        ("overtakes", "falls behind", "vehicle_action", [True, False]),
        ("stays red", "stays green", "traffic_light", [False]),
        ("left to right", "right to left", "pedestrian", [False]),
        ("keeps its lane", "turns left", "ego", [False]),
    ):
        text = (
            caption_of(truth).replace("in daylight", "at night")
            if name == "light"
            else caption_of(truth).replace(old, new)
        )
        right = score(truth, text)
        assert right[name] == (expected or [False])
        assert all(all(v) for k, v in right.items() if k != name)


def test_a_missing_and_an_invented_vehicle_are_both_wrong() -> None:
    one = Truth(vehicles=(Vehicle("ahead", "red", "car", "brakes"),))
    none = replace(one, vehicles=())
    assert score(one, caption_of(none))["vehicle_where"] == [False]
    assert score(one, caption_of(none))["vehicle_colour"] == [False]
    assert score(none, caption_of(one))["vehicle_where"] == [False]
    assert score(none, caption_of(one))["vehicle_colour"] == []


@given(st.text())
def test_any_text_can_be_scored(text: str) -> None:
    score(sample_scene(3).truth, text)


def test_mean_score_pools_vehicles() -> None:
    assert mean_score([{"a": [True, False], "b": []}, {"a": [True], "b": []}]) == {"a": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"light": "noon"},
        {"lanes": "two-lane", "ego": "turns left"},
        {"road": "highway", "traffic_light": "stays red"},
        {"lanes": "two-lane", "vehicles": (Vehicle("in the right lane", "red", "car", "overtakes"),)},
        {"ego": "turns left", "pedestrian": "from left to right"},
        {
            "vehicles": (
                Vehicle("ahead", "red", "car", "moves to the left lane"),
                Vehicle("in the left lane", "blue", "bus", "keeps pace"),
            )
        },
        {
            "vehicles": (
                Vehicle("in the left lane", "red", "car", "overtakes"),
                Vehicle("ahead", "red", "car", "brakes"),
            )
        },
    ],
)
def test_impossible_truths_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Truth(**wrong)  # type: ignore[arg-type]
