"""A fleet made of numbers: the shipped fake that `diagnose` is tested against. Virtual time, seeded, no sleeping.

A closed loop of requests walks client, proxy, fetch, decode (every second clip on NVDEC, the others on the CPU),
preprocessing, transfer, prefill and generation; each stage has lanes and a queue. A KV-cache slot is held from before
the prefill until the last token. Bottlenecks are planted as the lowest capacity; the other stages have 1.7 to 4
times it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import msgspec

from framefleet.bench.diagnose import Ablation, Evidence, Stage, StageReading
from framefleet.bench.stats import compare_runs

LANES: dict[Stage, int] = {
    "client": 1, "proxy": 1, "fetch": 8, "cpu_decode": 8, "nvdec": 2, "preprocess": 4, "transfer": 2,
    "vision_prefill": 1, "generation": 24,
}  # fmt: skip
PATHS: tuple[tuple[Stage, ...], ...] = tuple(
    ("client", "proxy", "fetch", decoder, "preprocess", "transfer", "kv_cache", "vision_prefill", "generation")
    for decoder in ("cpu_decode", "nvdec")
)
COST_LEFT: dict[Ablation, dict[Stage, float]] = {
    "decoded_before": dict.fromkeys(("fetch", "cpu_decode", "nvdec"), 0.0),
    "one_token": {"generation": 1 / 64},
    "half_frames": dict.fromkeys(("cpu_decode", "nvdec", "preprocess", "transfer", "vision_prefill"), 0.5),
}
RATE_PER_S = 10.0
"""Capacity of a planted bottleneck."""
SPREAD = 0.3
"""Standard deviation of service times, over their mean."""
GAUGE_NOISE = 0.01
NUM_BATCHES = 5
BATCH_REQUESTS = 120


class StubFleet(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated."""

    service_s: dict[Stage, float]
    """Mean per visit."""
    kv_slots: int
    in_flight: int


class StubRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one simulated run showed, after its warm-up."""

    rates_per_s: tuple[float, ...]
    """Per batch of requests."""
    total_s: float
    stages: dict[Stage, StageReading]


def plant(bottlenecks: Sequence[Stage], seed: int) -> StubFleet:
    """A fleet that these stages limit alike (within 1 %); the others' capacities are drawn from the seed."""
    rng = random.Random(f"plant/{seed}")
    rates = {
        stage: RATE_PER_S * (rng.uniform(0.99, 1.01) if stage in bottlenecks else rng.uniform(1.7, 4.0))
        for stage in get_args(Stage)
    }
    share = {"cpu_decode": 0.5, "nvdec": 0.5}
    service_s = {stage: lanes / rates[stage] / share.get(stage, 1.0) for stage, lanes in LANES.items()}
    kv_slots = round(rates["kv_cache"] * (service_s["vision_prefill"] + service_s["generation"]))
    in_service = RATE_PER_S * sum(service_s[stage] * share.get(stage, 1.0) for stage in service_s)
    return StubFleet(service_s=service_s, kv_slots=kv_slots, in_flight=round(1.5 * in_service) + 40)


def observe(fleet: StubFleet, seed: int) -> Evidence:
    """Run it plainly and under each ablation, and read it as gauges would: with an error of 1 %."""
    plain = simulate(fleet, None, seed)
    gains = {
        ablation: compare_runs(
            plain.rates_per_s, simulate(fleet, ablation, seed).rates_per_s, smallest_effect=0.05
        ).gain
        for ablation in COST_LEFT
    }
    rng = random.Random(f"gauges/{seed}")
    stages = {stage: _blurred(reading, rng) for stage, reading in plain.stages.items()}
    return Evidence(total_s=plain.total_s, stages=stages, ablations=gains)


def simulate(fleet: StubFleet, ablation: Ablation | None, seed: int) -> StubRun:
    """One run in virtual time: as many requests as are in flight, twice, to warm up, then the batches."""
    run = _Simulation(fleet, COST_LEFT[ablation] if ablation else {}, random.Random(f"{ablation}/{seed}"))
    run.until(2 * fleet.in_flight)
    run.begin_reading()
    ends = [run.now_s]
    for batch in range(1, NUM_BATCHES + 1):
        run.until(2 * fleet.in_flight + batch * BATCH_REQUESTS)
        ends.append(run.now_s)
    rates = tuple(BATCH_REQUESTS / (end - start) for start, end in pairwise(ends))
    return StubRun(rates_per_s=rates, total_s=run.mean_total_s(), stages=run.readings())


class _Station:
    """Lanes with one queue, and what is counted of them."""

    def __init__(self, lanes: int) -> None:
        self.lanes = self.free = lanes
        self.queue: deque[tuple[int, float]] = deque()
        self.reset(0.0)

    def reset(self, now_s: float) -> None:
        self.since_s = self.changed_s = now_s
        self.busy_s = self.wait_s = self.service_s = 0.0
        self.num_begun = self.num_ended = 0

    def change(self, now_s: float, freed: int) -> None:
        self.busy_s += (self.lanes - self.free) * (now_s - self.changed_s)
        self.free += freed
        self.changed_s = now_s

    def reading(self, now_s: float) -> StageReading:
        self.change(now_s, 0)
        return StageReading(
            utilisation=self.busy_s / self.lanes / (now_s - self.since_s),
            wait_s=self.wait_s / max(self.num_begun, 1),
            service_s=self.service_s / max(self.num_ended, 1),
        )


class _Simulation:
    """Events in order of virtual time. Requests are numbers; a place is an index into the request's path."""

    def __init__(self, fleet: StubFleet, cost_left: dict[Stage, float], rng: random.Random) -> None:
        self.now_s, self.num_done, self.total_s = 0.0, 0, 0.0
        self._rng, self._done_before = rng, 0
        self._means_s = {stage: mean * cost_left.get(stage, 1.0) for stage, mean in fleet.service_s.items()}
        self._stations = {stage: _Station(lanes) for stage, lanes in LANES.items()}
        self._stations["kv_cache"] = _Station(fleet.kv_slots)
        self._events: list[tuple[float, int, int, float]] = []
        self._begun_s: dict[int, float] = {}
        self._granted_s: dict[int, float] = {}
        self._sigma = math.sqrt(math.log1p(SPREAD**2))
        self._num_begun = 0
        for _ in range(fleet.in_flight):
            self._begin()

    def until(self, num_done: int) -> None:
        """Go on until so many requests are done."""
        while self.num_done < num_done:
            self.now_s, request, place, service_s = heapq.heappop(self._events)
            self._leave(PATHS[request % 2][place], service_s)
            self._arrive(request, place + 1)

    def begin_reading(self) -> None:
        for station in self._stations.values():
            station.reset(self.now_s)
        self.total_s, self._done_before = 0.0, self.num_done

    def mean_total_s(self) -> float:
        return self.total_s / (self.num_done - self._done_before)

    def readings(self) -> dict[Stage, StageReading]:
        return {stage: station.reading(self.now_s) for stage, station in self._stations.items()}

    def _begin(self) -> None:
        request = self._num_begun
        self._num_begun += 1
        self._begun_s[request] = self.now_s
        self._arrive(request, 0)

    def _arrive(self, request: int, place: int) -> None:
        path = PATHS[request % 2]
        if place == len(path):
            self._end(request)
            return
        station = self._stations[path[place]]
        if station.free:
            self._enter(request, place, self.now_s)
        else:
            station.queue.append((request, self.now_s))

    def _enter(self, request: int, place: int, arrived_s: float) -> None:
        stage = PATHS[request % 2][place]
        station = self._stations[stage]
        station.change(self.now_s, -1)
        station.num_begun += 1
        station.wait_s += self.now_s - arrived_s
        if stage == "kv_cache":  # a slot takes no time of its own; `_end` gives it back
            self._granted_s[request] = self.now_s
            self._arrive(request, place + 1)
            return
        service_s = self._means_s[stage] * self._rng.lognormvariate(-(self._sigma**2) / 2, self._sigma)
        heapq.heappush(self._events, (self.now_s + service_s, request, place, service_s))

    def _leave(self, stage: Stage, service_s: float) -> None:
        station = self._stations[stage]
        station.change(self.now_s, 1)
        station.num_ended += 1
        station.service_s += service_s
        if station.queue:
            request, arrived_s = station.queue.popleft()
            self._enter(request, PATHS[request % 2].index(stage), arrived_s)

    def _end(self, request: int) -> None:
        self.num_done += 1
        self.total_s += self.now_s - self._begun_s.pop(request)
        self._leave("kv_cache", self.now_s - self._granted_s.pop(request))
        self._begin()


def _blurred(reading: StageReading, rng: random.Random) -> StageReading:
    read = (reading.utilisation or 0.0) * (1 + rng.gauss(0, GAUGE_NOISE))
    return msgspec.structs.replace(reading, utilisation=min(max(read, 0.0), 1.0))
