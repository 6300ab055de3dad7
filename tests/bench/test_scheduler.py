"""Trials interleave, stop for the right reason, resume, and find no difference where there is none."""

import asyncio
import math
import random
from collections import Counter

import msgspec
import pytest
from bench_experiments import ARMS, EXPERIMENT, changed, trial
from hypothesis import given
from hypothesis import strategies as st

from framefleet.bench.experiment import WARM_UP, Arm, trials_of
from framefleet.bench.scheduler import Slot, Stop, block_order, compare_arms, next_slot, run_experiment
from framefleet.bench.trial_log import TrialLog


class MemoryLog:
    def __init__(self):
        self.trials = []

    def append(self, one):
        self.trials.append(one)


class Bench:
    """Arms with a true rate, trial noise, and a machine that slows by `drift` with each trial."""

    def __init__(self, rates, *, seed=0, noise=0.03, drift=0.0, die_at=None):
        self.rates, self.rng, self.noise, self.drift, self.die_at = rates, random.Random(seed), noise, drift, die_at
        self.num_run = 0

    async def __call__(self, arm, slot):
        if self.num_run == self.die_at:
            raise KeyboardInterrupt
        self.num_run += 1
        rate = self.rates[arm.name] * math.exp(self.rng.gauss(0, self.noise) - self.drift * self.num_run)
        return trial(arm.name, slot.block, slot.position, rate=rate)


def run(experiment, bench, log=None):
    log = log or MemoryLog()
    return asyncio.run(run_experiment(experiment, log, bench)), log


@given(st.integers(2, 6), st.integers(0, 50))
def test_a_block_is_an_order_and_its_reverse(num_arms, block):
    experiment = changed(arms=tuple(Arm(name=str(n), settings={"n": n}) for n in range(num_arms)))
    order = block_order(experiment, block)
    assert order == order[::-1]
    assert sorted(order[:num_arms]) == [str(n) for n in range(num_arms)]


def test_no_arm_is_always_first():
    assert len({block_order(EXPERIMENT, block)[0] for block in range(10)}) == 2


def test_every_slot_is_run_once_after_one_warm_up_per_arm():
    stop, log = run(changed(max_blocks=4, min_blocks=4), Bench({"cpu": 10, "nvdec": 10}, noise=0.5))
    assert stop == Stop("4 blocks are done")
    assert [one.arm for one in log.trials[:2]] == ["cpu", "nvdec"]
    assert all(one.block == WARM_UP for one in log.trials[:2])
    places = [(one.block, one.position) for one in log.trials[2:]]
    assert places == [(block, position) for block in range(4) for position in range(4)]
    assert Counter(one.arm for one in log.trials[2:]) == {"cpu": 8, "nvdec": 8}


def test_quiet_arms_need_only_the_fewest_blocks_and_noisy_ones_more():
    quiet, noisy = (run(EXPERIMENT, Bench({"cpu": 10, "nvdec": 12}, noise=n))[1] for n in (0.001, 0.04))
    assert len(trials_of(quiet.trials, "cpu")) == 2 * EXPERIMENT.min_blocks
    assert len(trials_of(noisy.trials, "cpu")) > 2 * EXPERIMENT.min_blocks


def test_it_stops_when_the_time_is_spent_also_inside_a_block():
    experiment = changed(time_limit_s=1.5)
    stop, log = run(experiment, Bench({"cpu": 10, "nvdec": 10}, noise=0))
    assert stop == Stop("the time is spent (1.5 s)")
    assert 1.5 <= sum(one.wall_s for one in log.trials) < 1.5 + 0.21


def test_an_arm_without_good_answers_stops_it():
    trials = [trial(), trial("nvdec", position=1, error="EngineLost")]
    assert next_slot(EXPERIMENT, trials) == Stop("arm 'nvdec' has a trial without one good answer")


def test_drift_falls_out():
    _, log = run(EXPERIMENT, Bench({"cpu": 10, "nvdec": 10}, noise=0, drift=0.05))
    assert compare_arms(EXPERIMENT, log.trials)["nvdec"].gain.estimate == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("die_at", [0, 1, 5, 9])
def test_a_killed_run_goes_on_with_what_is_missing(tmp_path, die_at):
    experiment = changed(max_blocks=4, min_blocks=4)
    rates = {"cpu": 10, "nvdec": 11}
    with TrialLog(tmp_path, experiment) as log, pytest.raises(KeyboardInterrupt):
        run(experiment, Bench(rates, die_at=die_at), log)
    with TrialLog(tmp_path, experiment) as log:
        assert len(log.trials) == die_at
        stop, _ = run(experiment, Bench(rates, seed=1), log)
        counted = [(one.block, one.position) for one in log.trials if one.block != WARM_UP]
        assert sum(one.block == WARM_UP for one in log.trials) == 2 + min(die_at, 2)
        assert run(experiment, Bench({}), log)[0] == stop  # nothing is missing: nothing is run
    assert stop == Stop("4 blocks are done")
    assert counted == [(block, position) for block in range(4) for position in range(4)]


def test_half_a_block_is_not_compared():
    assert compare_arms(EXPERIMENT, [trial(), trial("nvdec", position=1), trial("nvdec", position=2)]) == {}


def test_with_more_arms_each_interval_is_wider():
    bench = Bench({"cpu": 10, "nvdec": 10, "third": 10})
    three = changed(arms=(*ARMS, Arm(name="third", settings={})))
    _, log = run(three, bench)
    wide, narrow = (compare_arms(one, log.trials)["nvdec"].gain.half_width for one in (three, EXPERIMENT))
    assert wide > narrow


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_same_arm_against_itself_is_called_different_in_at_most_five_of_a_hundred_runs(noise):
    claims = [_claim({"cpu": 10, "nvdec": 10}, noise, seed, question=f"{seed}") for seed in range(100)]
    assert sum(claim in ("better", "worse") for claim in claims) <= 5


def test_a_true_difference_is_found_and_its_direction():
    assert [_claim({"cpu": 10, "nvdec": rate}, 0.02, 3) for rate in (12, 8)] == ["better", "worse"]


def test_a_resumed_log_asks_for_the_first_slot_missing():
    order = block_order(EXPERIMENT, 0)
    trials = [trial(arm, 0, place) for place, arm in enumerate(order) if place != 2]
    assert next_slot(EXPERIMENT, trials) == Slot(order[2], 0, 2)


def _claim(rates, noise, seed, **fields):
    experiment = msgspec.structs.replace(EXPERIMENT, max_blocks=8, **fields)
    _, log = run(experiment, Bench(rates, seed=seed, noise=noise))
    return compare_arms(experiment, log.trials)["nvdec"].claim
