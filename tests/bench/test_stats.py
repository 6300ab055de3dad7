"""Intervals cover what they say, and the same arm against itself is not called different."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.bench.stats import (
    Interval,
    claim_of,
    compare_blocks,
    compare_runs,
    mean_interval,
    percentile,
    student_quantile,
)
from framefleet.errors import ConfigError

TABLE = {(1, 0.95): 12.706, (2, 0.95): 4.303, (3, 0.95): 3.182, (7, 0.95): 2.365, (10, 0.99): 3.169, (30, 0.9): 1.697}


@pytest.mark.parametrize(("place", "quantile"), TABLE.items())
def test_student_quantiles_are_those_of_the_tables(place, quantile):
    assert student_quantile(*place) == pytest.approx(quantile, abs=6e-4)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert student_quantile(5000, 0.95) == pytest.approx(1.960, abs=1e-3)


@pytest.mark.parametrize("size", [3, 8])
def test_interval_of_the_mean_covers_as_often_as_it_says(size):
    rng = random.Random(11)
    covered = 0
    for _ in range(4000):
        interval = mean_interval([rng.gauss(5, 2) for _ in range(size)])
        covered += interval.low <= 5 <= interval.high
    assert 0.94 <= covered / 4000 <= 0.96


def test_one_value_says_nothing_of_its_spread():
    assert mean_interval([3.0]) == Interval(3.0, -math.inf, math.inf)
    assert compare_blocks([1.0], [9.0], smallest_effect=0.05).claim == "not clear"


def test_percentile_interpolates():
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentile_lies_among_its_values(values, share):
    assert min(values) - 1e-6 <= percentile(values, share) <= max(values) + 1e-6


@pytest.mark.parametrize(
    ("low", "estimate", "high", "claim"),
    [
        (-0.01, 0.01, 0.03, "same"),
        (0.01, 0.02, 0.03, "same"),
        (0.02, 0.06, 0.10, "better"),
        (-0.10, -0.06, -0.02, "worse"),
        (-0.02, 0.06, 0.14, "not clear"),
        (0.01, 0.04, 0.07, "not clear"),
    ],
)
def test_claims(low, estimate, high, claim):
    assert claim_of(Interval(estimate, low, high), 0.05) == claim


@given(st.lists(st.floats(1.0, 1.2), min_size=2, max_size=12), st.floats(0.5, 2.0))
def test_scaling_every_block_is_the_gain(base, factor):
    gain = compare_blocks(base, [value * factor for value in base], smallest_effect=0.01).gain
    assert gain.estimate == pytest.approx(factor - 1, abs=1e-9)


def test_less_is_better_for_seconds():
    base, slower = [1.0, 1.01, 0.99, 1.0], [1.2, 1.21, 1.19, 1.2]
    for compare in (compare_blocks, compare_runs):
        assert compare(base, slower, smallest_effect=0.05, higher_is_better=False).claim == "worse"
        assert compare(slower, base, smallest_effect=0.05, higher_is_better=False).claim == "better"


@pytest.mark.parametrize("compare", [compare_blocks, compare_runs])
@pytest.mark.parametrize("blocks", [3, 6, 12])
def test_same_arm_against_itself_is_called_different_in_at_most_five_percent(compare, blocks):
    claims = _claims(compare, blocks, runs=100, smallest_effect=0.02, seed=7)
    assert claims <= 5


@pytest.mark.parametrize("compare", [compare_blocks, compare_runs])
def test_with_no_smallest_effect_the_interval_alone_keeps_to_its_five_percent(compare):
    assert _claims(compare, 5, runs=3000, smallest_effect=0.0, seed=3) <= 3000 * 0.06


def test_a_true_gain_is_found():
    rng = random.Random(5)
    found = sum(
        compare_blocks(_noisy(rng, 10, 100), _noisy(rng, 10, 115), smallest_effect=0.05).claim == "better"
        for _ in range(100)
    )
    assert found >= 95


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: compare_blocks([1.0], [1.0, 2.0], smallest_effect=0.1),
        lambda: compare_blocks([], [], smallest_effect=0.1),
        lambda: compare_blocks([1.0, 0.0], [1.0, 2.0], smallest_effect=0.1),
        lambda: compare_blocks([1.0, 1.0], [1.0, 2.0], smallest_effect=-0.1),
        lambda: compare_runs([1.0], [1.0, 2.0], smallest_effect=0.1),
        lambda: mean_interval([1.0, 2.0], confidence=1.0),
        lambda: student_quantile(0, 0.95),
        lambda: percentile([], 0.5),
    ],
)
def test_what_cannot_be_computed_is_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()


def _noisy(rng, count, middle):
    return [middle * math.exp(rng.gauss(0, 0.05)) for _ in range(count)]


def _claims(compare, blocks, *, runs, smallest_effect, seed):
    rng = random.Random(seed)
    pairs = ((_noisy(rng, blocks, 100), _noisy(rng, blocks, 100)) for _ in range(runs))
    return sum(compare(*pair, smallest_effect=smallest_effect).claim in ("better", "worse") for pair in pairs)
