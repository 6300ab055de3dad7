"""One scene written in many forms holds the same pictures at the same times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from framefleet.errors import ConfigError
from framefleet.scenes import ClipFormat, Scene, Truth, Vehicle, render_at, write_clip
from framefleet.scenes.encode import TWELVE_WAYS, clip_times_s

SCENE = Scene(
    Truth(
        ego="slows down",
        traffic_light="changes from green to red",
        vehicles=(Vehicle("ahead", "red", "bus", "brakes"),),
    ),
    seed=3,
    duration_s=2.0,
)
WIDTH, HEIGHT, FPS = 320, 180, 10


def read_back(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Stored pictures `[T, H, W, 3]`, their times and the turn that the track header asks for, clockwise."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        pictures = np.stack([f.to_ndarray(format="rgb24") for f in frames])
        return pictures, np.array([f.time for f in frames], dtype=float), -frames[0].rotation % 360


@pytest.mark.parametrize("name", TWELVE_WAYS)
def test_every_way_decodes_to_what_was_drawn(name: str, tmp_path: Path) -> None:
    suffix, form = TWELVE_WAYS[name]
    path = tmp_path / f"clip.{suffix}"
    write_clip(SCENE, path, width=WIDTH, height=HEIGHT, fps=FPS, form=form)
    pictures, times_s, turn_deg = read_back(path)
    expected_s = clip_times_s(SCENE, FPS, form)
    drawn = np.stack(list(render_at(SCENE, expected_s, width=WIDTH, height=HEIGHT)))
    upright = np.rot90(pictures, -turn_deg // 90, axes=(1, 2))
    assert turn_deg == form.rotation_deg
    np.testing.assert_allclose(times_s, expected_s, atol=1.1e-3)  # Matroska keeps milliseconds
    assert upright.shape == drawn.shape
    error = np.abs(upright.astype(int) - drawn).mean(axis=(1, 2, 3))
    assert error.max() < 5.0
    assert error.argmax() >= 0
    shifted = np.abs(upright[1:].astype(int) - drawn[:-1]).mean()
    assert error.mean() < shifted  # each frame is itself, not its neighbour


def test_there_are_twelve_ways_and_they_differ() -> None:
    assert len(TWELVE_WAYS) == 12
    assert len({(suffix, str(form)) for suffix, form in TWELVE_WAYS.values()}) == 12


def test_sound_only_where_asked(tmp_path: Path) -> None:
    for audio in (True, False):
        path = tmp_path / f"{audio}.mp4"
        write_clip(SCENE, path, width=WIDTH, height=HEIGHT, form=ClipFormat(audio=audio))
        with av.open(str(path)) as container:
            assert len(container.streams.audio) == audio
            if audio:
                heard_s = sum(f.samples / f.sample_rate for f in container.decode(audio=0))
                assert heard_s == pytest.approx(SCENE.duration_s, abs=0.15)


def test_a_variable_rate_is_variable_and_increasing() -> None:
    steps = np.diff(clip_times_s(replace(SCENE, duration_s=8.0), FPS, ClipFormat(jitter=0.4)))
    assert steps.min() > 0
    assert steps.max() > 1.3 * steps.min()


@pytest.mark.parametrize("bad", [{"rotation_deg": 45}, {"matrix": "bt2020"}, {"jitter": 0.7}])
def test_impossible_formats_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ClipFormat(**bad)  # type: ignore[arg-type]


def test_no_rotation_outside_mp4(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rotation"):
        write_clip(SCENE, tmp_path / "a.mkv", width=WIDTH, height=HEIGHT, form=ClipFormat(rotation_deg=90))
