"""What is asked, of what, and what was seen: Experiment / Arm / Trial / Measurement. Pure.

The question, the workload, the primary metric and the smallest effect worth having are fixed before the first trial,
and their digest names the file of trials: another question is another file. Every measurement is kept; figures
are computed from them, never kept instead of them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from framefleet.bench.gauges import Series
from framefleet.bench.stats import percentile
from framefleet.errors import ConfigError

Metric = Literal["requests_per_s", "tokens_per_s", "total_p50_s", "total_p95_s", "total_p99_s"]
WARM_UP = -1
"""The block of trials that are recorded and never judged."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every arm is asked, alike."""

    clips: tuple[str, ...]
    """Content digests, in the order of asking."""
    frame_policy: dict[str, Any]
    prompt: str
    max_output_tokens: int


class Arm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting under test."""

    name: str
    settings: dict[str, str | int | float | bool]

    @property
    def digest(self) -> str:
        """Of the settings alone (12 hex digits): an arm that is renamed is still the same arm."""
        return _digest(self.settings)


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question with all that decides its answer. The first arm is what the others are compared with.

    Raises ConfigError for fewer than two arms, names that repeat, no clips, a smallest effect or confidence that is out
    of range, or a block count below two.
    """

    question: str
    workload: Workload
    arms: tuple[Arm, ...]
    metric: Metric
    smallest_effect: float
    """The least relative change that would make anyone switch (0.05 is 5 %)."""
    confidence: float = 0.95
    """Of all the comparisons with the first arm together."""
    min_blocks: int = 3
    max_blocks: int = 20
    time_limit_s: float = 3600.0
    """Of trial time, over all resumptions."""
    versions: dict[str, str] = {}
    """Of everything that may change the answer (framefleet, the engine, the driver, the model)."""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(names) < 2 or len(set(names)) < len(names):
            raise _wrong("arms", names, "two or more, each with a name of its own")
        if not self.workload.clips:
            raise _wrong("workload", "no clips", "one clip or more")
        if not 0 < self.smallest_effect < 1:
            raise _wrong("smallest effect", self.smallest_effect, "above 0 and below 1 (0.05 is 5 %)")
        if not 0 < self.confidence < 1:
            raise _wrong("confidence", self.confidence, "above 0 and below 1")
        if not 2 <= self.min_blocks <= self.max_blocks:
            raise _wrong("blocks", (self.min_blocks, self.max_blocks), "at least two, and no more than the most")
        if not self.time_limit_s > 0:
            raise _wrong("time limit", self.time_limit_s, "seconds above 0")

    @property
    def digest(self) -> str:
        """12 hex digits over every field: what names the file."""
        return _digest(self)

    @property
    def higher_is_better(self) -> bool:
        """Whether the primary metric is a rate."""
        return self.metric.endswith("_per_s")


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request as it went."""

    clip: str
    """Content digest."""
    total_s: float
    started_s: float = 0.0
    """Since the load began."""
    ttft_s: float | None = None
    """To the first token; None where the answer came whole, or not at all."""
    status: int = 0
    """Of HTTP; 0 without an answer."""
    phases_s: dict[str, float] = {}
    """Seconds per phase, as far as they could be told apart (fetch, decode, preprocess, queue, prefill ...)."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    sent_bytes: int = 0
    caption: str = ""
    frames_digest: str = ""
    """Of the frames; of a server, which does not show them, the length of the prompt that they made."""
    caption_digest: str = ""
    error: str = ""
    """The class of the failure; empty when it went well."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One arm given the workload once."""

    arm: str
    arm_digest: str
    block: int
    position: int
    """Place within the block."""
    wall_s: float
    measurements: tuple[Measurement, ...]
    gauges: dict[str, float] = {}
    """What was read beside it: shares of use, peak bytes, preemptions, the cache hit rate ..."""
    phases_s: dict[str, dict[str, float]] = {}
    """Phase -> mean, p50, p95, p99 (seconds), as the servers and the client counted them."""
    series: Series | None = None
    """The gauges over time."""

    @property
    def error_share(self) -> float:
        """Failed requests among all; 1 when there was none at all."""
        failed = sum(1 for one in self.measurements if one.error)
        return failed / len(self.measurements) if self.measurements else 1.0


class Differences(msgspec.Struct, frozen=True):
    """Clips whose frames or captions are not the same in two sets of trials: the gate before speed counts."""

    num_compared: int
    frames: tuple[str, ...]
    captions: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Something was compared, and nothing differs."""
        return self.num_compared > 0 and not self.frames and not self.captions


def metric_value(trial: Trial, metric: Metric) -> float | None:
    """The primary metric of one trial, over the requests that went well; None when none did (or it took no time)."""
    good = [one for one in trial.measurements if not one.error]
    if not good or trial.wall_s <= 0:
        return None
    match metric:
        case "requests_per_s":
            return len(good) / trial.wall_s
        case "tokens_per_s":
            return sum(one.output_tokens for one in good) / trial.wall_s or None
        case "total_p50_s" | "total_p95_s" | "total_p99_s":
            return percentile([one.total_s for one in good], int(metric[7:9]) / 100)


def answers_that_differ(base: Iterable[Trial], other: Iterable[Trial]) -> Differences:
    """Compare, clip by clip, what the requests that went well gave. A clip that one side lacks is not compared."""
    first, second = _answers(base), _answers(other)
    both = sorted(first.keys() & second.keys())
    frames = tuple(clip for clip in both if first[clip][0] != second[clip][0])
    captions = tuple(clip for clip in both if first[clip][1] != second[clip][1])
    return Differences(len(both), frames, captions)


def trials_of(trials: Iterable[Trial], arm: str) -> list[Trial]:
    """The arm's trials that count (no warm-up), by block and position."""
    counted = [trial for trial in trials if trial.arm == arm and trial.block != WARM_UP]
    return sorted(counted, key=lambda trial: (trial.block, trial.position))


def _answers(trials: Iterable[Trial]) -> dict[str, tuple[set[str], set[str]]]:
    found: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for one in (one for trial in trials for one in trial.measurements if not one.error):
        frames, captions = found[one.clip]
        frames.add(one.frames_digest)
        captions.add(one.caption_digest)
    return found


def _digest(value: msgspec.Struct | dict[str, str | int | float | bool]) -> str:
    encoded = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=6).hexdigest()


def _wrong(what: str, given: str | float | Sequence[Any], allowed: str) -> ConfigError:
    return ConfigError(f"an experiment with the wrong {what}", given=str(given), allowed=allowed)
