"""Runs trials for real: one load on a site, with everything read that can be, as a Trial.

An arm's settings may change what is asked (`concurrency`, `max_tokens`, `send`, `rate_per_s`, `endpoint`) and of which
set of clips (`clips`: a name among the runner's sets); what the arm's servers are is up to who starts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from framefleet.bench.clips import LoadClip
from framefleet.bench.evidence import IN_FLIGHT
from framefleet.bench.experiment import Arm, Measurement, Trial
from framefleet.bench.exposition import Exposition
from framefleet.bench.gauges import Series, Watch
from framefleet.bench.load import LoadResult, LoadSettings, run_load
from framefleet.bench.scheduler import Slot
from framefleet.bench.site import Gauges, Site, find_site, gauges_of, read_metrics_later
from framefleet.bench.stats import percentile
from framefleet.engine.openai_wire import error_of
from framefleet.errors import ConfigError, EngineLost, FramefleetError

ENGINE_PHASES = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "generation": "vllm:request_decode_time_seconds",
    "engine": "vllm:request_inference_time_seconds",
    "server_ttft": "vllm:time_to_first_token_seconds",
    "server_total": "vllm:e2e_request_latency_seconds",
}
"""Phase -> what vLLM calls it (its `decode` is of tokens)."""
_SHARES = (50, 95, 99)
_LOAD_FIELDS = frozenset({"concurrency", "max_tokens", "send", "rate_per_s", "num_requests", "duration_s", "endpoint"})


class TrialRunner:
    """`await runner(arm, slot)` is one trial; see RunTrial."""

    def __init__(
        self,
        load: LoadSettings,
        clip_sets: Mapping[str, Sequence[LoadClip]],
        engines: Sequence[str] = (),
        gpus: Sequence[int] | None = None,
    ) -> None:
        """`clip_sets`: name -> clips; `as_is` is the one that an arm has when it names none.

        `engines`: see `find_site`. Sites are looked at when first needed.
        """
        self.load, self.clip_sets, self._engines, self._gpus = load, clip_sets, engines, gpus
        self._seen: dict[str, tuple[Site, Gauges]] = {}

    def site(self, endpoint: str = "") -> tuple[Site, Gauges]:
        """Of an endpoint (the load's own when empty). Raises EngineLost."""
        endpoint = endpoint or self.load.endpoint
        if endpoint not in self._seen:
            site = find_site(endpoint, self._engines)
            self._seen[endpoint] = site, gauges_of(site, self._gpus)
        return self._seen[endpoint]

    async def __call__(self, arm: Arm, slot: Slot) -> Trial:
        """Raises what `run_load` raises, ConfigError for a setting that no load has, and where not a single request
        went well what the first of them failed by."""
        load, clips = self._asked(arm)
        site, gauges = self.site(load.endpoint)
        before = await read_metrics_later(site)
        with Watch(gauges.gauges) as watch:
            result = await run_load(load, clips)
        if result.measurements and all(one.error for one in result.measurements):
            raise _failure(result.measurements[0])
        counted = (await read_metrics_later(site)).since(before)
        return trial_of(arm, slot, result, counted, watch.series())

    def _asked(self, arm: Arm) -> tuple[LoadSettings, Sequence[LoadClip]]:
        changes = {name: value for name, value in arm.settings.items() if name in _LOAD_FIELDS}
        name = str(arm.settings.get("clips", "as_is"))
        if name not in self.clip_sets:
            raise ConfigError("no such set of clips", given=name, allowed=", ".join(self.clip_sets))
        return msgspec.structs.replace(self.load, **changes), self.clip_sets[name]


def trial_of(arm: Arm, slot: Slot, result: LoadResult, counted: Exposition, series: Series) -> Trial:
    """One trial of what was seen. Its measurements are those of the steady stretch, and all that failed. Pure."""
    steady = result.steady
    kept = {id(one) for one in steady}
    failed = tuple(one for one in result.measurements if one.error and id(one) not in kept)
    return Trial(
        arm=arm.name,
        arm_digest=arm.digest,
        block=slot.block,
        position=slot.position,
        wall_s=result.steady_s,
        measurements=(*steady, *failed),
        gauges=gauges_read(result, counted, series),
        phases_s=phases_of(result.measurements, counted),
        series=Series(series.times_s[1:], series.shown()),
    )


def phases_of(measurements: Sequence[Measurement], counted: Exposition) -> dict[str, dict[str, float]]:
    """Phase -> mean, p50, p95, p99. The client's: `ttft`, `total`. The engine's: see ENGINE_PHASES. Spans of ours.

    `before_engine` is all that stands before it (proxy, fetch, decode, preprocessing, transfer, and waiting for these):
    the client's time to the first token, less queue and prefill. A mean alone: differences of quantiles are none.
    """
    good = [one for one in measurements if not one.error]
    found = {"total": _client([one.total_s for one in good])}
    found["ttft"] = _client([one.ttft_s for one in good if one.ttft_s is not None])
    histograms = {**ENGINE_PHASES, **counted.spans()}
    for phase, histogram in histograms.items():
        if (mean := counted.mean(histogram)) is not None:
            quantiles = {f"p{share}": counted.quantile(histogram, share / 100) for share in _SHARES}
            found[phase] = {"mean": mean, **{name: q for name, q in quantiles.items() if q is not None}}
    ttft_s, queue_s, prefill_s = (found.get(phase, {}).get("mean") for phase in ("ttft", "queue", "prefill"))
    if ttft_s is not None and queue_s is not None and prefill_s is not None:
        found["before_engine"] = {"mean": max(0.0, ttft_s - queue_s - prefill_s)}
    return {phase: values for phase, values in found.items() if values}


def gauges_read(result: LoadResult, counted: Exposition, series: Series) -> dict[str, float]:
    """Shares of use, peaks and counts of a trial, by name. What could not be read is not there."""
    found: dict[str, float | None] = {
        "client/cpu": result.client.cpu_share,
        "client/late_s": result.client.late_mean_s,
        "client/late_p95_s": result.client.late_p95_s,
        "client/is_bottleneck": float(result.client.is_bottleneck),
        IN_FLIGHT: None if result.settings.rate_per_s else float(result.settings.concurrency),
        "engine/preemptions": counted.total("vllm:num_preemptions"),
        "cache/prefix_hits": _hit_rate(counted, "vllm:prefix_cache"),
        "cache/mm_hits": _hit_rate(counted, "vllm:mm_cache"),
        "requests/all": float(len(result.measurements)),
    }
    for name in series.values:
        if name.endswith("_s"):
            found[name.removesuffix("_s")] = series.rate(name)
        else:
            found[name] = series.mean(name)
            found[name + "_peak"] = series.peak(name)
    found["engine/running_share"] = series.share_above("engine/running", 0.0)
    found["engine/waiting_share"] = series.share_above("engine/waiting", 0.0)
    return {name: value for name, value in found.items() if value is not None}


def _failure(one: Measurement) -> FramefleetError:
    if one.status >= 400:
        return error_of(one.status, one.caption)
    return EngineLost("no request is answered", given=one.error, remedy="see the server's log")


def _client(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    quantiles = {f"p{share}": percentile(values, share / 100) for share in _SHARES}
    return {"mean": sum(values) / len(values), **quantiles}


def _hit_rate(counted: Exposition, name: str) -> float | None:
    queries, hits = counted.total(name + "_queries"), counted.total(name + "_hits")
    return hits / queries if queries and hits is not None else None
