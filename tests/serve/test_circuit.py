"""When a replica is left alone, and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from framefleet.serve.circuit import Circuit, CircuitState


def failing(circuit, times, now_s=0.0):
    for _ in range(times):
        circuit.sent(now_s)
        circuit.failed(now_s)
    return circuit


def test_it_opens_after_failures_in_a_row_only():
    circuit = failing(Circuit(max_failures=3), 2)
    circuit.succeeded()
    assert failing(circuit, 2).state(0) is CircuitState.CLOSED
    assert failing(circuit, 1).state(0) is CircuitState.OPEN
    assert not circuit.lets_pass(1.9)


def test_half_open_lets_one_through_and_closes_on_success():
    circuit = failing(Circuit(max_failures=1, open_s=2), 1)
    assert circuit.lets_pass(2.0)
    circuit.sent(2.0)
    assert not circuit.lets_pass(2.0)
    circuit.dropped()
    assert circuit.lets_pass(2.0)
    circuit.succeeded()
    assert circuit.state(2.0) is CircuitState.CLOSED


def test_it_stays_open_longer_each_time_up_to_a_limit():
    circuit, now_s, spans = failing(Circuit(max_failures=1, open_s=2, max_open_s=9), 1), 0.0, []
    for _ in range(5):
        until_s = now_s
        while not circuit.lets_pass(until_s):
            until_s += 0.5
        spans.append(until_s - now_s)
        now_s = until_s
        failing(circuit, 1, now_s)
    assert spans == [2, 4, 8, 9, 9]


def test_late_failures_of_earlier_requests_do_not_prolong_it():
    circuit = failing(Circuit(max_failures=1, open_s=2), 1)
    for at_s in (0.5, 1.0, 1.9):
        circuit.failed(at_s)
    assert circuit.lets_pass(2.0)


@given(st.lists(st.tuples(st.sampled_from(["sent", "failed", "succeeded", "dropped"]), st.floats(0, 100))))
def test_it_never_stays_shut_for_good(steps):
    circuit, now_s = Circuit(max_failures=2, open_s=2, max_open_s=30), 0.0
    for what, pause_s in steps:
        now_s += pause_s
        getattr(circuit, what)(*([now_s] if what in ("sent", "failed") else []))
    circuit.dropped()
    assert circuit.lets_pass(now_s + 30)
