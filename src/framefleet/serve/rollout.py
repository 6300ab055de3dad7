"""Putting other settings into effect, replica by replica: the first is a canary, and whatever goes wrong goes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from framefleet.errors import FramefleetError, ReplicaError
from framefleet.serve.canary import Answered, Verdict, ask, judge
from framefleet.serve.fleet import Fleet
from framefleet.serve.fleet_plan import FleetPlan, ProcessPlan, plan_fleet
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.host import Host, look_at_host
from framefleet.serve.replica import ReplicaState
from framefleet.serve.revisions import Revision, Revisions, changes_between, digest_of

Note = Callable[[str], None]
_log = logging.getLogger(__name__)


class Rollout:
    """Of one fleet. Every method that changes it holds `fleet.changing`; a second change is refused, not queued."""

    def __init__(self, fleet: Fleet, revisions: Revisions, *, api_key: str = "") -> None:
        self.fleet, self.revisions, self._api_key = fleet, revisions, api_key

    async def apply(self, settings: FleetSettings, origin: str, note: Note, *, is_judged: bool = True) -> Revision:
        """Roll to these settings. The revision tells how it ended: `applied`, or `rolled_back` and why.

        `is_judged`: the canary must answer as the old ones do; else it must only become ready.
        Raises ReplicaError while another change is under way, and ConfigError, with nothing changed, for settings that
        cannot work here.
        """
        async with self._alone():
            current = self.revisions.current()
            if current is not None and digest_of(self.fleet.settings) == current.digest == digest_of(settings):
                note("nothing changes")
                return current
            host = await asyncio.to_thread(look_at_host, settings.python)
            plan = self._plan(settings, host, self.fleet.plan.generation)
            if plan.decode_services != self.fleet.plan.decode_services:
                plan = self._plan(settings, host, len(self.revisions.all()))
            revision = self.revisions.begin(settings, origin)
            roll = _Roll(self.fleet, plan, revision, note, self._api_key)
            ended = await roll.run(is_judged=is_judged)
            return self.revisions.write(ended)

    async def rollback(self, number: int | None, note: Note) -> Revision:
        """Back to a revision; None: the one before the current one. It need only become ready. Raises as `apply`."""
        to = self.revisions.before_current() if number is None else self.revisions.numbered(number)
        return await self.apply(to.settings, f"rollback to {to.number}", note, is_judged=False)

    async def restart(self, names: list[str], note: Note) -> None:
        """Start these anew, one after the other; empty: all. Raises ReplicaError at the first that does not come up."""
        async with self._alone():
            for name in names or list(self.fleet.members):
                note(f"{name}: draining and starting anew")
                was_out = self.fleet.named(name).is_kept_out
                await self.fleet.restart(name)
                if not was_out:
                    self.fleet.undrain(name)
                note(f"{name}: ready")

    def _plan(self, settings: FleetSettings, host: Host, generation: int) -> FleetPlan:
        return plan_fleet(settings, host, self.fleet.folder.sockets, generation=generation)

    def _alone(self) -> asyncio.Lock:
        if self.fleet.changing.locked():
            raise ReplicaError(
                "another change is under way", remedy="framefleet fleet status; try again when it is done"
            )
        return self.fleet.changing


@dataclass(frozen=True, slots=True)
class _Before:
    """A replica before it was changed."""

    name: str
    plan: ProcessPlan | None = None
    """None: it was not there."""
    revision: int = 0
    is_kept_out: bool = False


class _Roll:
    """One way from the fleet as it is to a plan."""

    def __init__(self, fleet: Fleet, plan: FleetPlan, revision: Revision, note: Note, api_key: str) -> None:
        self._fleet, self._plan, self._revision, self._note, self._api_key = fleet, plan, revision, note, api_key
        self._old_plan, self._old_settings = fleet.plan, fleet.settings
        self._changed: list[_Before] = []
        self._verdict = Verdict()

    async def run(self, *, is_judged: bool) -> Revision:
        """Roll; the revision as it ended."""
        changes = changes_between(self._old_settings, self._revision.settings)
        said = ", ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in changes.items())
        self._note(f"revision {self._revision.number}: {said}")
        try:
            await self._forward(is_judged=is_judged)
        except FramefleetError as error:
            reasons = self._verdict.reasons or (str(error),)
            self._note(f"rolling back: {'; '.join(reasons)}")
            await self._back()
            return self._ended("rolled_back", reasons)
        self._note(f"revision {self._revision.number} is in effect")
        return self._ended("applied", ())

    async def _forward(self, *, is_judged: bool) -> None:
        """Raises FramefleetError where it cannot go on."""
        fleet, new = self._fleet, {plan.name: plan for plan in self._plan.replicas}
        old_answers = await self._reference() if is_judged else []
        fleet.settings = self._revision.settings
        await fleet.services.ensure(self._plan)
        for i, (name, plan) in enumerate(new.items()):
            await self._renew(name, plan)
            if i == 0 and is_judged:
                await self._judge(name, old_answers)
            if not self._changed[-1].is_kept_out:
                fleet.undrain(name)
        for name in [name for name in fleet.members if name not in new]:
            self._note(f"{name}: removed")
            await fleet.remove(name)
        fleet.plan = self._plan
        await fleet.services.prune(self._plan)

    async def _renew(self, name: str, plan: ProcessPlan) -> None:
        """Ready by the new plan, and kept out."""
        fleet = self._fleet
        if member := fleet.members.get(name):
            self._note(f"{name}: draining and starting with the new settings")
            self._changed.append(_Before(name, member.plan, member.revision, member.is_kept_out))
            fleet.drain(name)
            await fleet.restart(name, plan, revision=self._revision.number, is_trial=True)
        else:
            self._note(f"{name}: added")
            self._changed.append(_Before(name))
            await fleet.add(plan, self._revision.number)

    async def _reference(self) -> list[Answered]:
        """What a replica with the old settings says; nothing when none is ready."""
        ready = [one for one in self._fleet.replicas() if one.state is ReplicaState.READY]
        if not ready:
            self._note("no replica is ready: the canary has nothing to be compared with")
            return []
        self._note(f"{ready[-1].name}: asked for the answers to compare with")
        return await self._ask(ready[-1].name, self._old_settings)

    async def _judge(self, name: str, old_answers: list[Answered]) -> None:
        """One that is found wanting is asked once more, together with an old one: the host may have been busy."""
        for is_last in (False, True):
            new_answers = await self._ask(name, self._revision.settings)
            self._verdict = judge(old_answers, new_answers, self._revision.settings.canary)
            said = f"captions differ by {self._verdict.difference:.0%}, first token after {self._verdict.ttft_s:.2f} s"
            self._note(f"{name}: canary, {self._verdict.num_errors} of {self._verdict.num_clips} failed, {said}")
            if self._verdict.is_good:
                return
            if not is_last:
                old_answers = await self._reference() or old_answers
        raise ReplicaError("the canary does not answer as well", given="; ".join(self._verdict.reasons))

    async def _ask(self, name: str, settings: FleetSettings) -> list[Answered]:
        """Both sides are asked what the new settings say: they may have changed the questions."""
        model = settings.served_model_name or settings.model
        base_url = self._fleet.named(name).snapshot.base_url
        return await ask(base_url, model, self._revision.settings.canary, api_key=self._api_key)

    async def _back(self) -> None:
        """Everything that was changed as it was before; one that does not come up again does not stop the others."""
        fleet = self._fleet
        fleet.settings = self._old_settings
        for before in reversed(self._changed):
            if before.plan is None:
                await fleet.remove(before.name)
                continue
            self._note(f"{before.name}: back to the old settings")
            with suppress(ReplicaError):
                await fleet.restart(before.name, before.plan, revision=before.revision)
            if not before.is_kept_out:
                fleet.undrain(before.name)
        fleet.plan = self._old_plan
        await fleet.services.prune(self._old_plan)

    def _ended(self, outcome: str, reasons: tuple[str, ...]) -> Revision:
        canary = msgspec.to_builtins(self._verdict)
        return msgspec.structs.replace(self._revision, outcome=outcome, reasons=reasons, canary=canary)
