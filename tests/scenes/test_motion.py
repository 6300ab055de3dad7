"""The paths: each motion and its partner are one another played backwards, so no single frame tells them apart."""

from __future__ import annotations

import numpy as np
import pytest

from framefleet.scenes import Scene, Truth, Vehicle
from framefleet.scenes.motion import Motion, motion_of

TIMES_S = np.linspace(0, 6, 61)


def played(seed: int = 5, **truth: object) -> Motion:
    return motion_of(Scene(Truth(**truth), seed=seed, duration_s=6.0), TIMES_S)  # type: ignore[arg-type]


@pytest.mark.parametrize(("one", "other"), [("slows down", "speeds up"), ("slows and stops", "starts to move")])
def test_ego_speed_is_reversed(one: str, other: str) -> None:
    a, b = (np.diff(played(ego=ego).travel_m) for ego in (one, other))
    np.testing.assert_allclose(a, b[::-1], atol=1e-6)
    assert a[:5].mean() > 2 * a[-5:].mean()


def test_a_stop_is_a_stop() -> None:
    assert np.ptp(played(ego="slows and stops").travel_m[-10:]) < 1e-6
    assert np.diff(played(ego="keeps its lane").travel_m).min() > 0.1


def test_turns_and_lane_changes_mirror() -> None:
    left, right = played(ego="turns left"), played(ego="turns right")
    np.testing.assert_allclose(left.yaw_rad, -right.yaw_rad)
    assert left.yaw_rad[-1] == pytest.approx(np.pi / 2)
    change = played(ego="changes to the left lane").lateral_m
    assert change[-1] - change[0] == pytest.approx(-3.5)


@pytest.mark.parametrize(
    ("where", "one", "other"),
    [("ahead", "brakes", "pulls away"), ("in the left lane", "overtakes", "falls behind")],
)
def test_vehicle_paths_are_reversed(where: str, one: str, other: str) -> None:
    def path(action: str):
        return played(vehicles=(Vehicle(where, "red", "car", action),)).vehicles[0]

    a, b = path(one), path(other)
    np.testing.assert_allclose(a.z_m, b.z_m[::-1], atol=1e-9)
    assert a.brakes.tolist() == b.brakes[::-1].tolist()


def test_a_braking_vehicle_comes_nearer_with_its_lights_on() -> None:
    path = played(vehicles=(Vehicle("ahead", "red", "car", "brakes"),)).vehicles[0]
    assert path.z_m[0] > 1.7 * path.z_m[-1]
    assert not path.brakes[0]
    assert path.brakes[-1]


def test_lamps_change_once_in_the_middle() -> None:
    lamp = played(traffic_light="changes from green to red").lamp
    assert (lamp[0], lamp[-1]) == (2, 1)
    moment = int(np.flatnonzero(np.diff(lamp))[0])
    assert 0.25 * 60 < moment < 0.75 * 60
    assert (lamp == played(traffic_light="changes from red to green").lamp[::1]).sum() == 0


def test_pedestrian_crosses_the_whole_road() -> None:
    x = played(pedestrian="from left to right").pedestrian_x_m
    walked = x[np.isfinite(x)]
    assert walked[0] < -3.5
    assert walked[-1] > 3.5
    np.testing.assert_allclose(walked, -played(pedestrian="from right to left").pedestrian_x_m[np.isfinite(x)])


def test_paths_do_not_depend_on_which_times_are_asked() -> None:
    scene = Scene(Truth(ego="slows down", vehicles=(Vehicle("ahead", "red", "car", "brakes"),)), seed=9, duration_s=6.0)
    whole, some = motion_of(scene, TIMES_S), motion_of(scene, TIMES_S[::7])
    np.testing.assert_array_equal(whole.travel_m[::7], some.travel_m)
    np.testing.assert_array_equal(whole.vehicles[0].z_m[::7], some.vehicles[0].z_m)
