"""Scenes drawn by seed: the distribution that the bundled model was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framefleet.scenes import truth as t
from framefleet.scenes.truth import Scene, Truth, Vehicle

_NUM_VEHICLES = (0.16, 0.42, 0.30, 0.12)  # none, one, two, three
_LANE_CHANGERS = {"moves to the left lane", "moves to the right lane", "cuts in ahead"}
# an ego action that answers a light; each list is the other's time reversal
_AFTER_LIGHT = {
    "changes from green to red": ("slows down", "slows and stops"),
    "changes from red to green": ("speeds up", "starts to move"),
}


def sample_scene(seed: int, *, min_duration_s: float = 4.0, max_duration_s: float = 20.0) -> Scene:
    """The scene of this seed, always the same one. Every attribute value has at least a few percent of the scenes."""
    rng = np.random.default_rng([seed, 0x5CE7E])
    duration_s = float(np.round(np.exp(rng.uniform(np.log(min_duration_s), np.log(max_duration_s))), 1))
    return Scene(_sample_truth(rng), seed=seed, duration_s=duration_s)


def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def _sample_truth(rng: np.random.Generator) -> Truth:
    road = _pick(rng, t.ROADS)
    lanes = "multi-lane" if rng.random() < 0.7 else "two-lane"
    ego = _sample_ego(rng, road, lanes)
    manoeuvre = ego in t.EGO_TURNS + t.EGO_LANE_CHANGES
    quiet = road == "highway" or manoeuvre
    traffic_light = "none"
    if road != "highway" and ego not in t.EGO_TURNS and rng.random() < 0.7:
        traffic_light = _pick(rng, ("stays red", "stays green") if manoeuvre else t.TRAFFIC_LIGHTS[1:])
    pedestrian = "none" if quiet or rng.random() < 0.5 else _pick(rng, t.PEDESTRIANS[1:])
    if traffic_light in _AFTER_LIGHT:
        ego = _pick(rng, _AFTER_LIGHT[traffic_light])
    return Truth(
        light=_pick(rng, t.LIGHTS),
        weather=_pick(rng, t.WEATHERS),
        road=road,
        lanes=lanes,
        vehicles=_sample_vehicles(rng, lanes, manoeuvre=manoeuvre),
        traffic_light=traffic_light,
        pedestrian=pedestrian,
        ego=ego,
    )


def _sample_ego(rng: np.random.Generator, road: str, lanes: str) -> str:
    if lanes == "two-lane":
        return _pick(rng, t.EGO_ACTIONS[:5])
    if road == "highway":
        return _pick(rng, t.EGO_ACTIONS[:5] + t.EGO_LANE_CHANGES)
    return _pick(rng, t.EGO_ACTIONS + t.EGO_TURNS)


def _sample_vehicles(rng: np.random.Generator, lanes: str, *, manoeuvre: bool) -> tuple[Vehicle, ...]:
    wheres = t.WHERES[:1] if manoeuvre else (t.WHERES[:2] if lanes == "two-lane" else t.WHERES)
    count = min(int(rng.choice(len(_NUM_VEHICLES), p=_NUM_VEHICLES)), len(wheres))
    chosen = sorted(rng.choice(len(wheres), size=count, replace=False).tolist())
    places = [wheres[i] for i in chosen]
    vehicles: list[Vehicle] = []
    for where in places:
        taken = places + ["ahead"] * any(v.action == "cuts in ahead" for v in vehicles)
        action = _pick(rng, _free_actions(where, taken, lanes, manoeuvre=manoeuvre))
        vehicles.append(Vehicle(where=where, colour=_pick(rng, t.COLOURS), kind=_pick(rng, t.KINDS), action=action))
    return tuple(vehicles)


def _free_actions(where: str, places: list[str], lanes: str, *, manoeuvre: bool) -> tuple[str, ...]:
    """Actions that need no lane that is taken, missing, or moving."""

    def free(action: str) -> bool:
        if action not in _LANE_CHANGERS:
            return True
        if manoeuvre:
            return False
        if action == "cuts in ahead":
            return "ahead" not in places
        side = "in the left lane" if "left" in action else "in the right lane"
        return side not in places and not (lanes == "two-lane" and "right" in side)

    return tuple(a for a in t.actions_at(where) if free(a))
