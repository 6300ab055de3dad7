"""Planted regressions are rolled back, and the same settings again are kept."""

import asyncio
import math
import random

import pytest

from framefleet.bench.apply import Limits, StubRevisions, apply_settings
from framefleet.bench.ladder import Outcome
from framefleet.errors import EngineLost

CLIPS = [f"clip{n}" for n in range(50)]


def look(rng, *, p95_s=2.0, errors=0.0, other_captions=0, memory_gib=4.0, noise=0.03):
    captions = {clip: "x" if n >= other_captions else "y" for n, clip in enumerate(CLIPS)}
    return Outcome(
        rates_per_s=(8.0,), p95_s=p95_s * math.exp(rng.gauss(0, noise)), error_share=errors, captions=captions,
        memory_bytes=memory_gib * 2**30,
    )  # fmt: skip


def applied(seed=0, **planted):
    rng = random.Random(seed)
    revisions = StubRevisions(lambda: look(rng), lambda: look(rng, **planted))
    return asyncio.run(apply_settings(revisions, {"hw_decoders": 2})), revisions


@pytest.mark.parametrize(
    ("planted", "word"),
    [
        ({"p95_s": 2.4}, "longer"),
        ({"errors": 0.05}, "fail"),
        ({"other_captions": 5}, "captions differ"),
        ({"memory_gib": 5.0}, "memory"),
    ],
)
def test_planted_regressions_are_rolled_back(planted, word):
    for seed in range(20):
        result, revisions = applied(seed, **planted)
        assert not result.kept
        assert word in result.reasons[0]
        assert revisions.calls[-1] == "roll back"


def test_the_same_settings_are_called_slower_in_at_most_five_of_a_hundred_runs():
    assert sum(not applied(seed)[0].kept for seed in range(100)) <= 5


def test_what_is_better_is_kept():
    result, revisions = applied(p95_s=1.5)
    assert result.kept
    assert revisions.calls == ["change hw_decoders", "keep"]


def test_errors_end_it_at_once_and_slowness_is_judged_at_the_end():
    assert len(applied(errors=0.2)[0].after) == 1
    assert len(applied(p95_s=4.0)[0].after) == Limits().trials


def test_captions_that_differ_by_themselves_are_no_regression():
    rng = random.Random(1)

    def wavering():
        return look(rng, other_captions=rng.randrange(10, 20))

    revisions = StubRevisions(wavering, wavering)
    limits = Limits(max_other_captions=0.1)
    assert asyncio.run(apply_settings(revisions, {}, limits)).kept


def test_a_canary_that_is_no_good_changes_nothing():
    rng = random.Random(1)
    revisions = StubRevisions(lambda: look(rng), lambda: look(rng), canary="it does not come up")
    result = asyncio.run(apply_settings(revisions, {"mps": "on"}))
    assert (result.kept, result.reasons) == (False, ("it does not come up",))
    assert revisions.calls == ["change mps"]


def test_when_watching_fails_it_is_rolled_back():
    rng = random.Random(1)

    def lost():
        raise EngineLost("gone")

    revisions = StubRevisions(lambda: look(rng), lost)
    with pytest.raises(EngineLost):
        asyncio.run(apply_settings(revisions, {}))
    assert revisions.calls[-1] == "roll back"
