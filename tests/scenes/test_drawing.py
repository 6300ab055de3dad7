"""What is true of a scene can be seen in its pixels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framefleet.errors import ConfigError
from framefleet.scenes import Scene, Truth, Vehicle, frame_times_s, render, render_at, sample_scene
from framefleet.scenes.truth import COLOURS

RED_CAR = Vehicle("ahead", "red", "car", "keeps its distance")


def frames(truth: Truth, seed: int = 4, count: int = 9, size: tuple[int, int] = (288, 160)) -> np.ndarray:
    scene = Scene(truth, seed=seed, duration_s=6.0)
    return np.stack(list(render_at(scene, np.linspace(0, 6, count), width=size[0], height=size[1])))


def test_drawing_is_deterministic_and_does_not_depend_on_the_other_frames() -> None:
    scene = sample_scene(13)
    times = frame_times_s(scene, 4)
    whole = list(render(scene, width=160, height=96, fps=4))
    assert len(whole) == len(times)
    alone = list(render_at(scene, times[[7, 2]], width=160, height=96))
    np.testing.assert_array_equal(alone[0], whole[7])
    np.testing.assert_array_equal(alone[1], whole[2])


def test_frames_are_rgb_of_the_size_asked() -> None:
    picture = frames(Truth(), count=1, size=(200, 120))[0]
    assert picture.shape == (120, 200, 3)
    assert picture.dtype == np.uint8
    assert picture[5, :, 2].mean() > picture[5, :, 0].mean() + 40  # a blue sky on top


@pytest.mark.parametrize("colour", COLOURS)
def test_paint_is_seen(colour: str) -> None:
    truth = Truth(vehicles=(replace(RED_CAR, colour=colour, kind="truck"),))
    bare, shown = frames(replace(truth, vehicles=()), count=1)[0], frames(truth, count=1)[0]
    changed = np.abs(bare.astype(int) - shown).sum(axis=2) > 40
    assert changed.sum() > 300
    paints, counts = np.unique(shown[changed] // 8, axis=0, return_counts=True)
    r, g, b = paints[counts.argmax()].astype(float) * 8 + 4
    expected = {
        "red": r > 1.5 * max(g, b),
        "blue": b > 1.5 * max(r, g),
        "green": g > 1.3 * max(r, b),
        "yellow": min(r, g) > 1.5 * b,
        "white": min(r, g, b) > 180,
    }
    assert expected[colour]


def test_light_and_weather_are_seen() -> None:
    brightness = {light: frames(Truth(light=light), count=1).mean() for light in ("daylight", "dusk", "night")}
    assert brightness["daylight"] > 1.3 * brightness["dusk"] > 2 * brightness["night"]
    clear, fog = (frames(Truth(weather=w), count=1)[0] for w in ("clear", "fog"))
    assert fog[:60].std() < 0.8 * clear[:60].std()
    rain = frames(Truth(weather="rain", ego="slows and stops"), count=9)
    assert np.abs(rain[-1].astype(int) - rain[-2]).mean() > 1.0  # streaks move though the road stands still


def test_the_lamp_that_is_lit_is_seen() -> None:
    def lit(traffic_light: str) -> np.ndarray:
        return frames(Truth(traffic_light=traffic_light), count=2)

    red, green = lit("stays red")[0].astype(int), lit("stays green")[0].astype(int)
    differ = np.abs(red - green).sum(axis=2) > 150
    top, bottom = np.flatnonzero(differ.any(axis=1))[[0, -1]]
    middle = (top + bottom) // 2
    assert red[top:middle][differ[top:middle]][:, 0].mean() > 180
    assert green[middle:bottom][differ[middle:bottom]][:, 1].mean() > 180
    change = lit("changes from green to red")
    np.testing.assert_array_equal(change[0], green)


def test_the_road_moves_with_the_ego_vehicle() -> None:
    moving, stopped = frames(Truth(), count=33), frames(Truth(ego="slows and stops"), count=33)
    step = lambda f: np.abs(f[-1].astype(int) - f[-2]).mean()  # noqa: E731
    assert step(moving) > 1.0
    assert step(stopped) == 0.0


def test_brake_lights_are_lit_for_a_part_of_the_time() -> None:
    truth = Truth(vehicles=(replace(RED_CAR, colour="white", action="brakes"),))
    bright = ((f[..., 0] > 240) & (f[..., 1] < 60) for f in frames(truth))
    lit = [int(b.sum()) for b in bright]
    assert lit[0] == 0
    assert lit[-1] > 15


def test_left_and_right_turns_pan_opposite_ways() -> None:
    left, right = frames(Truth(ego="turns left"), count=2), frames(Truth(ego="turns right"), count=2)
    np.testing.assert_array_equal(left[0], right[0])
    assert np.abs(left[1].astype(int) - right[1]).mean() > 3


def test_a_pedestrian_walks_across() -> None:
    bare = frames(Truth()).astype(int)
    seen = frames(Truth(pedestrian="from left to right")).astype(int)
    columns = [np.flatnonzero((np.abs(a - b).sum(axis=2) > 60).any(axis=0)) for a, b in zip(bare, seen, strict=True)]
    centres = [c.mean() for c in columns if len(c)]
    assert len(centres) >= 6
    assert centres == sorted(centres)


def test_too_small_to_draw() -> None:
    with pytest.raises(ConfigError):
        next(render(sample_scene(1), width=32, height=32))
