"""What is true of a drawn scene: the attributes that its caption names.

Attributes that need motion come in pairs that are one another's time reversal (brakes / pulls away, overtakes / falls
behind, green to red / red to green, turns left / right ...), so that no single frame and no unordered set of frames
tells them apart. Values are the words of the caption.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from framefleet.errors import ConfigError

LIGHTS = ("daylight", "dusk", "night")
WEATHERS = ("clear", "rain", "fog")
ROADS = ("urban road", "highway", "country road")
LANES = ("two-lane", "multi-lane")
TRAFFIC_LIGHTS = ("none", "stays red", "stays green", "changes from red to green", "changes from green to red")
PEDESTRIANS = ("none", "from left to right", "from right to left")
EGO_ACTIONS = (
    "keeps its lane",
    "slows down",
    "speeds up",
    "slows and stops",
    "starts to move",
    "turns left",
    "turns right",
    "changes to the left lane",
    "changes to the right lane",
)
KINDS = ("car", "truck", "bus")
COLOURS = ("red", "blue", "green", "yellow", "white")
WHERES = ("ahead", "in the left lane", "in the right lane")
AHEAD_ACTIONS = ("keeps its distance", "brakes", "pulls away", "moves to the left lane", "moves to the right lane")
SIDE_ACTIONS = ("keeps pace", "overtakes", "falls behind", "cuts in ahead")

EGO_TURNS = ("turns left", "turns right")
EGO_LANE_CHANGES = ("changes to the left lane", "changes to the right lane")


def actions_at(where: str) -> tuple[str, ...]:
    """What a vehicle at this place can do."""
    return AHEAD_ACTIONS if where == "ahead" else SIDE_ACTIONS


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"no such {name}", given=repr(value), allowed=", ".join(allowed))


@dataclass(frozen=True, slots=True)
class Vehicle:
    """Another vehicle: where it starts, what it is and what it does. Raises ConfigError for unknown words."""

    where: str
    colour: str
    kind: str
    action: str

    def __post_init__(self) -> None:
        _check("place", self.where, WHERES)
        _check("colour", self.colour, COLOURS)
        _check("kind of vehicle", self.kind, KINDS)
        _check("action of a vehicle there", self.action, actions_at(self.where))


@dataclass(frozen=True, slots=True)
class Truth:
    """The attributes of a scene; `vehicles` in the order of WHERES, at most one per place.

    Raises ConfigError for unknown words, vehicles out of order, or what the drawn world has no room for.
    """

    light: str = "daylight"
    weather: str = "clear"
    road: str = "urban road"
    lanes: str = "multi-lane"
    vehicles: tuple[Vehicle, ...] = ()
    traffic_light: str = "none"
    pedestrian: str = "none"
    ego: str = "keeps its lane"

    def __post_init__(self) -> None:
        _check("light", self.light, LIGHTS)
        _check("weather", self.weather, WEATHERS)
        _check("road", self.road, ROADS)
        _check("lanes", self.lanes, LANES)
        _check("traffic light", self.traffic_light, TRAFFIC_LIGHTS)
        _check("pedestrian", self.pedestrian, PEDESTRIANS)
        _check("ego action", self.ego, EGO_ACTIONS)
        order = [WHERES.index(v.where) for v in self.vehicles]
        if order != sorted(set(order)):
            raise ConfigError(
                "vehicles out of order or two at one place", given=str(self.vehicles), allowed=str(WHERES)
            )
        for problem in _clashes(self):
            raise ConfigError("the drawn world has no such scene", given=problem)

    def at(self, where: str) -> Vehicle | None:
        """The vehicle that starts at this place."""
        return next((v for v in self.vehicles if v.where == where), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Truth:
        """The inverse of `to_dict`; other keys are ignored."""
        known = {f.name: plain[f.name] for f in fields(cls) if f.name in plain}
        return cls(**{**known, "vehicles": tuple(Vehicle(**v) for v in known.get("vehicles", ()))})


def _clashes(truth: Truth) -> list[str]:
    """What cannot be drawn together, in words."""
    found = []
    places = {v.where for v in truth.vehicles}
    manoeuvre = truth.ego in EGO_TURNS + EGO_LANE_CHANGES
    sides = places - {"ahead"}
    if manoeuvre and truth.lanes == "two-lane":
        found.append(f"the ego vehicle {truth.ego} on a two-lane road")
    if manoeuvre and (sides or truth.pedestrian != "none"):
        found.append(f"the ego vehicle {truth.ego} beside others")
    if truth.ego in EGO_TURNS and truth.traffic_light != "none":
        found.append(f"the ego vehicle {truth.ego} under a traffic light")
    if truth.ego in EGO_TURNS and truth.road == "highway":
        found.append("a turn on a highway")
    if truth.road == "highway" and (truth.traffic_light != "none" or truth.pedestrian != "none"):
        found.append("a traffic light or a pedestrian on a highway")
    if truth.lanes == "two-lane" and "in the right lane" in places:
        found.append("a right lane on a two-lane road")
    if sum(v.action == "cuts in ahead" for v in truth.vehicles) > 1:
        found.append("two vehicles that cut in ahead")
    return found + [f"{v.where} {v.action}" for v in truth.vehicles if _no_room(v, truth, places, manoeuvre=manoeuvre)]


def _no_room(vehicle: Vehicle, truth: Truth, places: set[str], *, manoeuvre: bool) -> bool:
    """A vehicle that changes lane needs a free lane to go to, and a road that does not move under it."""
    target = {
        "moves to the left lane": "in the left lane",
        "moves to the right lane": "in the right lane",
        "cuts in ahead": "ahead",
    }.get(vehicle.action)
    if target is None:
        return False
    return manoeuvre or target in places or (truth.lanes == "two-lane" and target == "in the right lane")


@dataclass(frozen=True, slots=True)
class Scene:
    """A truth and how it is played: `seed` fixes every free choice of the drawing, `duration_s` its length."""

    truth: Truth
    seed: int = 0
    duration_s: float = 6.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.duration_s <= 60.0:
            raise ConfigError("scene length out of range", given=f"{self.duration_s} s", allowed="1 to 60 s")
