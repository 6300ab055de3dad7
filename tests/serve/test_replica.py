"""The states of a replica: what is drawn is what is allowed, and nothing else."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError, ReplicaError
from framefleet.serve import replica as module
from framefleet.serve.replica import MOVES, Replica, ReplicaState, StaticFleet, base_url_of

STATES = list(ReplicaState)


def test_the_moves_drawn_are_the_moves_in_code():
    drawn = {}
    for line in module.__doc__.splitlines():
        if match := re.fullmatch(r"    (\w+) +-> ([\w, ]+?)(   .*)?", line):
            drawn[match[1]] = frozenset(match[2].split(", "))
    assert drawn == MOVES


@pytest.mark.parametrize(("state", "to"), list(itertools.product(STATES, STATES)))
def test_every_move_is_made_or_refused_as_said(state, to):
    replica = Replica("r0", "http://a:1", state)
    if to in MOVES[state]:
        assert replica.moved(to) == Replica("r0", "http://a:1", to)
    else:
        with pytest.raises(ReplicaError, match=f"from {state} to {to}"):
            replica.moved(to)


def test_every_state_is_reached_and_stopped_from_a_start():
    reached, edge = set(), {ReplicaState.STOPPED}
    while edge:
        reached |= edge
        edge = {to for state in edge for to in MOVES[state]} - reached
    assert reached == set(STATES)
    assert all(ReplicaState.STOPPING in MOVES[s] for s in STATES if s not in ("stopped", "stopping"))


def test_only_ready_replicas_take_work():
    assert [s for s in STATES if Replica("r", "http://a:1", s).takes_work] == [ReplicaState.READY]


@given(st.lists(st.sampled_from(["up", "up busy", "down", "drain", "undrain"]), max_size=30))
def test_a_static_fleet_stays_within_its_states(happenings):
    fleet = StaticFleet.of_urls(["http://a:1"])
    for what in happenings:
        before = fleet.replicas()[0].state
        match what:
            case "drain" | "undrain":
                try:
                    getattr(fleet, what)("r0")
                except ReplicaError:
                    assert fleet.replicas()[0].state is before
            case _:
                fleet.observe("r0", is_answering=what != "down", num_in_flight=int("busy" in what))
        after = fleet.replicas()[0].state
        assert after is before or after in MOVES[before]
        if what == "down":
            assert not fleet.replicas()[0].takes_work


def test_a_static_fleet_drains_when_idle_and_takes_work_again():
    fleet = StaticFleet.of_urls(["http://a:1", "http://b:2/v1/"])
    for name in ("r0", "r1"):
        fleet.observe(name, is_answering=True, num_in_flight=0)
    fleet.drain("r1")
    fleet.drain("r1")
    fleet.observe("r1", is_answering=True, num_in_flight=1)
    assert [r.state for r in fleet.replicas()] == ["ready", "draining"]
    fleet.observe("r1", is_answering=True, num_in_flight=0)
    assert fleet.replicas()[1].state == "drained"
    fleet.undrain("r1")
    assert fleet.replicas()[1] == Replica("r1", "http://b:2", ReplicaState.READY)
    with pytest.raises(ReplicaError, match="allowed: r0, r1"):
        fleet.drain("r7")


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://a:1", "http://a:1/other", "http://a:1?x", "http://"])
def test_what_is_no_server_is_refused(url):
    with pytest.raises(ConfigError, match="not the address"):
        base_url_of(url)


def test_upstreams_are_given_each_once():
    for urls in ([], ["http://a:1", "http://a:1/v1"]):
        with pytest.raises(ConfigError, match="each once"):
            StaticFleet.of_urls(urls)


def test_the_diagram_in_the_guide_is_the_table():
    guide = Path(__file__).parents[2] / "docs" / "guides" / "serve.md"
    drawn = set(re.findall(r"^ {4}(\w+) --> (\w+)", guide.read_text(), flags=re.MULTILINE))
    assert drawn == {(str(state), str(to)) for state, following in MOVES.items() for to in following}
