"""From trials on a real fleet to the Evidence that `diagnose` judges. Pure.

What each stage's share of use comes from, best first:

- client: its own CPU (one event loop: one core).
- proxy: the CPU of its process (one core), where it runs on this machine.
- cpu_decode, nvdec: the busy slots of our decode service; else our decoder's spans times the request rate, over the
  decode lanes; NVML's decoder share.
- cpu_decode + preprocess share the engine's API server. Their work is known from the trials with one request at a
  time, where nothing waits (with clips as they are, and decoded before: the difference is decoding); what requests take
  longer than that under load is waiting, and a queue that long tells how busy the server must be.
- vision_prefill + generation share the GPU (without NVML: the engine's running at all). That a kernel runs is no proof
  that no more would fit: so this share is no more than what the ablations leave room for. How much of it is generation
  follows from what one output token gains.
- kv_cache: vLLM's share in use.
- all that runs on the machine's cores shares them, by the CPU of each process.
- transfer: the share of PCIe's bandwidth; not read without NVML.
- fetch: clips from files of the machine, or inside the request, have none; from URLs, our decoder's span tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from framefleet.bench.diagnose import EASES, Ablation, Evidence, Lanes, Stage, StageReading
from framefleet.bench.experiment import Trial
from framefleet.bench.stats import Interval, compare_runs

BATCHES = 3
"""Per trial, to know the spread of its rate."""
LEAST_IN_BATCH = 5
IN_FLIGHT = "client/in_flight"
"""Gauge: requests in flight of a closed loop."""
NVDEC_IN_USE = 0.05
_LEAST_PART_S = 1e-6


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the readings have to be held against."""

    cores: float
    decode_lanes: float
    """Clips that the engines decode at a time."""
    is_gpu: bool
    clips_are_remote: bool = False
    has_proxy: bool = False


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """All trials of a diagnosis."""

    plain: tuple[Trial, ...]
    ablations: dict[Ablation, tuple[Trial, ...]]
    alone: tuple[Trial, ...] = ()
    """One request at a time."""
    alone_decoded: tuple[Trial, ...] = ()
    """The same with clips decoded before."""


def evidence_of(observed: Observed, setup: Setup, *, smallest_effect: float = 0.05) -> Evidence:
    """See the module. What was not read is None in a stage, or the stage is left out."""
    gains = gains_of(observed, smallest_effect)
    view = _View(observed, setup, gains)
    stages: dict[Stage, StageReading] = {
        "client": view.client(), "preprocess": view.preprocess(), "transfer": view.transfer(),
        **view.decoders(), **view.proxy(), **view.kv_cache(), **view.fetch(), **view.engine_stages(),
    }  # fmt: skip
    shared = tuple(one for one in (view.api_server(), view.engine(), view.machine()) if one is not None)
    return Evidence(total_s=view.phase("total"), stages=stages, ablations=gains, shared=shared)


def gains_of(observed: Observed, smallest_effect: float) -> dict[Ablation, Interval]:
    """What each ablation gains in requests/s; those with too few answers are left out."""
    base = [rate for trial in observed.plain for rate in batch_rates(trial)]
    found = {}
    for ablation, trials in observed.ablations.items():
        rates = [rate for trial in trials for rate in batch_rates(trial)]
        if min(len(base), len(rates)) >= 2:
            found[ablation] = compare_runs(base, rates, smallest_effect=smallest_effect).gain
    return found


def batch_rates(trial: Trial, batches: int = BATCHES) -> list[float]:
    """Requests/s of parts of a trial, in order; fewer parts where there are few answers.

    In a closed loop by Little's law: the requests in flight over the mean seconds of as many requests. Equally long
    answers keep requests in step, wave after wave, and a count of ends in some stretch is then a wave more or less.
    """
    if in_flight := trial.gauges.get(IN_FLIGHT):
        return _rates_of_closed_loop(trial, round(in_flight), batches)
    ends = sorted(one.started_s + one.total_s for one in trial.measurements if not one.error)
    count = min(batches, max(1, (len(ends) - 1) // LEAST_IN_BATCH))
    if len(ends) < 2 or trial.wall_s <= 0:
        return []
    if count == 1:
        return [len(ends) / trial.wall_s]
    marks = [round(part * (len(ends) - 1) / count) for part in range(count + 1)]
    return [(b - a) / (ends[b] - ends[a]) for a, b in pairwise(marks) if ends[b] > ends[a]]


def _rates_of_closed_loop(trial: Trial, in_flight: int, batches: int) -> list[float]:
    good = sorted((one.started_s, one.total_s) for one in trial.measurements if not one.error)
    count = min(batches, max(1, len(good) // max(in_flight, LEAST_IN_BATCH)))
    marks = [round(part * len(good) / count) for part in range(count + 1)]
    parts = [[total_s for _, total_s in good[a:b]] for a, b in pairwise(marks)]
    return [in_flight * len(part) / sum(part) for part in parts if len(part) >= 2 and sum(part) > 0]


def utilisation_of_queue(length: float) -> float:
    """How busy a server must be for a queue of this mean length: rho of rho^2 / (1 - rho) = length (one lane, random
    arrivals and services). More lanes, or steadier ones, are busier still: so it errs on the low side."""
    return (math.sqrt(length * length + 4 * length) - length) / 2


class _View:
    """Means over the plain trials, and what follows from them."""

    def __init__(self, observed: Observed, setup: Setup, gains: Mapping[Ablation, Interval]) -> None:
        self._observed, self._setup, self._gains = observed, setup, gains
        rates = [rate for trial in observed.plain for rate in batch_rates(trial)]
        self.rate_per_s = _mean(rates) or 0.0
        used = self.gauge("gpu/nvdec") or 0.0
        self.decode_stage: Stage = "nvdec" if used >= NVDEC_IN_USE else "cpu_decode"

    def phase(self, name: str, trials: Sequence[Trial] | None = None) -> float:
        """Mean seconds; 0 where unknown."""
        return _mean([t.phases_s[name]["mean"] for t in trials or self._observed.plain if name in t.phases_s]) or 0.0

    def gauge(self, name: str) -> float | None:
        return _mean([trial.gauges[name] for trial in self._observed.plain if name in trial.gauges])

    # What a request takes before the engine, alone and under load.

    @property
    def decode_s(self) -> float:
        """Of one clip without waiting: by spans, else by what clips decoded before save."""
        spans = sum(self.phase(name, self._observed.alone) for name in ("probe", "decode", "resize"))
        saved = self.phase("before_engine", self._observed.alone) - self.phase(
            "before_engine", self._observed.alone_decoded
        )
        return spans or max(0.0, saved)

    @property
    def rest_s(self) -> float:
        """Preprocessing and transfer of one clip without waiting."""
        return max(0.0, self.phase("before_engine", self._observed.alone) - self.decode_s)

    @property
    def waiting_s(self) -> float:
        """Before the engine, under load."""
        return max(0.0, self.phase("before_engine") - self.decode_s - self.rest_s)

    # Stages.

    def client(self) -> StageReading:
        return StageReading(
            utilisation=self.gauge("client/cpu"), wait_s=self.gauge("client/late_s") or 0.0, service_s=0.0
        )

    def proxy(self) -> dict[Stage, StageReading]:
        if not self._setup.has_proxy:
            return {}
        cpu = self.gauge("cpu/proxy")
        return {"proxy": StageReading(utilisation=cpu, wait_s=0.0, service_s=(cpu or 0.0) / max(self.rate_per_s, 1e-9))}

    def fetch(self) -> dict[Stage, StageReading]:
        if not self._setup.clips_are_remote:
            return {}
        return {"fetch": StageReading(utilisation=None, wait_s=0.0, service_s=self.phase("fetch"))}

    def decoders(self) -> dict[Stage, StageReading]:
        """Both kinds of silicon where a decode service has both; else the one in use."""
        wait_s = self.waiting_s * self.decode_s / max(self.decode_s + self.rest_s, _LEAST_PART_S)
        found: dict[Stage, StageReading] = {}
        kinds: tuple[tuple[str, Stage], ...] = (("cpu", "cpu_decode"), ("nvdec", "nvdec"))
        for name, stage in kinds:
            busy, slots = self.gauge(f"decode/{name}"), self.gauge(f"decode/{name}_slots")
            if busy is not None and slots:
                found[stage] = StageReading(
                    utilisation=min(busy / slots, 1.0), wait_s=wait_s, service_s=busy / max(self.rate_per_s, 1e-9)
                )
        return found or {self.decode_stage: self._decode(wait_s)}

    def _decode(self, wait_s: float) -> StageReading:
        spans_s = sum(self.phase(name) for name in ("probe", "decode", "resize"))
        busy = self.rate_per_s * (spans_s or self.decode_s) / self._setup.decode_lanes
        if self.decode_stage == "nvdec":
            busy = self._no_more_than_ablations_leave(self.gauge("gpu/nvdec") or 0.0, {"nvdec"})
        return StageReading(utilisation=min(busy, 1.0), wait_s=wait_s, service_s=spans_s or self.decode_s)

    def preprocess(self) -> StageReading:
        wait_s = self.waiting_s * self.rest_s / max(self.decode_s + self.rest_s, _LEAST_PART_S)
        return StageReading(utilisation=None, wait_s=wait_s, service_s=self.phase("preprocess") or self.rest_s)

    def transfer(self) -> StageReading:
        return StageReading(utilisation=self.gauge("gpu/pcie"), wait_s=0.0, service_s=0.0)

    def kv_cache(self) -> dict[Stage, StageReading]:
        used = self.gauge("engine/kv_use")
        if used is None:
            return {}
        reading = StageReading(utilisation=used, wait_s=self.phase("queue"), service_s=self.phase("engine"))
        return {"kv_cache": reading}

    def engine_stages(self) -> dict[Stage, StageReading]:
        """Their use is that of the lanes they share; the engine's queue stands before the prefill."""
        return {
            "vision_prefill": StageReading(
                utilisation=None, wait_s=self.phase("queue"), service_s=self.phase("prefill")
            ),
            "generation": StageReading(utilisation=None, wait_s=0.0, service_s=self.phase("generation")),
        }

    # Lanes that stages share.

    def api_server(self) -> Lanes | None:
        """None where it was never seen with one request at a time. What waits for a decoder of our own does not wait
        here, and what a decode service does is not done here."""
        work: dict[Stage, float] = {"cpu_decode": self.decode_s, "preprocess": self.rest_s}
        if self.decode_stage == "nvdec" or self.gauge("decode/cpu_slots") is not None:
            del work["cpu_decode"]
        work_s = sum(work.values())
        if work_s < _LEAST_PART_S:
            return None
        queued = self.rate_per_s * max(0.0, self.waiting_s - self.phase("wait"))
        lanes = max(self._setup.decode_lanes, 1.0)
        busy = max(utilisation_of_queue(queued), min(1.0, self.rate_per_s * work_s / lanes))
        return Lanes("API server", {stage: busy * seconds / work_s for stage, seconds in work.items()})

    def engine(self) -> Lanes | None:
        busy = self.gauge("gpu/busy")
        if busy is None:
            busy = self.gauge("engine/running_share")
        if busy is None:
            return None
        busy = self._no_more_than_ablations_leave(busy, {"vision_prefill", "generation"})
        part = self._generation_part()
        return Lanes("GPU" if self._setup.is_gpu else "engine", _split(busy, part))

    def machine(self) -> Lanes | None:
        """The cores, by what was seen of each role."""
        cores = self._setup.cores
        roles = {
            role: self.gauge(f"cpu/{role}") for role in ("client", "proxy", "decode_worker", "api_server", "engine")
        }
        if roles["api_server"] is None:
            return None
        share = {role: (used or 0.0) / cores for role, used in roles.items()}
        decode_part = 0.0
        if not roles["decode_worker"]:
            decode_part = self.decode_s / max(self.decode_s + self.rest_s, _LEAST_PART_S)
        busy: dict[Stage, float] = {
            "client": share["client"],
            "proxy": share["proxy"],
            self.decode_stage: share["decode_worker"] + share["api_server"] * decode_part,
            "preprocess": share["api_server"] * (1 - decode_part),
        }
        generation = _split(share["engine"], self._generation_part())
        return Lanes("CPU cores", {stage: min(part, 1.0) for stage, part in {**busy, **generation}.items() if part > 0})

    def _generation_part(self) -> float:
        """Of the engine's time: what one output token instead of many saves."""
        gain = self._gains.get("one_token")
        if gain is None:
            inside_s = self.phase("prefill") + self.phase("generation")
            return self.phase("generation") / inside_s if inside_s else 0.5
        return max(0.0, gain.estimate / (1 + gain.estimate))

    def _no_more_than_ablations_leave(self, busy: float, stages: set[Stage]) -> float:
        """A gain of g from what does not touch these stages shows that they were idle for g / (1 + g) of the time."""
        for ablation, gain in self._gains.items():
            if EASES[ablation].isdisjoint(stages) and gain.low > 0:
                busy = min(busy, 1 / (1 + gain.low))
        return busy


def _split(busy: float, generation_part: float) -> dict[Stage, float]:
    return {"vision_prefill": busy * (1 - generation_part), "generation": busy * generation_part}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
