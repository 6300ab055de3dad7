"""A running fleet from another process: look at it, put settings into effect, watch them, keep them or go back.

fleet = FleetClient()
trial = fleet.apply(msgspec.structs.replace(fleet.settings(), replicas_per_gpu=2), origin="tune")
time.sleep(120)
if trial.is_applied and not (worse := regressions(trial.before, trial.figures(), WatchLimits())):
    trial.keep()
elif trial.is_applied:
    trial.rollback()
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from framefleet.serve.control import Note, ask_fleet
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.revisions import Revision
from framefleet.serve.run_folder import default_folder

BEFORE_S = 600.0


class FleetFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests that ended in a stretch of time, and memory at its end. Seconds: 0 where none was answered."""

    num_requests: int
    num_failures: int
    error_rate: float
    """5xx, cut off, timed out; not what clients did wrong."""
    answers_per_s: float
    p50_s: float
    p95_s: float
    first_byte_p95_s: float
    host_bytes: int
    """Of all the fleet's processes."""
    gpu_bytes: dict[str, int]
    """GPU index -> in use there, by whomever."""
    caption_difference: float = 0.0
    """Of the canary's captions to those before, share of words."""


class WatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much worse than before is too much."""

    p95_ratio: float = 1.2
    error_rate_rise: float = 0.01
    caption_difference: float = 0.3
    memory_ratio: float = 1.25
    min_requests: int = 20
    """Below this, times and errors tell nothing."""


class Trial:
    """Settings in effect (or rolled back by their canary), not yet confirmed."""

    def __init__(self, fleet: FleetClient, revision: Revision, before: FleetFigures) -> None:
        self._fleet, self.revision, self.before = fleet, revision, before
        self.applied_at = time.time()
        """Seconds since the epoch; every replica has the new settings since."""

    @property
    def is_applied(self) -> bool:
        """False: the canary was no good, and everything is as before; `reasons` says why."""
        return self.revision.outcome == "applied"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it was rolled back."""
        return self.revision.reasons

    def figures(self) -> FleetFigures:
        """Since every replica has the new settings."""
        figures = self._fleet.figures(self.applied_at, time.time())
        return msgspec.structs.replace(figures, caption_difference=self.revision.canary.get("difference", 0.0))

    def keep(self) -> None:
        """Say in the record that it is to stay. Without this it stays in effect all the same."""
        self.revision = self._fleet.confirm(self.revision.number)

    def rollback(self, on_note: Note = lambda _: None) -> Revision:
        """Back to what was in effect before, replica by replica."""
        return self._fleet.rollback(on_note=on_note)


class FleetClient:
    """Of the fleet that runs from `folder` (default: as `framefleet serve`'s). Every method raises ReplicaError when
    none runs there, or while another change is under way."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def status(self) -> dict[str, Any]:
        """As `framefleet fleet status --json`."""
        standing: dict[str, Any] = self._ask("status")
        return standing

    def settings(self) -> FleetSettings:
        """Those in effect, whole."""
        return msgspec.convert(self._ask("settings"), FleetSettings)

    def figures(self, since: float, until: float) -> FleetFigures:
        """Of the requests that ended in between (seconds since the epoch)."""
        return msgspec.convert(self._ask("figures", since=since, until=until), FleetFigures)

    def apply(
        self, settings: FleetSettings, *, origin: str, is_judged: bool = True, on_note: Note = lambda _: None
    ) -> Trial:
        """Roll to these settings and return when all replicas have them, or the canary was rolled back.

        Raises ConfigError, with nothing changed, for settings that cannot work there.
        """
        now = time.time()
        before = self.figures(now - BEFORE_S, now)
        tree = msgspec.to_builtins(settings)
        answer = self._ask("apply", settings=tree, origin=origin, is_judged=is_judged, on_note=on_note)
        return Trial(self, msgspec.convert(answer, Revision), before)

    def rollback(self, number: int | None = None, on_note: Note = lambda _: None) -> Revision:
        """To a revision; None: the one before the current one."""
        return msgspec.convert(self._ask("rollback", number=number, on_note=on_note), Revision)

    def confirm(self, number: int) -> Revision:
        """Mark a revision as one that is to stay."""
        return msgspec.convert(self._ask("keep", number=number), Revision)

    def _ask(self, command: str, **arguments: Any) -> Any:
        return ask_fleet(self.folder, command, **arguments)


def regressions(before: FleetFigures, after: FleetFigures, limits: WatchLimits) -> list[str]:
    """In what the new figures are too much worse; empty: in nothing. Pure."""
    found = []
    if min(before.num_requests, after.num_requests) >= limits.min_requests:
        if after.p95_s > before.p95_s * limits.p95_ratio:
            found.append(f"p95 {before.p95_s:.2f} -> {after.p95_s:.2f} s")
        if after.error_rate > before.error_rate + limits.error_rate_rise:
            found.append(f"errors {before.error_rate:.1%} -> {after.error_rate:.1%}")
    if after.caption_difference > limits.caption_difference:
        found.append(f"captions differ in {after.caption_difference:.0%} of words")
    memory = [("host", before.host_bytes, after.host_bytes)]
    memory += [(f"GPU {gpu}", before.gpu_bytes.get(gpu, 0), held) for gpu, held in after.gpu_bytes.items()]
    for name, held_before, held in memory:
        if held_before and held > held_before * limits.memory_ratio:
            found.append(f"{name} memory {held_before / 2**30:.1f} -> {held / 2**30:.1f} GiB")
    return found
