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
        shaded: Floats = (colour * self.ambient) * (1 - veil) + self.fog * veil
        return shaded

    def object_shade(self, colour: Floats, depth_m: float) -> Floats:
        """Vehicles and people: lit by our headlights, and never wholly lost in fog."""
        veil = min(0.45, 1 - np.exp(-depth_m / (self.fog_range_m * 1.8)))
        shaded: Floats = np.clip(colour * self.headlight, 0, 255) * (1 - veil) + self.fog * veil
        return shaded


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


_Quad = list[list[float]]
_Paint = tuple[float, float, float] | Floats
_Quads = list[tuple[_Quad, _Paint]]
_Feet = list[list[float]]
_Stretch = tuple[float, float]
"""From and to, along a road."""


def _flat(x: _Stretch, z: _Stretch) -> _Quad:
    return [[x[0], 0, z[0]], [x[1], 0, z[0]], [x[1], 0, z[1]], [x[0], 0, z[1]]]


def _upright(x: _Stretch, z: _Stretch, *, high: float, low: float = 0.0) -> _Quad:
    """A wall from (x0, z0) to (x1, z1)."""
    return [[x[0], low, z[0]], [x[1], low, z[1]], [x[1], high, z[1]], [x[0], high, z[0]]]


def world_of(scene: Scene, motion: Motion) -> World:
    """Everything that stands still, for the whole of a scene's drive."""
    rng = np.random.default_rng([scene.seed, 0x3A9])
    gap = motion.pivot_m if scene.truth.ego in EGO_TURNS else None
    road = (-15.0, motion.total_travel_m + SIGHT_M)
    ground = _surface(scene, rng.uniform(0, DASH_PERIOD_M), road, gap)
    walls, trees = _roadsides(scene, rng, road, gap)
    if gap is not None:
        cross, cross_walls, cross_trees = _crossing(scene, rng, gap)
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


def _surface(scene: Scene, phase: float, road: _Stretch, gap: float | None) -> _Quads:
    """Asphalt, pavement and markings of a straight road; none of the markings inside a crossing at `gap`."""
    left, right = _road_edges(scene)
    quads: _Quads = []
    if scene.truth.road == "urban road":
        quads += [(_flat((left - 2.2, right + 2.2), road), (178, 176, 170))]
    asphalt = (88, 88, 92) if scene.truth.road != "highway" else (104, 104, 108)
    quads.append((_flat((left, right), road), asphalt))
    for part in [road] if gap is None else [(road[0], gap + left), (gap + right, road[1])]:
        for edge, inward in ((left, 0.2), (right, -0.2)):
            near, far = sorted((edge + inward, edge + 2 * inward))
            quads.append((_flat((near, far), part), (235, 235, 228)))
    lines = [-LANE_WIDTH_M / 2] + ([LANE_WIDTH_M / 2] if scene.truth.lanes == "multi-lane" else [])
    for z in np.arange(road[0] - phase, road[1], DASH_PERIOD_M):
        if gap is None or not gap + left - _DASH_M < z < gap + right:
            quads += [(_flat((x - 0.13, x + 0.13), (z, z + _DASH_M)), (240, 240, 232)) for x in lines]
    return quads


def _roadsides(scene: Scene, rng: np.random.Generator, road: _Stretch, gap: float | None) -> tuple[_Quads, _Feet]:
    """Houses, trees or guard rails on both sides, none within a crossing at `gap`."""
    left, right = _road_edges(scene)
    clear = right + 4.0
    walls: _Quads = []
    trees: _Feet = []
    for part in [road] if gap is None else [(road[0], gap - clear), (gap + clear, road[1])]:
        for side, edge in ((-1, left), (1, right)):
            if scene.truth.road == "urban road":
                walls += _houses(rng, side, edge + side * 3.2, part)
            elif scene.truth.road == "country road":
                foot = edge + side * 3.4
                trees += [[foot + side * rng.uniform(0, 3), 0.0, z] for z in _spots(rng, part, 7.0)]
            else:
                walls += _rail(rng, side, edge + side * 1.1, part)
    return walls, trees


def _spots(rng: np.random.Generator, part: _Stretch, step: float) -> list[float]:
    return [float(z + rng.uniform(-0.3, 0.3) * step) for z in np.arange(part[0] + step / 2, part[1], step)]


def _houses(rng: np.random.Generator, side: int, x: float, part: _Stretch) -> _Quads:
    """A row of house fronts along x, each with the wall that faces back and rows of windows."""
    walls: _Quads = []
    cuts = [part[0]]
    while cuts[-1] < part[1]:
        cuts.append(cuts[-1] + rng.uniform(7, 14))
    for start, next_start in pairwise(cuts):
        colour = rng.uniform(95, 205) * np.array([1.0, rng.uniform(0.86, 1.0), rng.uniform(0.74, 0.98)])
        high, behind = rng.uniform(5, 14), x + side * 9
        end = next_start - rng.uniform(0.6, 2.5)
        walls.append((_upright((x, x), (start, end), high=high), colour * 0.85))
        walls.append((_upright((x, behind), (start, start), high=high), colour))
        pane = x - side * 0.02
        for low in np.arange(1.6, high - 1.4, 2.8):
            walls.append((_upright((pane, pane), (start + 0.8, end - 0.8), high=low + 1.3, low=low), colour * 0.45))
    return walls


def _rail(rng: np.random.Generator, side: int, x: float, part: _Stretch) -> _Quads:
    """A guard rail with its posts, and lamp posts behind it."""
    walls: _Quads = []
    for z in np.arange(*part, 6.0):
        walls.append((_upright((x, x), (z, z + 6.0), high=0.85, low=0.5), (188, 190, 196)))
        walls.append((_upright((x - 0.08, x + 0.08), (z, z), high=0.85), (130, 130, 136)))
    for z in _spots(rng, part, 21.0):
        foot = x + side * 1.2
        walls.append((_upright((foot - 0.12, foot + 0.12), (z, z), high=8.0), (120, 122, 128)))
        walls.append((_upright((foot - side * 2.2, foot), (z, z), high=8.0, low=7.75), (120, 122, 128)))
    return walls


def _crossing(scene: Scene, rng: np.random.Generator, pivot: float) -> tuple[_Quads, _Quads, _Feet]:
    """The crossing road: the same arms, a quarter turn around the pivot."""
    road = (-60.0 - SIGHT_M, 60.0 + SIGHT_M)
    ground = _surface(scene, rng.uniform(0, DASH_PERIOD_M), road, 0.0)
    walls, trees = _roadsides(scene, rng, road, 0.0)

    def turned(p: list[float]) -> list[float]:
        return [p[2], p[1], pivot + p[0]]

    def turned_all(quads: _Quads) -> _Quads:
        return [([turned(p) for p in quad], paint) for quad, paint in quads]

    return turned_all(ground), turned_all(walls), [turned(foot) for foot in trees]
