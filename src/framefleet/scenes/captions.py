"""Truth to words and back, and the score of a caption per attribute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from framefleet.scenes import truth as t
from framefleet.scenes.truth import Truth, Vehicle

_LIGHT_WORDS = {"daylight": "in daylight", "dusk": "at dusk", "night": "at night"}
_WEATHER_WORDS = {"clear": "with clear visibility", "rain": "in rain", "fog": "in fog"}

SCENE_ATTRIBUTES = ("light", "weather", "road", "lanes", "traffic_light", "pedestrian", "ego")
VEHICLE_ATTRIBUTES = ("colour", "kind", "action")
ATTRIBUTES = (*SCENE_ATTRIBUTES, "vehicle_where", *(f"vehicle_{a}" for a in VEHICLE_ATTRIBUTES))
MOTION_ATTRIBUTES = ("traffic_light", "pedestrian", "ego", "vehicle_action")


def _setting(truth: Truth) -> str:
    return f"a {truth.lanes} {truth.road} {_LIGHT_WORDS[truth.light]} {_WEATHER_WORDS[truth.weather]}"


def _vehicle_sentence(v: Vehicle) -> str:
    return f"A {v.colour} {v.kind} {v.where} {v.action}."


def _last_sentence(truth: Truth) -> str:
    if truth.traffic_light == "none":
        return f"The ego vehicle {truth.ego}."
    return f"The traffic light {truth.traffic_light}; the ego vehicle {truth.ego}."


def caption_of(truth: Truth) -> str:
    """The true caption: setting, vehicles (ahead, left, right), pedestrian, traffic light and ego vehicle."""
    sentences = [f"The ego vehicle travels along {_setting(truth)}."]
    sentences += [_vehicle_sentence(v) for v in truth.vehicles]
    if truth.pedestrian != "none":
        sentences.append(f"A pedestrian crosses {truth.pedestrian}.")
    return " ".join([*sentences, _last_sentence(truth)])


def short_caption_of(truth: Truth) -> str:
    """One sentence: what the ego vehicle does, and where."""
    return f"The ego vehicle {truth.ego} on {_setting(truth)}."


def attributes_of(truth: Truth) -> dict[str, str]:
    """The truth as flat attributes, the form `parse_caption` gives: `ego`, `ahead.colour` ..."""
    flat = {name: str(getattr(truth, name)) for name in SCENE_ATTRIBUTES}
    for vehicle in truth.vehicles:
        flat |= {f"{vehicle.where}.{a}": getattr(vehicle, a) for a in VEHICLE_ATTRIBUTES}
    return flat


def _one_of(words: Iterable[str]) -> str:
    return "(" + "|".join(map(re.escape, words)) + ")"


_SETTING = re.compile(
    rf"a {_one_of(t.LANES)} {_one_of(t.ROADS)} {_one_of(_LIGHT_WORDS.values())} {_one_of(_WEATHER_WORDS.values())}"
)
_VEHICLE = re.compile(
    rf"A {_one_of(t.COLOURS)} {_one_of(t.KINDS)} {_one_of(t.WHERES)} {_one_of((*t.AHEAD_ACTIONS, *t.SIDE_ACTIONS))}\."
)
_PEDESTRIAN = re.compile(rf"pedestrian crosses {_one_of(t.PEDESTRIANS[1:])}")
_TRAFFIC_LIGHT = re.compile(rf"traffic light {_one_of(t.TRAFFIC_LIGHTS[1:])}")
_EGO = re.compile(rf"ego vehicle {_one_of(t.EGO_ACTIONS)}")


def parse_caption(text: str) -> dict[str, str]:
    """The attributes that a caption names, as `attributes_of` writes them; what it does not say is absent.

    A pedestrian or a traffic light that is not mentioned reads as "none": the full caption names both when there.
    """
    found: dict[str, str] = {}
    if setting := _SETTING.search(text):
        lights, weathers = ({w: k for k, w in words.items()} for words in (_LIGHT_WORDS, _WEATHER_WORDS))
        found |= {"lanes": setting[1], "road": setting[2], "light": lights[setting[3]], "weather": weathers[setting[4]]}
    for name, pattern, absent in (("pedestrian", _PEDESTRIAN, "none"), ("traffic_light", _TRAFFIC_LIGHT, "none")):
        match = pattern.search(text)
        found[name] = match[1] if match else absent
    if ego := _EGO.search(text):
        found["ego"] = ego[1]
    for colour, kind, where, action in _VEHICLE.findall(text):
        found |= {f"{where}.colour": colour, f"{where}.kind": kind, f"{where}.action": action}
    return found


def truth_of(caption: str) -> Truth:
    """The exact inverse of `caption_of`. Raises KeyError or ConfigError for a text that it would not write."""
    flat = parse_caption(caption)
    vehicles = tuple(
        Vehicle(where=where, **{a: flat[f"{where}.{a}"] for a in VEHICLE_ATTRIBUTES})
        for where in t.WHERES
        if f"{where}.kind" in flat
    )
    return Truth(vehicles=vehicles, **{name: flat[name] for name in SCENE_ATTRIBUTES})


def score(truth: Truth, caption: str) -> dict[str, list[bool]]:
    """Right or wrong per attribute of ATTRIBUTES; vehicle attributes hold one entry per true vehicle.

    `vehicle_where` is right where exactly the true places are named. An attribute of a vehicle that the caption does
    not name counts as wrong.
    """
    said, real = parse_caption(caption), attributes_of(truth)
    result = {name: [said.get(name) == real[name]] for name in SCENE_ATTRIBUTES}
    result["vehicle_where"] = [all((f"{w}.kind" in said) == (f"{w}.kind" in real) for w in t.WHERES)]
    for a in VEHICLE_ATTRIBUTES:
        keys = [f"{v.where}.{a}" for v in truth.vehicles]
        result[f"vehicle_{a}"] = [said.get(k) == real[k] for k in keys]
    return result


def mean_score(scores: Iterable[Mapping[str, list[bool]]]) -> dict[str, float]:
    """The share right per attribute over many scored captions; attributes without an entry are left out."""
    pooled: dict[str, list[bool]] = {}
    for one in scores:
        for name, right in one.items():
            pooled.setdefault(name, []).extend(right)
    return {name: sum(right) / len(right) for name, right in pooled.items() if right}
