"""Which replica gets the next request. Pure: a policy sees a snapshot of the replicas that may be chosen.

A policy of your own: a class with `choose`, under the entry point `framefleet.routing_policies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from framefleet.registry import Registry


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica that may be chosen, and what it has to do."""

    name: str
    outstanding_work: int = 0
    """Sum over its requests in flight, in the unit of `cost`."""
    num_in_flight: int = 0


class RoutingPolicy(Protocol):
    """Made with a source of random numbers, kept for the life of a proxy."""

    def choose(self, loads: Sequence[ReplicaLoad]) -> str:
        """The name of one of `loads`, which is not empty."""
        ...


class LeastWork:
    """The one with the least outstanding work; ties at random, so that equals share evenly whatever their order."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, loads: Sequence[ReplicaLoad]) -> str:
        """See RoutingPolicy."""
        least = min(load.outstanding_work for load in loads)
        return self._rng.choice([load.name for load in loads if load.outstanding_work == least])


class RoundRobin:
    """The one chosen longest ago; of those never chosen, the first."""

    def __init__(self, rng: Random) -> None:
        del rng
        self._last: dict[str, int] = {}
        self._turn = 0

    def choose(self, loads: Sequence[ReplicaLoad]) -> str:
        """See RoutingPolicy."""
        self._turn += 1
        name = min(loads, key=lambda load: self._last.get(load.name, 0)).name
        self._last[name] = self._turn
        return name


class AtRandom:
    """Any."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, loads: Sequence[ReplicaLoad]) -> str:
        """See RoutingPolicy."""
        return self._rng.choice(loads).name


POLICIES = Registry(
    "routing policy",
    "framefleet.routing_policies",
    {
        "least_work": "framefleet.serve.routing:LeastWork",
        "round_robin": "framefleet.serve.routing:RoundRobin",
        "random": "framefleet.serve.routing:AtRandom",
    },
)


def policy_named(name: str, rng: Random) -> RoutingPolicy:
    """Raises ConfigError for an unknown name."""
    policy: RoutingPolicy = POLICIES.load(name)(rng)
    return policy
