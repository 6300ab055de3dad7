"""What a clip took before vLLM saw it, as histograms on vLLM's own `/metrics` page: `framefleet:decode_seconds` ...

vLLM times nothing of this. Each API server counts for itself, and vLLM's page adds them up, as it does its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

PHASES = ("fetch", "probe", "decode", "resize", "wait")
"""Of DecodeStats.seconds; `wait` is for a decoder, or for room in the budget."""
BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


def observe(seconds: Mapping[str, float]) -> None:
    """One clip. Where there is no Prometheus client, nobody counts."""
    waited_s = seconds.get("wait", 0.0) + seconds.get("queue", 0.0)
    for phase, histogram in _histograms().items():
        histogram.observe(waited_s if phase == "wait" else seconds.get(phase, 0.0))


@cache
def _histograms() -> dict[str, Any]:
    """Made at the first clip: vLLM forks its API servers after it has imported the plugin."""
    try:
        from prometheus_client import Histogram
    except ImportError:
        return {}
    return {
        phase: Histogram(f"framefleet:{phase}_seconds", f"{phase.capitalize()} of a clip", buckets=BOUNDS_S)
        for phase in PHASES
    }
