from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from framefleet.errors import SourceNotFound
from framefleet.scenes import attributes_of, caption_of, render_at, sample_clips, sample_scene
from framefleet.scenes.gallery import NUM_SAMPLES, chosen_scenes, samples_folder

CLIPS = sample_clips()


def test_24_clips_under_8_mb() -> None:
    assert len(CLIPS) == NUM_SAMPLES
    assert {c.path for c in CLIPS} == set(samples_folder().glob("*.mp4"))
    assert sum(c.path.stat().st_size for c in CLIPS) < 8_000_000
    assert {c.height for c in CLIPS} >= {480, 720, 1080}
    assert all(4 <= c.duration_s <= 20 for c in CLIPS)


def test_truth_caption_and_seed_agree() -> None:
    for clip in CLIPS:
        assert clip.caption == caption_of(clip.truth)
        assert clip.truth == sample_scene(clip.seed).truth
    assert [c.seed for c in CLIPS] == [s.seed for s in chosen_scenes()]


def test_the_clips_show_every_colour_and_most_actions() -> None:
    seen = {value for clip in CLIPS for value in attributes_of(clip.truth).values()}
    assert {
        "red",
        "blue",
        "green",
        "yellow",
        "white",
        "night",
        "rain",
        "fog",
        "turns left",
        "turns right",
        "brakes",
    } <= seen


@pytest.mark.parametrize("clip", CLIPS[::4], ids=lambda c: c.path.stem)
def test_a_file_holds_its_scene(clip) -> None:
    with av.open(str(clip.path)) as container:
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    assert len(frames) == round(clip.duration_s * clip.fps)
    assert frames[0].shape == (clip.height, clip.width, 3)
    middle = len(frames) // 2
    drawn = next(
        render_at(sample_scene(clip.seed), np.array([middle / clip.fps]), width=clip.width, height=clip.height)
    )
    assert np.median(np.abs(frames[middle].astype(int) - drawn)) <= 3  # rain streaks suffer most, and are few pixels


def test_a_folder_without_samples(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound):
        sample_clips(tmp_path)
