"""What `/metrics` said before and after, and what happened in between. Pure but for the parser's import.

Of several servers the counts are added, and levels (a share of KV cache in use) are averaged. vLLM 0.25 to 0.32 and
our own engine server share the names; `framefleet:*_seconds` are spans that only ours and our plugin have.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from framefleet.errors import MissingLibrary

SPAN_PREFIX = "framefleet:"


class Exposition(msgspec.Struct, frozen=True, kw_only=True):
    """Values by sample name, over all labels and servers."""

    values: dict[str, float] = {}
    """Sums."""
    counts: dict[str, int] = {}
    """How many were added up in each."""
    buckets: dict[str, dict[float, float]] = {}
    """Histogram -> upper bound -> how many were at most that."""

    def since(self, before: Exposition) -> Exposition:
        """What was counted after `before`; levels are differences too and of no use."""
        values = {name: value - before.values.get(name, 0.0) for name, value in self.values.items()}
        buckets = {
            name: {bound: n - before.buckets.get(name, {}).get(bound, 0.0) for bound, n in bounds.items()}
            for name, bounds in self.buckets.items()
        }
        return Exposition(values=values, counts=self.counts, buckets=buckets)

    def total(self, name: str) -> float | None:
        """Of a counter, with or without the suffix `_total`; None where nobody tells."""
        return self.values.get(name, self.values.get(name + "_total"))

    def level(self, name: str) -> float | None:
        """Mean of a gauge over servers."""
        return self.values[name] / self.counts[name] if name in self.values else None

    def mean(self, histogram: str) -> float | None:
        """Of what was observed; None where nothing was."""
        count = self.values.get(histogram + "_count", 0.0)
        return self.values[histogram + "_sum"] / count if count > 0 else None

    def quantile(self, histogram: str, share: float) -> float | None:
        """Interpolated within its bucket; the highest finite bound where it lies beyond. None where nothing was."""
        bounds = sorted(self.buckets.get(histogram, {}).items())
        if not bounds or bounds[-1][1] <= 0:
            return None
        wanted, low, below = share * bounds[-1][1], 0.0, 0.0
        for bound, count in bounds:
            if count >= wanted:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (wanted - below) / max(count - below, 1e-12)
            low, below = bound, count
        return low

    def spans(self) -> dict[str, str]:
        """Phase -> histogram, of our own spans (`framefleet:decode_seconds` is phase `decode`)."""
        names = (name.removesuffix("_count") for name in self.values if name.endswith("_seconds_count"))
        return {n[len(SPAN_PREFIX) : -len("_seconds")]: n for n in names if n.startswith(SPAN_PREFIX)}


def parse_exposition(pages: Iterable[str]) -> Exposition:
    """Prometheus text of one server or more. Raises MissingLibrary without prometheus_client."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise MissingLibrary(
            "reading /metrics needs a library", given=str(error), remedy="framefleet[bench]"
        ) from error

    values: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    buckets: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for sample in (one for page in pages for family in text_string_to_metric_families(page) for one in family.samples):
        if sample.name.endswith("_created") or math.isnan(sample.value):
            continue
        if sample.name.endswith("_bucket"):
            buckets[sample.name.removesuffix("_bucket")][float(sample.labels["le"])] += sample.value
            continue
        values[sample.name] += sample.value
        counts[sample.name] += 1
    return Exposition(values=dict(values), counts=dict(counts), buckets={k: dict(v) for k, v in buckets.items()})
