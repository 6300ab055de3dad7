"""Prometheus metrics of the proxy. `grafana.json` beside this draws them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from framefleet.serve.admission import Admission, Priority
from framefleet.serve.circuit import CircuitState
from framefleet.serve.dispatch import Dispatch
from framefleet.serve.recent import RecentRequests
from framefleet.serve.replica import ReplicaState

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "framefleet_proxy_"


class ProxyMetrics:
    """What `/metrics` tells."""

    def __init__(self, dispatch: Dispatch, admission: Admission) -> None:
        self.recent = RecentRequests()
        self._registry = CollectorRegistry()
        self._registry.register(_Standing(dispatch, admission))
        self.requests = self._counter("requests", "Requests that ended", ("replica", "status", "end", "priority"))
        self.retries = self._counter(
            "retries", "Attempts that failed and were followed by another", ("replica", "reason")
        )
        self.failures = self._counter("replica_failures", "Failures by a replica's fault", ("replica", "reason"))
        self.received = self._counter("received_bytes", "Of requests' bodies", ())
        self.sent = self._counter("sent_bytes", "Of answers' bodies", ())
        self.queue = self._histogram("queue_seconds", "Waited for a replica", ("priority",))
        self.first_byte = self._histogram("upstream_first_byte_seconds", "From sending to the first byte", ("replica",))
        self.total = self._histogram("total_seconds", "From the request to its end", ("priority",))

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, labels: tuple[str, ...]) -> Counter:
        return Counter(_PREFIX + name, about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(_PREFIX + name, about, labels, registry=self._registry, buckets=SECONDS)


class _Standing(Collector):
    """Gauges, read when somebody asks."""

    def __init__(self, dispatch: Dispatch, admission: Admission) -> None:
        self._dispatch, self._admission = dispatch, admission

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        queue = GaugeMetricFamily(_PREFIX + "queue_length", "Requests that wait", labels=["priority"])
        for priority in Priority:
            queue.add_metric([priority.word], self._admission.num_waiting(priority))
        yield queue
        yield GaugeMetricFamily(_PREFIX + "capacity", "Requests at a time", value=self._dispatch.capacity())
        yield from self._of_replicas()

    def _of_replicas(self) -> Iterator[GaugeMetricFamily]:
        dispatch, now_s = self._dispatch, self._dispatch.now_s()
        state = GaugeMetricFamily(_PREFIX + "replica_state", "1 for the state it is in", labels=["replica", "state"])
        shut = GaugeMetricFamily(_PREFIX + "circuit_open", "1 while it is left alone", labels=["replica"])
        running = GaugeMetricFamily(_PREFIX + "in_flight", "Requests there now", labels=["replica"])
        work = GaugeMetricFamily(_PREFIX + "outstanding_work", "Pixels of frames there now", labels=["replica"])
        for replica in dispatch.fleet.replicas():
            name = replica.name
            for one in ReplicaState:
                state.add_metric([name, one], replica.state is one)
            shut.add_metric([name], dispatch.circuits[name].state(now_s) is not CircuitState.CLOSED)
            running.add_metric([name], dispatch.outstanding.num_in_flight(name))
            work.add_metric([name], dispatch.outstanding.work_of(name))
        yield from (state, shut, running, work)
