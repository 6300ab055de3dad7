"""The simulated fleet obeys the laws that real queues obey, and the same arm on it is not called different."""

from typing import get_args

import pytest

from framefleet.bench.diagnose import Stage
from framefleet.bench.stats import compare_runs
from framefleet.bench.stub_fleet import RATE_PER_S, plant, simulate


def rate_of(run):
    return len(run.rates_per_s) / sum(1 / rate for rate in run.rates_per_s)


@pytest.mark.parametrize("stage", get_args(Stage))
def test_the_planted_stage_sets_the_rate(stage):
    assert rate_of(simulate(plant([stage], 2), None, 2)) == pytest.approx(RATE_PER_S, rel=0.1)


def test_nothing_planted_is_faster():
    assert rate_of(simulate(plant([], 2), None, 2)) > 1.5 * RATE_PER_S


def test_littles_law_and_the_utilisation_law_hold():
    fleet = plant(["generation"], 6)
    run = simulate(fleet, None, 6)
    assert rate_of(run) * run.total_s == pytest.approx(fleet.in_flight, rel=0.1)
    for stage in ("proxy", "preprocess", "vision_prefill"):
        reading = run.stages[stage]
        lanes = {"proxy": 1, "preprocess": 4, "vision_prefill": 1}[stage]
        assert reading.utilisation == pytest.approx(rate_of(run) * reading.service_s / lanes, rel=0.1)


def test_ablations_touch_what_they_say_and_nothing_else():
    fleet = plant(["proxy"], 3)
    plain = simulate(fleet, None, 3)
    without = simulate(fleet, "decoded_before", 3)
    assert {s for s, r in without.stages.items() if r.service_s == 0} == {"fetch", "cpu_decode", "nvdec"}
    half = simulate(fleet, "half_frames", 3).stages
    assert half["transfer"].service_s == pytest.approx(plain.stages["transfer"].service_s / 2, rel=0.1)
    assert half["fetch"].service_s == pytest.approx(plain.stages["fetch"].service_s, rel=0.1)
    one_token = simulate(fleet, "one_token", 3).stages
    assert one_token["generation"].service_s == pytest.approx(plain.stages["generation"].service_s / 64, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["generation", "cpu_decode", "proxy"])
def test_same_arm_against_itself_is_called_different_in_at_most_five_of_a_hundred_runs(stage):
    """With no smallest effect to help: batches of one run are not quite independent, and still the interval holds."""
    claims = []
    for seed in range(100):
        fleet = plant([stage], seed)
        base, again = (simulate(fleet, None, run).rates_per_s for run in (seed, seed + 1_000_000))
        claims.append(compare_runs(base, again, smallest_effect=0.0).claim)
    assert sum(claim in ("better", "worse") for claim in claims) <= 5
