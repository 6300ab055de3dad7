"""Where everything is at each time of a scene. Pure numpy; every path has a time-reversed partner.

Lengths in metres, angles in radians (left is positive), `u` is time over duration. Ego motion is set per clip, not per
second: about a fifth of a lane-dash period per sixteenth of the clip, so that sixteen sampled frames can follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from framefleet.scenes.truth import EGO_TURNS, Scene, Vehicle

LANE_WIDTH_M = 3.5
DASH_PERIOD_M = 12.0
_GRID = np.linspace(0.0, 1.0, 513)
_REVERSED = {
    "speeds up": "slows down",
    "starts to move": "slows and stops",
    "pulls away": "brakes",
    "falls behind": "overtakes",
}
_END_SPEED = {"slows down": 0.22, "slows and stops": 0.0}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VehiclePath:
    """A vehicle in camera-lane coordinates: `x_m [N]` right of the ego lane's middle, `z_m [N]` ahead, `brakes [N]`."""

    vehicle: Vehicle
    x_m: Floats
    z_m: Floats
    brakes: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Motion:
    """State at N times. `lamp [N]`: 0 no light, 1 red, 2 green. `pedestrian_x_m [N]`: NaN where nobody walks."""

    travel_m: Floats
    lateral_m: Floats
    yaw_rad: Floats
    vehicles: tuple[VehiclePath, ...]
    lamp: NDArray[np.int64]
    light_z_m: Floats
    pedestrian_x_m: Floats
    pedestrian_z_m: float
    total_travel_m: float
    pivot_m: float


def smooth(u: Floats, start: float, end: float) -> Floats:
    """0 before `start`, 1 after `end`, a smooth step between."""
    s = np.clip((u - start) / (end - start), 0.0, 1.0)
    return s * s * (3 - 2 * s)


def _window(rng: np.random.Generator, earliest: float = 0.08, latest: float = 0.92) -> tuple[float, float]:
    """When something happens: start in the first part, end in the last, mirror-symmetric in law."""
    span = latest - earliest
    start, end = earliest + rng.uniform(0, 0.3) * span, latest - rng.uniform(0, 0.3) * span
    return start, end


def motion_of(scene: Scene, times_s: Floats) -> Motion:
    """The state of `scene` at `times_s [N]`; the same scene gives the same paths whatever times are asked."""
    rng = np.random.default_rng([scene.seed, 0x0707])
    u = np.clip(np.asarray(times_s, dtype=np.float64) / scene.duration_s, 0.0, 1.0)
    truth = scene.truth
    cruise_m = DASH_PERIOD_M * 16 * rng.uniform(0.17, 0.29)
    travel, yaw, pivot = _ego_travel(rng, truth.ego, u, cruise_m)
    lateral = _ego_lateral(rng, truth.ego, u)
    return Motion(
        travel_m=travel,
        lateral_m=lateral,
        yaw_rad=yaw,
        vehicles=tuple(_vehicle_path(rng, v, u) for v in truth.vehicles),
        lamp=_lamp(rng, truth.traffic_light, u),
        light_z_m=rng.uniform(15.0, 18.0) + 0.0 * u,
        pedestrian_x_m=_pedestrian(rng, truth.pedestrian, u),
        pedestrian_z_m=float(rng.uniform(7.6, 9.0)),
        total_travel_m=cruise_m,
        pivot_m=pivot,
    )


def _ego_travel(rng: np.random.Generator, ego: str, u: Floats, cruise_m: float) -> tuple[Floats, Floats, float]:
    """Metres travelled, yaw, and where the pivot of a turn lies."""
    start, end = _window(rng)
    end_speed = _END_SPEED.get(_REVERSED.get(ego, ego), 1.0)
    speed = 1.0 + (end_speed - 1.0) * smooth(_GRID, start, min(end, 0.8))
    if ego in EGO_TURNS:  # drive to the middle of the crossing, turn there, drive on
        pause = smooth(_GRID, start - 0.06, start + 0.06) - smooth(_GRID, end - 0.06, end + 0.06)
        speed = 1.0 - pause
    if ego in _REVERSED:
        speed = speed[::-1]
    travelled = np.concatenate([[0.0], np.cumsum((speed[1:] + speed[:-1]) / 2)]) / (len(_GRID) - 1) * cruise_m
    sign = {"turns left": 1.0, "turns right": -1.0}.get(ego, 0.0)
    yaw = sign * np.pi / 2 * smooth(u, start, end)
    pivot = float(np.interp((start + end) / 2, _GRID, travelled))
    return np.interp(u, _GRID, travelled), yaw, pivot


def _ego_lateral(rng: np.random.Generator, ego: str, u: Floats) -> Floats:
    start, end = _window(rng)
    from_middle = rng.random() < 0.5
    if not ego.startswith("changes"):
        return 0.0 * u
    sign = -1.0 if "left" in ego else 1.0
    begin = 0.0 if from_middle else -sign * LANE_WIDTH_M
    return begin + sign * LANE_WIDTH_M * smooth(u, start, end)


def _vehicle_path(rng: np.random.Generator, vehicle: Vehicle, u: Floats) -> VehiclePath:
    start, end = _window(rng)
    near, far, steady = rng.uniform(8.0, 9.5), rng.uniform(18.0, 23.0), rng.uniform(9.0, 15.0)
    phase = rng.uniform(0, 2 * np.pi)
    side = {"ahead": 0.0, "in the left lane": -1.0, "in the right lane": 1.0}[vehicle.where]
    x = side * LANE_WIDTH_M + 0.12 * np.sin(7 * u + phase)
    z = steady + 0.25 * np.sin(5 * u + phase)
    brakes = np.zeros(len(u), dtype=bool)
    action = vehicle.action
    if action in ("brakes", "pulls away"):
        v = u if action == "brakes" else 1 - u
        z = far + (near - far) * smooth(v, start, end)
        brakes = v > start + 0.1 * (end - start)
    elif action in ("overtakes", "falls behind"):
        v = u if action == "overtakes" else 1 - u
        z = 3.0 + (far - 3.0) * smooth(v, start, end)
    elif action in ("moves to the left lane", "moves to the right lane"):
        x = x + (-1 if "left" in action else 1) * LANE_WIDTH_M * smooth(u, start, end)
    elif action == "cuts in ahead":
        x = x - side * LANE_WIDTH_M * smooth(u, start, end)
    return VehiclePath(vehicle, x, z, brakes)


def _lamp(rng: np.random.Generator, traffic_light: str, u: Floats) -> NDArray[np.int64]:
    moment = rng.uniform(0.3, 0.7)
    first, last = {
        "none": (0, 0),
        "stays red": (1, 1),
        "stays green": (2, 2),
        "changes from red to green": (1, 2),
        "changes from green to red": (2, 1),
    }[traffic_light]
    return np.where(u < moment, first, last).astype(np.int64)


def _pedestrian(rng: np.random.Generator, pedestrian: str, u: Floats) -> Floats:
    start, end = rng.uniform(0.02, 0.18), rng.uniform(0.82, 0.98)
    if pedestrian == "none":
        return np.full(len(u), np.nan)
    progress = (u - start) / (end - start)
    x = (2 * progress - 1) * (4.2 if pedestrian == "from left to right" else -4.2)
    return np.where((progress >= 0) & (progress <= 1), x, np.nan)
