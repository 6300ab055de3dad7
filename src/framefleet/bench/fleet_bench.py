"""A running fleet as something to be measured and changed: settings are put into effect, and load is run on them."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence

import msgspec

from framefleet.bench.clips import LoadClip
from framefleet.bench.executor import TrialRunner
from framefleet.bench.experiment import Arm, Trial, metric_value
from framefleet.bench.fleet_values import CONCURRENCY, with_settings
from framefleet.bench.ladder import Outcome, Settings
from framefleet.bench.load import LoadSettings
from framefleet.bench.scheduler import Log, Slot
from framefleet.bench.stats import percentile
from framefleet.errors import ConfigError, FramefleetError
from framefleet.serve.fleet_client import FleetClient
from framefleet.serve.fleet_client import Trial as FleetTrial
from framefleet.serve.fleet_settings import FleetSettings


class FleetBench:
    """`measure` is a Measure. Settings that differ only in `concurrency` need no change of the fleet.

    Trials that the log holds already are taken from there: an interrupted search goes on where it was.
    """

    def __init__(self, fleet: FleetClient, load: LoadSettings, clips: Sequence[LoadClip], log: Log) -> None:
        self.fleet, self._load, self._clips, self._log = fleet, load, clips, log
        self.base = self._running = fleet.settings()
        self._logged: defaultdict[str, deque[Trial]] = defaultdict(deque)
        for trial in log.trials:
            self._logged[trial.arm].append(trial)
        self.look_again()

    async def measure(self, settings: Settings, effort: int) -> Outcome:
        """Put them into effect, if they are not, and run `effort` trials. What cannot run says so in its Outcome."""
        outcome = Outcome(rates_per_s=())
        try:
            for _ in range(effort):
                outcome = outcome.and_more(outcome_of(await self._trial(settings)))
        except FramefleetError as error:
            return msgspec.structs.replace(outcome, failure=str(error))
        return outcome

    async def put_back(self) -> None:
        """What was in effect at first."""
        await self._have(self.base)

    def look_again(self) -> None:
        """The processes behind the endpoint are others now."""
        self._runner = TrialRunner(self._load, {"as_is": self._clips})

    async def _trial(self, settings: Settings) -> Trial:
        name = arm_name(settings)
        if self._logged[name]:
            return self._logged[name].popleft()
        await self._have(with_settings(self.base, settings))
        concurrency = int(settings.get(CONCURRENCY, self._load.concurrency))
        arm = Arm(name=name, settings={**settings, CONCURRENCY: concurrency})
        trial = await self._runner(arm, Slot(name, len(self._log.trials), 0))
        self._log.append(trial)
        return trial

    async def _have(self, wanted: FleetSettings) -> None:
        if wanted == self._running:
            return
        trial = await asyncio.to_thread(self.fleet.apply, wanted, origin="tune", is_judged=False)
        if not trial.is_applied:
            raise ConfigError("the fleet did not come up with these settings", given="; ".join(trial.reasons))
        self._running = wanted
        self.look_again()


class FleetRevisions:
    """A running fleet as apply.Revisions; it judges its canary itself before all replicas change."""

    def __init__(self, fleet: FleetClient, load: LoadSettings, clips: Sequence[LoadClip], log: Log) -> None:
        self._fleet, self._load, self._clips, self._log = fleet, load, clips, log
        self._trial: FleetTrial | None = None
        self._runner = TrialRunner(load, {"as_is": clips})

    async def measure(self) -> Outcome:
        """See Revisions."""
        name = "before" if self._trial is None else "after"
        trial = await self._runner(Arm(name=name, settings={}), Slot(name, len(self._log.trials), 0))
        self._log.append(trial)
        return outcome_of(trial)

    async def change(self, settings: Settings) -> tuple[str, ...]:
        """See Revisions."""
        wanted = with_settings(self._fleet.settings(), settings)
        trial = await asyncio.to_thread(self._fleet.apply, wanted, origin="tune --apply")
        if not trial.is_applied:
            return trial.reasons
        self._trial, self._runner = trial, TrialRunner(self._load, {"as_is": self._clips})
        return ()

    async def keep(self) -> None:
        """See Revisions."""
        if self._trial is not None:
            await asyncio.to_thread(self._trial.keep)

    async def roll_back(self) -> None:
        """See Revisions."""
        if self._trial is not None:
            await asyncio.to_thread(self._trial.rollback)


def outcome_of(trial: Trial) -> Outcome:
    """Of one trial. Pure."""
    rate = metric_value(trial, "requests_per_s")
    times_s = [one.total_s for one in trial.measurements if not one.error]
    memory = trial.gauges.get("gpu/memory_bytes_peak")
    if memory is None:
        memory = sum(
            value for name, value in trial.gauges.items() if name.startswith("rss/") and name.endswith("_peak")
        )
    used = trial.gauges.get("engine/kv_use_peak")
    return Outcome(
        rates_per_s=() if rate is None else (rate,),
        p95_s=percentile(times_s, 0.95) if times_s else 0.0,
        error_share=trial.error_share,
        budget_wait_s=trial.gauges.get("decode/budget_waited", 0.0) * trial.wall_s,
        memory_bytes=memory,
        kv_headroom=None if used is None else 1 - used,
        captions={one.clip: one.caption_digest for one in trial.measurements if not one.error},
    )


def arm_name(settings: Settings) -> str:
    """Settings in a line, in order."""
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items()))
