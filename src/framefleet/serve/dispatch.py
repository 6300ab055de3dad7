"""Which replica a request goes to, and what is held and learned while it is there. No I/O."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Container
from random import Random

from framefleet.serve.circuit import Circuit, CircuitState
from framefleet.serve.outstanding import OutstandingWork
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import FleetView, Replica
from framefleet.serve.routing import ReplicaLoad, policy_named


class Assignment:
    """A request at a replica. Leaving the block gives its work back, however it went."""

    def __init__(self, dispatch: Dispatch, replica: Replica, work: int) -> None:
        self.replica = replica
        self.is_replica_gone = False
        self._dispatch, self._work = dispatch, work
        self._leave: Callable[[], None] | None = None

    def __enter__(self) -> Assignment:
        self._lease = self._dispatch.outstanding.lease(self.replica.name, self._work)
        self._circuit = self._dispatch.circuits[self.replica.name]
        self._circuit.sent(self._dispatch.now_s())
        self._dispatch.waiting[self.replica.name].add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._lease.release()
        self.answers()
        self._circuit.dropped()

    def settle(self, work: int) -> None:
        """The request is this much work."""
        self._lease.settle(work)

    def waits(self, leave: Callable[[], None]) -> None:
        """It waits for its first byte; `leave` is called when the replica is gone."""
        self._leave = leave
        if self.is_replica_gone:
            leave()

    def answers(self) -> None:
        """It waits no longer."""
        self._dispatch.waiting[self.replica.name].discard(self)

    def begins(self) -> None:
        """The first byte of an answer is there."""
        self._dispatch.answered_s[self.replica.name] = self._dispatch.now_s()

    def succeeded(self) -> None:
        """The replica works: it answered, be it that the request is wrong."""
        self._circuit.succeeded()
        self.begins()

    def failed(self) -> None:
        """By the replica's fault."""
        self._circuit.failed(self._dispatch.now_s())

    def leave(self) -> None:
        """The replica is gone: stop waiting for it."""
        self.is_replica_gone = True
        if self._leave is not None:
            self._leave()


class Dispatch:
    """Of one proxy."""

    def __init__(
        self,
        fleet: FleetView,
        settings: ProxySettings,
        *,
        rng: Random | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet, self.now_s = fleet, now_s
        self.outstanding = OutstandingWork()
        self.circuits: dict[str, Circuit] = defaultdict(
            lambda: Circuit(max_failures=settings.max_failures, open_s=settings.open_s)
        )
        self.waiting: dict[str, set[Assignment]] = defaultdict(set)
        self.answered_s: dict[str, float] = {}
        """When a replica last began or ended an answer."""
        self._max_in_flight = settings.max_in_flight
        self._policy = policy_named(settings.policy, rng or Random())

    def routable(self) -> list[Replica]:
        """Those that may be given a request now."""
        now_s = self.now_s()
        return [r for r in self.fleet.replicas() if r.takes_work and self.circuits[r.name].lets_pass(now_s)]

    def capacity(self) -> int:
        """Requests that the replicas take at a time. One that is being tried out takes one."""
        now_s = self.now_s()
        states = [self.circuits[r.name].state(now_s) for r in self.fleet.replicas() if r.takes_work]
        return sum({CircuitState.CLOSED: self._max_in_flight, CircuitState.HALF_OPEN: 1}.get(s, 0) for s in states)

    def pick(self, work: int, *, but: Container[str] = ()) -> Assignment | None:
        """A replica for so much work; None when none takes any."""
        replicas = {replica.name: replica for replica in self.routable() if replica.name not in but}
        loads = [self._load(name) for name in replicas]
        loads = [load for load in loads if load.num_in_flight < self._max_in_flight] or loads
        return Assignment(self, replicas[self._policy.choose(loads)], work) if loads else None

    def observe(self, name: str, *, is_answering: bool) -> None:
        """Tell the fleet what is seen of a replica; who waits for one that does not answer goes elsewhere."""
        self.fleet.observe(name, is_answering=is_answering, num_in_flight=self.outstanding.num_in_flight(name))
        if not is_answering:
            for assignment in list(self.waiting[name]):
                assignment.leave()

    def _load(self, name: str) -> ReplicaLoad:
        return ReplicaLoad(name, self.outstanding.work_of(name), self.outstanding.num_in_flight(name))
