from __future__ import annotations

from collections import Counter

from framefleet.scenes import attributes_of, caption_of, sample_scene
from framefleet.scenes import truth as t


def test_a_seed_is_one_scene_for_ever() -> None:
    """The evaluation seeds of the bundled model must go on meaning the same scenes."""
    scene = sample_scene(0)
    assert scene == sample_scene(0)
    assert scene.duration_s == 4.4
    assert caption_of(scene.truth) == (
        "The ego vehicle travels along a multi-lane highway at night in rain. "
        "A red bus in the right lane falls behind. The ego vehicle slows down."
    )


def test_every_value_has_its_share() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(1500):
        seen.update((key.rpartition(".")[2], v) for key, v in attributes_of(sample_scene(seed).truth).items())
    for name, values in (
        ("light", t.LIGHTS), ("weather", t.WEATHERS), ("road", t.ROADS), ("lanes", t.LANES), ("ego", t.EGO_ACTIONS),
        ("traffic_light", t.TRAFFIC_LIGHTS), ("pedestrian", t.PEDESTRIANS), ("colour", t.COLOURS), ("kind", t.KINDS),
        ("action", {*t.AHEAD_ACTIONS, *t.SIDE_ACTIONS}),
    ):  # fmt: skip
        assert {v for n, v in seen if n == name} == set(values)
        assert all(seen[name, v] >= 25 for v in values), name


def test_lengths_stay_in_range() -> None:
    lengths = [sample_scene(seed).duration_s for seed in range(300)]
    assert 4.0 <= min(lengths) < 5.0
    assert 17.0 < max(lengths) <= 20.0
