"""Planted optima are found with few trials; what fails is out of the question; the knee is where gains end."""

import asyncio
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.bench.ladder import Climb, Ladder, Outcome, doubling, find_knee, grid_size
from framefleet.bench.stub_surface import LADDERS, StubBench, StubSurface
from framefleet.errors import ConfigError


def climbed(surface, seed=0, **options):
    climb = Climb(surface.ladders, StubBench(surface, seed).measure, seed=seed, **options)
    return climb, asyncio.run(climb.run())


def near_optimum(surface, settings):
    return surface.rate(settings) / surface.best()[1]


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_planted_optima_within_five_percent_and_a_quarter_of_the_grid(seed):
    surface = StubSurface(seed=seed)
    climb, chosen = climbed(surface)
    assert near_optimum(surface, chosen) >= 0.95
    assert climb.num_trials <= grid_size(surface.ladders) / 4


@pytest.mark.slow
def test_a_hundred_planted_optima():
    shares = []
    for seed in range(2000, 2100):
        surface = StubSurface(seed=seed)
        climb, chosen = climbed(surface)
        shares.append(near_optimum(surface, chosen))
        assert climb.num_trials <= grid_size(surface.ladders) / 4
    assert sum(share >= 0.95 for share in shares) >= 98


def flat(ladder, value):
    """No matter what."""

    async def measure(settings, effort):
        return Outcome(rates_per_s=(10.0,) * effort)

    climb = Climb([ladder], measure)
    return asyncio.run(climb.run())[ladder.name] == value


def test_of_equals_the_smallest_is_chosen_where_it_costs_and_today_s_where_not():
    assert flat(Ladder(name="vram_budget_gib", rungs=(0.5, 1.0, 2.0, 4.0)), 0.5)
    assert flat(Ladder(name="backend", rungs=("opencv", "pyav", "torchcodec"), costs=False), "pyav")


def test_settings_that_fail_requests_are_never_chosen():
    surface = StubSurface(seed=3, least_budget=2.0, starved_fails=True)
    _, chosen = climbed(surface)
    assert chosen["vram_budget_gib"] >= 2.0


def test_settings_that_cannot_run_are_never_chosen_and_measured_once():
    tries = []

    async def measure(settings, effort):
        tries.append(settings["mps"])
        if settings["mps"] == "on":
            return Outcome(rates_per_s=(), failure="no MPS here")
        return Outcome(rates_per_s=(5.0,) * effort)

    climb = Climb([Ladder(name="mps", rungs=("off", "on"), costs=False)], measure)
    assert asyncio.run(climb.run()) == {"mps": "off"}
    assert tries.count("on") == 1


def test_nothing_that_runs_is_an_error_with_the_reason():
    async def measure(settings, effort):
        return Outcome(rates_per_s=(), failure="no vLLM here")

    with pytest.raises(ConfigError, match="no vLLM here"):
        asyncio.run(Climb(LADDERS, measure).run())


def test_the_start_is_among_what_is_tried():
    climb, _ = climbed(StubSurface(seed=5), start={"api_server_count": 8, "backend": "opencv"})
    assert any(point[3] == 8 and point[4] == "opencv" for point in climb.measured)


@given(st.integers(1, 300), st.integers(1, 8))
def test_doubling_ends_at_the_most(most, least):
    rungs = doubling(max(most, least), least)
    assert rungs[-1] == max(most, least)
    assert list(rungs) == sorted(set(rungs))


def knee_at(capacity, *, noise=0.0, most=128, **options):
    rng = random.Random(capacity)

    async def measure(count):
        rate = min(count, capacity) * math.exp(rng.gauss(0, noise))
        return Outcome(rates_per_s=(rate,), p95_s=max(count, capacity) / capacity)

    return asyncio.run(find_knee(measure, most=most, **options))


@pytest.mark.parametrize("capacity", [1, 3, 16, 23, 100])
def test_the_knee_is_where_more_in_flight_stops_to_help(capacity):
    knee = knee_at(capacity)
    assert 0.94 * capacity <= knee.concurrency <= capacity + 1
    assert len(knee.measured) < 20


def test_the_knee_obeys_a_limit_on_time_and_names_its_end():
    assert knee_at(16, max_p95_s=1.0).concurrency <= 16
    assert knee_at(1000, most=64).reason == "end of the ladder"
    assert knee_at(16).reason == "no more gain"


def test_outcomes_add_up():
    one = Outcome(rates_per_s=(4.0,), error_share=0.0, memory_bytes=5, kv_headroom=0.5, captions={"a": "x"})
    two = Outcome(rates_per_s=(9.0,), error_share=0.004, memory_bytes=7, budget_wait_s=2)
    both = one.and_more(two)
    assert both.score == pytest.approx(6)
    assert (both.error_share, both.memory_bytes, both.kv_headroom, both.budget_wait_s) == (0.002, 7, 0.5, 2)
    assert msgspec.structs.replace(both, error_share=0.5).score == 0
