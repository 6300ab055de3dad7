"""Prometheus metrics of one engine, under vLLM's names where they mean the same, so that one dashboard reads both."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from framefleet.engine.asking import AskingCaptioner
from framefleet.engine.question import Answer

LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
"""Bucket bounds as vLLM's."""
SPANS = ("fetch", "probe", "decode", "resize", "wait", "preprocess")
"""Phases of a clip before the model, as `framefleet:PHASE_seconds`."""
_LABELS = ("model_name", "engine")


class EngineMetrics:
    """What `/metrics` tells. Requests refused before they reach the engine count in `framefleet:requests` only."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, engine: AskingCaptioner, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._values = (model_name, "0")
        self._gauge("vllm:num_requests_running", "Requests in the model", lambda: engine.num_running)
        self._gauge("vllm:num_requests_waiting", "Requests before the model", lambda: engine.num_waiting)
        self._gauge("framefleet:engine_ready", "1 when the engine works", lambda: engine.is_ready)
        self._reading = self._gauge("framefleet:num_requests_reading", "Requests whose clip is read and decoded")
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Generated tokens")
        self._success = Counter(
            "vllm:request_success", "Answers", (*_LABELS, "finished_reason"), registry=self._registry
        )
        self._requests = Counter("framefleet:requests", "Responses", (*_LABELS, "status"), registry=self._registry)
        self._media = self._histogram("framefleet:media_seconds", "To read and decode the clip, and waiting", LATENCY_S)
        self._spans = {
            phase: self._histogram(f"framefleet:{phase}_seconds", f"{phase.capitalize()} of the clip", FIRST_TOKEN_S)
            for phase in SPANS
        }
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From the request to its first token", FIRST_TOKEN_S
        )
        self._phases = {
            phase: self._histogram(f"vllm:request_{phase}_time_seconds", f"{phase.capitalize()} phase", LATENCY_S)
            for phase in ("queue", "prefill", "decode", "inference")
        }
        self._total = self._histogram("vllm:e2e_request_latency_seconds", "From the request to its end", LATENCY_S)

    def reading(self, change: int) -> None:
        """One more (+1) or fewer (-1) request is having its clip read."""
        self._reading.inc(change)

    def read(self, seconds: float, phases_s: Mapping[str, float]) -> None:
        """A clip is read and decoded. `phases_s`: what a decoder did of it (DecodeStats.seconds), without waiting."""
        self._media.observe(seconds)
        spans = {**phases_s, "wait": phases_s.get("wait", 0.0) + phases_s.get("queue", 0.0)}
        for phase in SPANS[:-1]:
            self._spans[phase].observe(spans.get(phase, 0.0))

    def answered(self, answer: Answer, *, media_s: float, total_s: float) -> None:
        """An answer is complete."""
        seconds = answer.seconds
        prefill_s, generate_s = seconds.get("prefill", 0.0), seconds.get("generate", 0.0)
        queue_s = seconds.get("queue", 0.0)
        self._spans["preprocess"].observe(seconds.get("preprocess", 0.0))
        self._success.labels(*self._values, answer.finish_reason).inc()
        self._prompt_tokens.inc(answer.prompt_tokens)
        self._generation_tokens.inc(answer.completion_tokens)
        self._first_token.observe(media_s + seconds.get("preprocess", 0.0) + queue_s + prefill_s)
        self._phases["queue"].observe(queue_s)
        self._phases["prefill"].observe(prefill_s)
        self._phases["decode"].observe(max(0.0, generate_s - prefill_s))
        self._phases["inference"].observe(generate_s)
        self._total.observe(total_s)

    def responded(self, status: int) -> None:
        """A request ended with this HTTP status (499: the client went away)."""
        self._requests.labels(*self._values, str(status)).inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, about: str, function: object = None) -> Gauge:
        gauge = Gauge(name, about, _LABELS, registry=self._registry).labels(*self._values)
        if callable(function):
            gauge.set_function(function)
        return gauge

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, _LABELS, registry=self._registry).labels(*self._values)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, _LABELS, registry=self._registry, buckets=buckets).labels(*self._values)
