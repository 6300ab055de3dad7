"""Which replicas may be given a request, how many at a time, and what an assignment leaves behind."""

import contextlib
from random import Random

import pytest

from framefleet.serve.dispatch import Dispatch
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import StaticFleet


@pytest.fixture
def dispatch():
    fleet = StaticFleet.of_urls(["http://a:1", "http://b:1", "http://c:1"])
    clock = [0.0]
    settings = ProxySettings(max_in_flight=4, max_failures=2, open_s=10)
    dispatch = Dispatch(fleet, settings, rng=Random(0), now_s=lambda: clock[0])
    dispatch.clock = clock
    for name in ("r0", "r1", "r2"):
        dispatch.observe(name, is_answering=True)
    return dispatch


def names(dispatch):
    return [replica.name for replica in dispatch.routable()]


def fail(dispatch, name, times):
    for _ in range(times):
        with dispatch.pick(1, but={"r0", "r1", "r2"} - {name}) as assignment:
            assignment.failed()


def test_only_ready_ones_whose_circuit_is_closed(dispatch):
    assert (names(dispatch), dispatch.capacity()) == (["r0", "r1", "r2"], 12)
    dispatch.fleet.drain("r2")
    fail(dispatch, "r0", 2)
    assert (names(dispatch), dispatch.capacity()) == (["r1"], 4)
    assert dispatch.pick(1, but={"r1"}) is None


def test_one_at_a_time_tries_a_replica_out(dispatch):
    fail(dispatch, "r0", 2)
    dispatch.clock[0] = 10.0
    assert (names(dispatch), dispatch.capacity()) == (["r0", "r1", "r2"], 9)
    with dispatch.pick(1, but={"r1", "r2"}) as assignment:
        assert names(dispatch) == ["r1", "r2"]
        assignment.succeeded()
    assert dispatch.capacity() == 12


def test_a_trial_that_tells_nothing_lets_another_try(dispatch):
    fail(dispatch, "r0", 2)
    dispatch.clock[0] = 10.0
    with dispatch.pick(1, but={"r1", "r2"}):
        pass
    assert "r0" in names(dispatch)


def test_full_replicas_are_passed_over_while_others_have_room(dispatch):
    held = [dispatch.pick(10**9 * (i < 4), but={"r1", "r2"} if i < 4 else {"r0"}) for i in range(4)]
    for assignment in held:
        assignment.__enter__()
    with dispatch.pick(5 * 10**9, but=()) as assignment:
        assert assignment.replica.name != "r0"
    assert [dispatch.outstanding.num_in_flight(n) for n in ("r0", "r1", "r2")] == [4, 0, 0]
    for assignment in held:
        assignment.__exit__(None, None, None)
    assert dispatch.outstanding.total_in_flight == 0


def test_work_and_waiting_end_with_the_block_however_it_ends(dispatch):
    assignment = dispatch.pick(100)
    with contextlib.suppress(ZeroDivisionError), assignment:
        assignment.settle(250)
        assert dispatch.outstanding.work_of(assignment.replica.name) == 250
        assert dispatch.waiting[assignment.replica.name] == {assignment}
        raise ZeroDivisionError
    assert dispatch.outstanding.work_of(assignment.replica.name) == 0
    assert dispatch.waiting[assignment.replica.name] == set()


def test_who_waits_for_a_lost_replica_is_told_whenever_it_begins_to_wait(dispatch):
    left = []
    early, answered, late = (dispatch.pick(1, but={"r1", "r2"}) for _ in range(3))
    with early, answered, late:
        early.waits(lambda: left.append("early"))
        answered.waits(lambda: left.append("answered"))
        answered.answers()
        dispatch.observe("r0", is_answering=False)
        late.waits(lambda: left.append("late"))
        assert (left, answered.is_replica_gone) == (["early", "late"], False)
    assert names(dispatch) == ["r1", "r2"]
