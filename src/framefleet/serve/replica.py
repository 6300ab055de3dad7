"""A replica: one engine process behind one URL, and the states it goes through.

    stopped   -> starting
    starting  -> ready, lost, stopping
    ready     -> draining, lost, stopping
    draining  -> ready, drained, lost, stopping      ready: undrained
    drained   -> ready, lost, stopping
    lost      -> ready, starting, stopping           ready: answers again; starting: its process is started anew
    stopping  -> stopped

`MOVES` says the same; a test walks it. Only a `ready` replica is given new work. The proxy reads a `FleetView`, and
tells it what it observes; who owns the processes decides what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from framefleet.errors import ConfigError, ReplicaError


class ReplicaState(StrEnum):
    """Where a replica stands."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Takes no new work; some is in flight."""
    DRAINED = "drained"
    LOST = "lost"
    """Does not answer."""
    STOPPING = "stopping"


_S = ReplicaState
MOVES: Mapping[ReplicaState, frozenset[ReplicaState]] = MappingProxyType(
    {
        _S.STOPPED: frozenset({_S.STARTING}),
        _S.STARTING: frozenset({_S.READY, _S.LOST, _S.STOPPING}),
        _S.READY: frozenset({_S.DRAINING, _S.LOST, _S.STOPPING}),
        _S.DRAINING: frozenset({_S.READY, _S.DRAINED, _S.LOST, _S.STOPPING}),
        _S.DRAINED: frozenset({_S.READY, _S.LOST, _S.STOPPING}),
        _S.LOST: frozenset({_S.READY, _S.STARTING, _S.STOPPING}),
        _S.STOPPING: frozenset({_S.STOPPED}),
    }
)
"""State -> the states that may follow."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A snapshot."""

    name: str
    base_url: str
    """`http://host:port`, without a path."""
    state: ReplicaState = ReplicaState.STARTING

    @property
    def takes_work(self) -> bool:
        """Whether new requests may go there."""
        return self.state is ReplicaState.READY

    def moved(self, to: ReplicaState) -> Replica:
        """The replica in its next state. Raises ReplicaError for a move that MOVES does not have."""
        if to not in MOVES[self.state]:
            raise ReplicaError(
                f"replica {self.name} cannot go from {self.state} to {to}",
                allowed=", ".join(sorted(MOVES[self.state])),
            )
        return replace(self, state=to)


class FleetView(Protocol):
    """What the proxy knows of a fleet, and what it tells it."""

    def replicas(self) -> tuple[Replica, ...]:
        """All of them now. Called for every request: cheap."""
        ...

    def observe(self, name: str, *, is_answering: bool, num_in_flight: int) -> None:
        """What the proxy sees of a replica, after each look at it."""
        ...

    def drain(self, name: str) -> None:
        """No new work; what is in flight ends. Raises ReplicaError when there is no such replica, or it cannot."""
        ...

    def undrain(self, name: str) -> None:
        """Take work again. Raises as `drain`."""
        ...


class StaticFleet:
    """Replicas that somebody else runs: their states are what is observed of them."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self._replicas = {replica.name: replica for replica in replicas}

    @classmethod
    def of_urls(cls, urls: Iterable[str]) -> StaticFleet:
        """Replicas named r0, r1 ... Raises ConfigError for what is no URL of a server, a repeated one, or none."""
        bases = [base_url_of(url) for url in urls]
        if not bases or len(set(bases)) < len(bases):
            raise ConfigError("upstreams must be given, each once", given=", ".join(bases) or "none")
        return cls(Replica(f"r{i}", base) for i, base in enumerate(bases))

    def replicas(self) -> tuple[Replica, ...]:
        """All of them now."""
        return tuple(self._replicas.values())

    def observe(self, name: str, *, is_answering: bool, num_in_flight: int) -> None:
        """Move to what the observation says, where that is another state."""
        replica = self._named(name)
        to = _after(replica.state, is_answering=is_answering, is_idle=num_in_flight == 0)
        if to is not replica.state:
            self._replicas[name] = replica.moved(to)

    def drain(self, name: str) -> None:
        """No new work. Draining twice is one drain."""
        if self._named(name).state not in (ReplicaState.DRAINING, ReplicaState.DRAINED):
            self._replicas[name] = self._named(name).moved(ReplicaState.DRAINING)

    def undrain(self, name: str) -> None:
        """Take work again."""
        if self._named(name).state is not ReplicaState.READY:
            self._replicas[name] = self._named(name).moved(ReplicaState.READY)

    def _named(self, name: str) -> Replica:
        if name not in self._replicas:
            raise ReplicaError("no such replica", given=repr(name), allowed=", ".join(self._replicas))
        return self._replicas[name]


def base_url_of(url: str) -> str:
    """`http://host:port` of a server's address; a trailing `/v1` is let pass. Raises ConfigError."""
    base = url.strip().rstrip("/").removesuffix("/v1")
    scheme, _, host = base.partition("://")
    if scheme not in ("http", "https") or not host or set(host) & set("/?# "):
        raise ConfigError("not the address of a server", given=repr(url), allowed="http://HOST:PORT")
    return base


def _after(state: ReplicaState, *, is_answering: bool, is_idle: bool) -> ReplicaState:
    if not is_answering:
        return ReplicaState.LOST if ReplicaState.LOST in MOVES[state] and state is not _S.STARTING else state
    if state in (ReplicaState.STARTING, ReplicaState.LOST):
        return ReplicaState.READY
    return ReplicaState.DRAINED if state is ReplicaState.DRAINING and is_idle else state
