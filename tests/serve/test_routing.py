"""Policies over snapshots, and the counts under them."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError
from framefleet.serve.outstanding import OutstandingWork
from framefleet.serve.routing import POLICIES, ReplicaLoad, policy_named

LOADS = st.lists(st.integers(0, 10**9), min_size=1, max_size=9).map(
    lambda works: [ReplicaLoad(f"r{i}", work, 1) for i, work in enumerate(works)]
)


def chi_square(counts, num_kinds):
    expected = sum(counts.values()) / num_kinds
    return sum((counts.get(kind, 0) - expected) ** 2 / expected for kind in [f"r{i}" for i in range(num_kinds)])


@pytest.mark.parametrize("name", list(POLICIES))
@given(loads=LOADS)
def test_a_policy_chooses_one_of_them(name, loads):
    assert policy_named(name, Random(0)).choose(loads) in {load.name for load in loads}


@given(LOADS, st.integers())
def test_least_work_never_takes_one_with_more(loads, seed):
    chosen = policy_named("least_work", Random(seed)).choose(loads)
    assert {x.name: x for x in loads}[chosen].outstanding_work == min(x.outstanding_work for x in loads)


@pytest.mark.parametrize("name", ["least_work", "random"])
def test_equals_share_evenly(name):
    policy = policy_named(name, Random(7))
    counts = Counter(policy.choose([ReplicaLoad(f"r{i}") for i in range(8)]) for _ in range(8000))
    assert chi_square(counts, 8) < 24.3  # 7 degrees of freedom, p = 0.001


def test_round_robin_takes_turns_and_newcomers():
    policy = policy_named("round_robin", Random(0))
    three, four = ([ReplicaLoad(f"r{i}") for i in range(n)] for n in (3, 4))
    assert [policy.choose(three) for _ in range(5)] == ["r0", "r1", "r2", "r0", "r1"]
    assert [policy.choose(four) for _ in range(5)] == ["r3", "r2", "r0", "r1", "r3"]


def test_an_unknown_policy_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'least_work'"):
        policy_named("least-work", Random(0))


STEPS = st.lists(st.tuples(st.sampled_from(["take", "release", "settle"]), st.integers(0, 2), st.integers(-5, 10**9)))


@given(STEPS)
def test_outstanding_work_is_the_sum_of_what_is_held(steps):
    outstanding, held, released = OutstandingWork(), [], []
    for what, replica, work in steps:
        name = f"r{replica}"
        if what == "take":
            held.append([name, max(0, work), outstanding.lease(name, work)])
        elif what == "settle" and held:
            held[0][1] = max(0, work)
            held[0][2].settle(work)
        elif what == "release" and held:
            released.append(held.pop(0)[2])
        for lease in released:  # again and again
            lease.release()
            lease.settle(10**6)
        for name in ("r0", "r1", "r2"):
            mine = [one for one in held if one[0] == name]
            assert outstanding.work_of(name) == sum(one[1] for one in mine) >= 0
            assert outstanding.num_in_flight(name) == len(mine)
    assert outstanding.total_in_flight == len(held)


@given(st.lists(st.integers(1, 50), min_size=300, max_size=300), st.integers(0, 99))
def test_work_is_shared_evenly_whatever_the_sizes(works, seed):
    """Nobody finishes: outstanding work then differs by one request at most."""
    outstanding, policy = OutstandingWork(), policy_named("least_work", Random(seed))
    names = [f"r{i}" for i in range(4)]
    for work in works:
        chosen = policy.choose([ReplicaLoad(n, outstanding.work_of(n), outstanding.num_in_flight(n)) for n in names])
        outstanding.lease(chosen, work)
    shares = [outstanding.work_of(n) for n in names]
    assert max(shares) - min(shares) <= max(works)
