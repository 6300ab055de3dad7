"""The simulated fleet: laws that must hold, and what it says of eight replicas."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefleet.serve.simulate import SimulatedFleet, proxy_limit_per_s, simulate

GPU = 3.17
"""Captions per second of one H200, decode-free."""


def fleet(num_replicas, **changes):
    return SimulatedFleet(**{"speeds": (GPU,) * num_replicas, **changes})


def test_one_replica_gives_its_speed():
    assert simulate(fleet(1)).requests_per_s == pytest.approx(GPU, rel=0.03)


def test_below_saturation_each_request_takes_its_own_time():
    run = simulate(fleet(1, in_flight=1, work_spread=0, num_requests=50))
    assert run.p50_s == pytest.approx(16 / GPU + 0.001, rel=1e-3)
    assert run.requests_per_s == pytest.approx(1 / run.p50_s, rel=1e-3)


def test_eight_replicas_scale_and_share_evenly():
    one, eight = simulate(fleet(1)), simulate(fleet(8))
    assert eight.requests_per_s / (8 * one.requests_per_s) >= 0.95
    assert max(eight.shares.values()) < 0.125 * 1.1
    assert min(eight.shares.values()) > 0.125 * 0.9


def test_a_slow_replica_holds_least_work_up_less_than_round_robin():
    speeds = (GPU,) * 7 + (GPU / 4,)
    by = {name: simulate(fleet(8, speeds=speeds, policy=name)) for name in ("least_work", "round_robin")}
    ideal = sum(speeds)
    assert by["least_work"].requests_per_s > 0.95 * ideal
    assert by["round_robin"].requests_per_s < by["least_work"].requests_per_s
    assert by["least_work"].shares["r7"] < 0.06


def test_beyond_the_proxys_limit_nothing_is_gained():
    settings = fleet(64, proxy_request_s=0.02, num_requests=60)
    run = simulate(settings)
    assert run.requests_per_s == pytest.approx(proxy_limit_per_s(settings), rel=0.02)
    assert run.proxy_busy > 0.97


def test_the_same_seed_gives_the_same_run():
    assert simulate(fleet(3, seed=5)) == simulate(fleet(3, seed=5))
    assert simulate(fleet(3, seed=5)) != simulate(fleet(3, seed=6))


@settings(max_examples=25)
@given(
    st.integers(1, 5), st.sampled_from(["least_work", "round_robin", "random"]), st.integers(1, 40), st.integers(0, 9)
)
def test_it_is_never_faster_than_its_parts(num_replicas, policy, in_flight, seed):
    settings = fleet(num_replicas, policy=policy, in_flight=in_flight, num_requests=60, seed=seed, work_spread=0.0)
    run = simulate(settings)
    assert run.requests_per_s <= min(num_replicas * GPU, proxy_limit_per_s(settings)) * 1.08  # the edges of the count
    assert sum(run.shares.values()) == pytest.approx(1)
    assert dataclasses.asdict(run)["p50_s"] <= run.p95_s
