"""How a run stands: counts, rate, time left, and what it waits for. Pure but for the clock that is handed in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Literal

import msgspec

from framefleet.caption.inputs import PassedOver
from framefleet.engine.captioner import CaptionRecord

Bottleneck = Literal["", "input", "decode", "engine", "store"]

_RATE_WINDOW_S = 60.0
_SMOOTHING = 0.7
"""Weight of what was seen before."""
_FULL_SHARE = 0.8
"""A stage whose places are taken this much of the time counts as full."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run."""

    clips_total: int | None
    """None until the inputs are counted."""
    clips_done: int
    """With a record for every window: made now, or before (skipped)."""
    windows_done: int
    """Records committed by this run."""
    ok: int
    truncated: int
    rejected: int
    failed: int
    copied: int
    """Among those above: answers taken over from a clip of equal content."""
    skipped: int
    """Windows whose record was there already."""
    in_flight: int
    windows_per_s: float
    """Over the last minute."""
    eta_s: float | None
    """None while it cannot be told."""
    elapsed_s: float
    bottleneck: Bottleneck
    """What the run waits for; empty while it cannot be told."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run."""

    clips: int
    """Clips seen (all of them, unless interrupted)."""
    windows: int
    """Records committed by this run."""
    ok: int = 0
    truncated: int = 0
    rejected: int = 0
    failed: int = 0
    copied: int = 0
    failed_by_reason: dict[str, int] = {}
    """Error class -> count, of this run's failed and rejected records."""
    skipped: int = 0
    """Windows whose record was there already."""
    skipped_failed: int = 0
    """Among those: failed or rejected earlier."""
    passed_over: dict[str, int] = {}
    """What folders held that was not taken: hidden, not_video; and `duplicates`, places named twice."""
    unreadable_folders: list[str] = []
    seconds: float = 0.0
    windows_per_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds_by_phase: dict[str, float] = {}
    """Summed over the windows of this run."""
    interrupted: bool = False

    @property
    def is_partial(self) -> bool:
        """Some window of the job is without a caption, by this run or an earlier one."""
        return bool(self.failed or self.rejected or self.skipped_failed or self.unreadable_folders)

    @property
    def exit_code(self) -> int:
        """0 all captioned, 3 some without a caption, 130 interrupted (the same command goes on from there)."""
        return 130 if self.interrupted else 3 if self.is_partial else 0


class Tally:
    """Counts what is committed and skipped."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.clips_total: int | None = None
        self.clips_seen = 0
        self.clips_done = 0
        self.statuses: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.copied = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._windows = _Rate(started_s)
        self._clips = _Rate(started_s)

    @property
    def windows_done(self) -> int:
        """Records committed."""
        return self.statuses.total()

    def add(self, record: CaptionRecord) -> None:
        """A record that is now durable."""
        self.statuses[record.status] += 1
        if record.reason:
            self.reasons[record.reason] += 1
        self.copied += record.attempts == 0
        if record.attempts:
            self.prompt_tokens += record.prompt_tokens
            self.completion_tokens += record.completion_tokens
        for phase, seconds in record.seconds.items():
            self.seconds[phase] += seconds  # type: ignore[assignment]  # a Counter of floats

    def progress(self, now_s: float, *, in_flight: int, bottleneck: Bottleneck) -> Progress:
        """How it stands at `now_s`."""
        clips_per_s = self._clips.at(now_s, self.clips_done)
        left = None if self.clips_total is None else max(0, self.clips_total - self.clips_done)
        return Progress(
            clips_total=self.clips_total,
            clips_done=self.clips_done,
            windows_done=self.windows_done,
            ok=self.statuses["ok"],
            truncated=self.statuses["truncated"],
            rejected=self.statuses["rejected"],
            failed=self.statuses["failed"],
            copied=self.copied,
            skipped=self.skipped.total(),
            in_flight=in_flight,
            windows_per_s=self._windows.at(now_s, self.windows_done),
            eta_s=None if left is None or clips_per_s <= 0 else left / clips_per_s,
            elapsed_s=now_s - self.started_s,
            bottleneck=bottleneck,
        )

    def summary(self, now_s: float, *, interrupted: bool, passed_over: PassedOver) -> Summary:
        """What became of it."""
        seconds = now_s - self.started_s
        return Summary(
            clips=self.clips_seen,
            windows=self.windows_done,
            ok=self.statuses["ok"],
            truncated=self.statuses["truncated"],
            rejected=self.statuses["rejected"],
            failed=self.statuses["failed"],
            copied=self.copied,
            failed_by_reason=dict(self.reasons.most_common()),
            skipped=self.skipped.total(),
            skipped_failed=self.skipped["failed"] + self.skipped["rejected"],
            passed_over={
                "hidden": passed_over.hidden,
                "not_video": passed_over.not_video,
                "duplicates": passed_over.duplicates,
            },
            unreadable_folders=passed_over.unreadable,
            seconds=seconds,
            windows_per_s=self.windows_done / seconds if seconds > 0 else 0.0,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            seconds_by_phase={phase: round(total, 3) for phase, total in self.seconds.items()},
            interrupted=interrupted,
        )


class _Rate:
    """A count's growth per second over the last minute."""

    def __init__(self, started_s: float) -> None:
        self._looks: deque[tuple[float, int]] = deque([(started_s, 0)])

    def at(self, now_s: float, count: int) -> float:
        self._looks.append((now_s, count))
        while len(self._looks) > 2 and now_s - self._looks[1][0] > _RATE_WINDOW_S:
            self._looks.popleft()
        then_s, before = self._looks[0]
        return (count - before) / (now_s - then_s) if now_s > then_s else 0.0


class Standing:
    """Who stands where, smoothed over a few looks, so that the bottleneck shown does not flicker."""

    def __init__(self, engine_slots: int) -> None:
        self._engine_slots = engine_slots
        self._mean: dict[str, float] = {}

    def look(self, averages: Mapping[str, float]) -> None:
        """Counts per stage since the last look."""
        for stage, count in averages.items():
            self._mean[stage] = count + _SMOOTHING * (self._mean.get(stage, count) - count)

    @property
    def bottleneck(self) -> Bottleneck:
        """As of the last look."""
        return find_bottleneck(self._mean, engine_slots=self._engine_slots)


def find_bottleneck(standing: Mapping[str, float], *, engine_slots: int) -> Bottleneck:
    """What the run waits for, from how many windows stood at each stage on average.

    - windows wait to be committed: the store
    - decoded windows wait for the engine (for a place, or for it to start), or its places are taken: the engine
    - places of the engine are free while windows are being decoded: decoding
    - neither is at work: the inputs (listing, hashing, scanning)
    """
    if standing.get("commit", 0.0) >= max(1.0, _FULL_SHARE * engine_slots):
        return "store"
    if standing.get("ready", 0.0) >= 0.5 or standing.get("caption", 0.0) >= _FULL_SHARE * engine_slots:
        return "engine"
    if standing.get("decode", 0.0) >= 0.5:
        return "decode"
    if standing.get("open", 0.0) >= 0.5:
        return "input"
    return "engine" if standing.get("caption", 0.0) > 0 else ""
