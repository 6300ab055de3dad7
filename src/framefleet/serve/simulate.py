"""A fleet in simulated time: how many replicas one proxy serves, and how evenly. Pure, seeded, no clock.

Clients keep a number of requests in flight (a closed loop). A request first takes the proxy's one core for a while (so
many seconds each, and so many per byte), in order of arrival; then the proxy's own policy picks a replica by the
estimated work. A replica's engine shares itself among what it holds: up to `saturating` requests each runs at full
speed, more slow each other down (continuous batching). What is simulated of the proxy is its routing code itself.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from framefleet.serve.outstanding import OutstandingWork, WorkLease
from framefleet.serve.routing import ReplicaLoad, policy_named


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """What is simulated. Costs are measured ones: see benchmarks/proxy."""

    speeds: tuple[float, ...]
    """Of each replica: requests of mean size per second when it is saturated."""
    policy: str = "least_work"
    in_flight: int = 48
    """Requests that clients keep in flight, per replica."""
    saturating: int = 16
    """Requests at which a replica reaches its speed."""
    proxy_request_s: float = 0.001
    """CPU of the proxy per request."""
    proxy_bytes_per_s: float = 300e6
    """Bytes of bodies per second of the proxy's CPU."""
    body_bytes: int = 500
    work_spread: float = 0.5
    """Of the true work of requests: sigma of a log-normal law with mean 1."""
    estimate_error: float = 0.3
    """Of the estimated work around the true: sigma of a log-normal factor."""
    num_requests: int = 300
    """Answered per replica, after as many as are in flight."""
    seed: int = 0

    @property
    def proxy_s(self) -> float:
        """CPU of the proxy for one request."""
        return self.proxy_request_s + self.body_bytes / self.proxy_bytes_per_s


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came of it."""

    requests_per_s: float
    proxy_busy: float
    """Share of the time that the proxy's core was at work."""
    shares: Mapping[str, float]
    """Of the answered requests, by replica."""
    p50_s: float
    p95_s: float


class _Replica:
    """Requests share it; `progress` is what each has received since the start."""

    def __init__(self, name: str, speed: float, saturating: int) -> None:
        self.name, self.speed, self.saturating = name, speed, saturating
        self.progress = self.seen_s = 0.0
        self.ends: list[tuple[float, int]] = []
        self.version = 0

    def advance(self, now_s: float) -> None:
        self.progress += (now_s - self.seen_s) * self._rate()
        self.seen_s = now_s
        self.version += 1

    def next_end_s(self) -> float:
        return self.seen_s + max(0.0, self.ends[0][0] - self.progress) / self._rate() if self.ends else math.inf

    def _rate(self) -> float:
        return self.speed / max(len(self.ends), self.saturating)


class _Simulation:
    def __init__(self, fleet: SimulatedFleet) -> None:
        self.fleet, self.rng = fleet, Random(fleet.seed)
        self.policy = policy_named(fleet.policy, self.rng)
        self.replicas = {f"r{i}": _Replica(f"r{i}", s, fleet.saturating) for i, s in enumerate(fleet.speeds)}
        self.outstanding = OutstandingWork()
        self.events: list[tuple[float, int, str, int]] = []
        """Time, number, replica ("": the proxy has done a request), version of the replica."""
        self.num_events = 0
        self.proxy_free_s = self.proxy_busy_s = 0.0
        self.arrived_s: dict[int, float] = {}
        self.leases: dict[int, WorkLease] = {}
        self.answered: list[tuple[float, float, str]] = []
        """When, after how long, by whom."""

    def run(self) -> SimulatedRun:
        num_clients = self.fleet.in_flight * len(self.replicas)
        for client in range(num_clients):
            self._arrive(client, 0.0)
        wanted = num_clients + self.fleet.num_requests * len(self.replicas)
        while len(self.answered) < wanted:
            now_s, number, name, version = heapq.heappop(self.events)
            if not name:
                self._route(number, now_s)
            elif version == self.replicas[name].version:
                self._answer(self.replicas[name], now_s)
        return self._summary(num_clients)

    def _arrive(self, number: int, now_s: float) -> None:
        self.arrived_s[number] = now_s
        self.proxy_free_s = max(self.proxy_free_s, now_s) + self.fleet.proxy_s
        self.proxy_busy_s += self.fleet.proxy_s
        heapq.heappush(self.events, (self.proxy_free_s, number, "", 0))

    def _route(self, number: int, now_s: float) -> None:
        true = self._lognormal(self.fleet.work_spread)
        estimated = true * self._lognormal(self.fleet.estimate_error)
        loads = [
            ReplicaLoad(name, self.outstanding.work_of(name), self.outstanding.num_in_flight(name))
            for name in self.replicas
        ]
        replica = self.replicas[self.policy.choose(loads)]
        self.leases[number] = self.outstanding.lease(replica.name, round(estimated * 1e6))
        replica.advance(now_s)
        heapq.heappush(replica.ends, (replica.progress + true, number))
        self._expect(replica)

    def _answer(self, replica: _Replica, now_s: float) -> None:
        replica.advance(now_s)
        _, number = heapq.heappop(replica.ends)
        self.leases.pop(number).release()
        self.answered.append((now_s, now_s - self.arrived_s.pop(number), replica.name))
        self._expect(replica)
        self._arrive(number, now_s)

    def _expect(self, replica: _Replica) -> None:
        self.num_events += 1
        if replica.ends:
            heapq.heappush(self.events, (replica.next_end_s(), self.num_events, replica.name, replica.version))

    def _lognormal(self, sigma: float) -> float:
        return self.rng.lognormvariate(-sigma * sigma / 2, sigma)

    def _summary(self, num_warm_up: int) -> SimulatedRun:
        counted = self.answered[num_warm_up:]
        end_s, start_s = counted[-1][0], self.answered[num_warm_up - 1][0]
        seconds = sorted(after_s for _, after_s, _ in counted)
        by = Counter(name for _, _, name in counted)
        return SimulatedRun(
            requests_per_s=len(counted) / (end_s - start_s),
            proxy_busy=min(1.0, self.proxy_busy_s / end_s),
            shares={name: by[name] / len(counted) for name in self.replicas},
            p50_s=seconds[len(seconds) // 2],
            p95_s=seconds[len(seconds) * 95 // 100],
        )


def simulate(fleet: SimulatedFleet) -> SimulatedRun:
    """Run it. The same settings give the same figures."""
    return _Simulation(fleet).run()


def proxy_limit_per_s(fleet: SimulatedFleet) -> float:
    """Requests per second that the proxy's one core can pass on, whatever the number of replicas."""
    return 1 / fleet.proxy_s
