"""What stands still in a scene, and how light and weather colour everything.

The road runs along +z from the ego vehicle's start; where it turns, a second road of the same kind crosses at the
pivot. Seen from there the four arms look alike, so that a single frame does not tell a left turn from a right one.
Colours are float RGB, 0 to 255.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from framefleet.scenes.motion import DASH_PERIOD_M, LANE_WIDTH_M, Motion
from framefleet.scenes.truth import EGO_TURNS, Scene

SIGHT_M = 75.0
_DASH_M = 5.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """A vehicle seen from behind, heights in metres."""

    width_m: float
    length_m: float
    floor_m: float
    shoulder_m: float
    roof_m: float
    tail_m: float
    rear_glass: tuple[float, float] | None = None
    side_glass: tuple[float, float] | None = None
    doors: bool = False


SHAPES = {
    "car": Shape(1.95, 4.0, 0.3, 1.0, 1.65, 0.8),
    "truck": Shape(2.5, 7.0, 0.8, 3.2, 3.2, 0.95, doors=True),
    "bus": Shape(2.5, 9.0, 0.35, 3.1, 3.1, 0.75, rear_glass=(1.55, 2.8), side_glass=(1.6, 2.7)),
}
PAINTS = {
    "red": np.array([214.0, 28.0, 32.0]),
    "blue": np.array([32.0, 70.0, 214.0]),
    "green": np.array([28.0, 150.0, 60.0]),
    "yellow": np.array([240.0, 200.0, 30.0]),
    "white": np.array([240.0, 240.0, 240.0]),
}
LAMPS = {
    "red": np.array([255.0, 40.0, 35.0]),
    "yellow": np.array([255.0, 190.0, 40.0]),
    "green": np.array([50.0, 255.0, 110.0]),
}


@dataclass(frozen=True, slots=True)
class Look:
    """Light and weather: `ambient [3]` multiplies paint, fog mixes in by depth."""

    sky_low: Floats
    sky_high: Floats
    ground: Floats
    ambient: Floats
    headlight: Floats
    fog: Floats
    fog_range_m: float
    tail_light: Floats
    rain: Floats

    def shade(self, colour: Floats, depth_m: Floats | float) -> Floats:
        """Scenery of this paint `[..., 3]` at this depth `[...]`."""
        depth = np.asarray(depth_m, dtype=np.float64)[..., None]
        veil = 1 - np.exp(-depth / self.fog_range_m)
        return (colour * self.ambient) * (1 - veil) + self.fog * veil

    def object_shade(self, colour: Floats, depth_m: float) -> Floats:
        """Vehicles and people: lit by our headlights, and never wholly lost in fog."""
        veil = min(0.45, 1 - np.exp(-depth_m / (self.fog_range_m * 1.8)))
        return np.clip(colour * self.headlight, 0, 255) * (1 - veil) + self.fog * veil


_SKIES = {  # low, high, ambient, headlight
    "daylight": ((205, 222, 240), (105, 165, 232), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    "dusk": ((244, 158, 92), (92, 84, 140), (0.58, 0.5, 0.5), (0.74, 0.72, 0.72)),
    "night": ((30, 34, 60), (8, 10, 26), (0.3, 0.31, 0.37), (0.7, 0.7, 0.72)),
}
_GROUNDS = {"urban road": (150, 148, 144), "highway": (150, 150, 96), "country road": (92, 138, 62)}


def look_of(scene: Scene) -> Look:
    """The look of a scene; small differences of sky and brightness come from its seed."""
    rng = np.random.default_rng([scene.seed, 0x100C])
    truth = scene.truth
    low, high, ambient, headlight = (np.array(v, dtype=np.float64) for v in _SKIES[truth.light])
    gain = rng.uniform(0.92, 1.06)
    low, high, ambient = low * gain, high * gain, ambient * gain
    grey = float(low.mean()) * 0.5 + float(high.mean()) * 0.5
    fog_range = 400.0
    if truth.weather == "rain":
        low, high = 0.35 * low + 0.65 * grey * 0.62, 0.35 * high + 0.65 * grey * 0.55
        ambient, fog_range = ambient * 0.8, 120.0
    if truth.weather == "fog":
        veil = np.full(3, grey) * 0.75 + low * 0.25 + 10.0
        low, high, fog_range = veil, veil * 0.97, 28.0
    return Look(
        sky_low=low,
        sky_high=high,
        ground=np.array(_GROUNDS[truth.road], dtype=np.float64) * rng.uniform(0.92, 1.08),
        ambient=ambient,
        headlight=headlight,
        fog=low,
        fog_range_m=fog_range * rng.uniform(0.9, 1.1),
        tail_light=np.array([150.0, 14.0, 16.0]) if truth.light == "night" else np.array([96.0, 8.0, 10.0]),
        rain=np.clip(low * 0.6 + 70, 0, 225),
    )


def camera_pose(motion: Motion, i: int) -> tuple[float, float, float]:
    """World x, z and yaw (left positive) of the camera: along the road, and after a turn along the other one."""
    travel, yaw, pivot = float(motion.travel_m[i]), float(motion.yaw_rad[i]), motion.pivot_m
    if yaw == 0.0:
        return float(motion.lateral_m[i]), travel, 0.0
    beyond = max(0.0, travel - pivot)
    heading = np.sign(yaw) * np.pi / 2
    return float(-np.sin(heading) * beyond), min(travel, pivot), yaw


@dataclass(frozen=True, slots=True)
class World:
    """Polygons `[P, 4, 3]` in world coordinates (right, up, ahead), their paints `[P, 3]`, and trees by foot."""

    ground: Floats
    ground_colours: Floats
    walls: Floats
    wall_colours: Floats
    trees: Floats
    tree_colours: Floats
    coat: Floats


def _road_edges(scene: Scene) -> tuple[float, float]:
    """Left and right edge of the road around the ego lane's middle."""
    half = LANE_WIDTH_M / 2
    return (-half - LANE_WIDTH_M, half + LANE_WIDTH_M if scene.truth.lanes == "multi-lane" else half)


def _flat(x0: float, x1: float, z0: float, z1: float) -> list[list[float]]:
    return [[x0, 0, z0], [x1, 0, z0], [x1, 0, z1], [x0, 0, z1]]


def _upright(x0: float, z0: float, x1: float, z1: float, high: float, low: float = 0.0) -> list[list[float]]:
    return [[x0, low, z0], [x1, low, z1], [x1, high, z1], [x0, high, z0]]


_Quads = list[tuple[list[list[float]], tuple[float, float, float] | Floats]]


def world_of(scene: Scene, motion: Motion) -> World:
    """Everything that stands still, for the whole of a scene's drive."""
    rng = np.random.default_rng([scene.seed, 0x3A9])
    turn = scene.truth.ego in EGO_TURNS
    start, end = -15.0, motion.total_travel_m + SIGHT_M
    arms = [(start, end)] if not turn else [(start, motion.pivot_m), (motion.pivot_m, end)]
    ground = _arm_ground(scene, rng.uniform(0, DASH_PERIOD_M), start, end, gap=motion.pivot_m if turn else None)
    walls: _Quads = []
    trees: list[list[float]] = []
    for a, b in arms:
        _line_road(scene, rng, a, b, walls, trees, gap=motion.pivot_m if turn else None)
    if turn:
        far = 60.0 + SIGHT_M
        cross, cross_walls, cross_trees = _crossing(scene, rng, motion.pivot_m, far)
        ground = cross + ground
        walls += cross_walls
        trees += cross_trees
    tree_colours = rng.uniform((40, 95, 30), (80, 140, 60), (len(trees), 3))
    coats = ((205, 130, 205), (240, 150, 70), (160, 120, 90), (100, 205, 205))
    return World(
        *_pack(ground),
        *_pack(walls),
        trees=np.array(trees, dtype=np.float64).reshape(-1, 3),
        tree_colours=tree_colours,
        coat=np.array(coats[int(rng.integers(len(coats)))], dtype=np.float64),
    )


def _pack(quads: _Quads) -> tuple[Floats, Floats]:
    return (
        np.array([q for q, _ in quads], dtype=np.float64).reshape(-1, 4, 3),
        np.array([c for _, c in quads], dtype=np.float64).reshape(-1, 3),
    )


def _arm_ground(scene: Scene, phase: float, start: float, end: float, gap: float | None) -> _Quads:
    """Asphalt, pavement and markings of a straight road; none of the markings inside a crossing at `gap`."""
    left, right = _road_edges(scene)
    quads: _Quads = []
    if scene.truth.road == "urban road":
        quads += [(_flat(left - 2.2, right + 2.2, start, end), (178, 176, 170))]
    asphalt = (88, 88, 92) if scene.truth.road != "highway" else (104, 104, 108)
    quads.append((_flat(left, right, start, end), asphalt))
    spans = [(start, end)] if gap is None else [(start, gap + left), (gap + right, end)]
    for a, b in spans:
        for edge, inward in ((left, 0.2), (right, -0.2)):
            x0, x1 = sorted((edge + inward, edge + 2 * inward))
            quads.append((_flat(x0, x1, a, b), (235, 235, 228)))
    lines = [-LANE_WIDTH_M / 2] + ([LANE_WIDTH_M / 2] if scene.truth.lanes == "multi-lane" else [])
    for z in np.arange(start - phase, end, DASH_PERIOD_M):
        inside = gap is not None and gap + left - _DASH_M < z < gap + right
        quads += [(_flat(x - 0.13, x + 0.13, z, z + _DASH_M), (240, 240, 232)) for x in lines if not inside]
    return quads


def _line_road(
    scene: Scene, rng: np.random.Generator, start: float, end: float, walls: _Quads, trees: list[list[float]], gap: float | None
) -> None:
    """Houses, trees or guard rails on both sides, none within a crossing."""
    left, right = _road_edges(scene)
    clear = 0.0 if gap is None else right + 4.0
    a, b = (start, end) if gap is None else (start, gap - clear) if start < gap - 1 else (gap + clear, end)
    for side, edge in ((-1, left), (1, right)):
        if scene.truth.road == "urban road":
            _houses(rng, side, edge + side * 3.2, a, b, walls)
        elif scene.truth.road == "country road":
            foot = edge + side * 3.4
            trees += [[foot + side * rng.uniform(0, 3), 0.0, z] for z in _spots(rng, a, b, 7.0)]
        else:
            _rail(rng, side, edge + side * 1.1, a, b, walls)


def _spots(rng: np.random.Generator, start: float, end: float, step: float) -> list[float]:
    return [float(z + rng.uniform(-0.3, 0.3) * step) for z in np.arange(start + step / 2, end, step)]


def _houses(rng: np.random.Generator, side: int, x: float, start: float, end: float, walls: _Quads) -> None:
    cuts = [start]
    while cuts[-1] < end:
        cuts.append(cuts[-1] + rng.uniform(7, 14))
    for z0, z1 in pairwise(cuts):
        colour = rng.uniform(95, 205) * np.array([1.0, rng.uniform(0.86, 1.0), rng.uniform(0.74, 0.98)])
        high, depth = rng.uniform(5, 14), x + side * 9
        z1 = z1 - rng.uniform(0.6, 2.5)  # noqa: PLW2901 - a gap between houses
        walls.append((_upright(x, z0, x, z1, high), colour * 0.85))
        walls.append((_upright(x, z0, depth, z0, high), colour))
        for floor in np.arange(1.6, high - 1.4, 2.8):  # a row of windows on the side that faces the road
            walls.append((_upright(x - side * 0.02, z0 + 0.8, x - side * 0.02, z1 - 0.8, floor + 1.3, floor), colour * 0.45))


def _rail(rng: np.random.Generator, side: int, x: float, start: float, end: float, walls: _Quads) -> None:
    for z in np.arange(start, end, 6.0):
        walls.append((_upright(x, z, x, z + 6.0, 0.85, 0.5), (188, 190, 196)))
        walls.append((_upright(x - 0.08, z, x + 0.08, z, 0.85), (130, 130, 136)))
    for z in _spots(rng, start, end, 21.0):  # lamp posts
        foot = x + side * 1.2
        walls.append((_upright(foot - 0.12, z, foot + 0.12, z, 8.0), (120, 122, 128)))
        walls.append((_upright(foot - side * 2.2, z, foot, z, 8.0, 7.75), (120, 122, 128)))


def _crossing(
    scene: Scene, rng: np.random.Generator, pivot: float, far: float
) -> tuple[_Quads, _Quads, list[list[float]]]:
    """The crossing road: the same arms, a quarter turn around the pivot."""
    phase = rng.uniform(0, DASH_PERIOD_M)
    ground = _arm_ground(scene, phase, -far, far, gap=0.0)
    walls: _Quads = []
    trees: list[list[float]] = []
    for a, b in ((-far, 0.0), (0.0, far)):
        _line_road(scene, rng, a, b, walls, trees, gap=0.0)

    def turned(p: list[float]) -> list[float]:
        return [p[2], p[1], pivot + p[0]]

    return (
        [([turned(p) for p in quad], c) for quad, c in ground],
        [([turned(p) for p in quad], c) for quad, c in walls],
        [turned(t) for t in trees],
    )
