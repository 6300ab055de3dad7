"""Plans of a collection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.bench.plan import PlanSettings, plan_collection, rate_interval
from framefleet.errors import ConfigError


def settings(**fields):
    return PlanSettings(**({"clips": 1_000_000, "rate_per_s": 10.0, "unlike": 0.0} | fields))


def test_the_arithmetic_by_hand():
    plan = plan_collection(settings(windows_per_clip=3, price_per_gpu_hour=2.0, clip_bytes=1e6, cores_per_gpu=4))
    one = plan.plans[0]
    assert plan.requests == 3_000_000
    assert one.wall_hours.estimate == pytest.approx(3_000_000 / 80 / 3600)
    assert one.gpu_hours.estimate == pytest.approx(3_000_000 / 10 / 3600)
    assert one.cost.estimate == pytest.approx(2 * 3_000_000 / 10 / 3600)
    assert one.read_bytes_per_s == pytest.approx(80 / 3 * 1e6)
    assert plan.cores_per_machine == 32


def test_more_machines_take_about_the_same_gpu_hours():
    one, four = plan_collection(settings(machines=4)).plans
    assert four.wall_hours.estimate == pytest.approx(one.wall_hours.estimate / 4, rel=0.02)
    assert one.gpu_hours.estimate < four.gpu_hours.estimate < 1.02 * one.gpu_hours.estimate


def test_longer_answers_cost_by_the_share_of_generation():
    rate = rate_interval(settings(tokens=256, measured_tokens=128, generation_share=0.5))
    assert rate.estimate == pytest.approx(10 / 1.5)


def test_the_uncertainty_is_that_of_the_rate_and_of_other_clips():
    plan = plan_collection(settings(rate_low_per_s=9.0, rate_high_per_s=11.0, unlike=0.1))
    hours = plan.plans[0].wall_hours
    assert hours.low == pytest.approx(hours.estimate * 10 / (11 * 1.1))
    assert hours.high == pytest.approx(hours.estimate * 10 / (9 * 0.9))
    assert not any("exact" in line for line in plan.assumptions)
    assert any("exact" in line for line in plan_collection(settings()).assumptions)


@given(st.integers(1, 10**9), st.floats(0.01, 1e4), st.integers(1, 64))
def test_intervals_hold_their_estimates(clips, rate, machines):
    for one in plan_collection(settings(clips=clips, rate_per_s=rate, machines=machines, unlike=0.2)).plans:
        assert one.wall_hours.low <= one.wall_hours.estimate <= one.wall_hours.high
        assert one.gpu_hours.estimate == pytest.approx(one.wall_hours.estimate * one.gpus)


def test_an_interval_must_hold_its_estimate():
    with pytest.raises(ConfigError, match="without its estimate"):
        plan_collection(settings(rate_low_per_s=11.0))
