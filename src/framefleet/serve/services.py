"""What the replicas of a fleet share: MPS, and a decode service per GPU."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from framefleet.errors import ReplicaError
from framefleet.serve.fleet_plan import DecodePlan, FleetPlan, MpsPlan, ProcessPlan
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.kept import Kept, Patience, Phase
from framefleet.serve.mps import MpsDaemon
from framefleet.serve.run_folder import RunFolder
from framefleet.serve.short_command import output_of

_MPS_START_S = 30.0
_DECODE_START_S = 120.0
_MPS_CHECK_S, _DECODE_CHECK_S = 2.0, 15.0
_ASK_S = 30.0
_FOR_EVER = 10**9
_log = logging.getLogger(__name__)


class Services:
    """Of one fleet. One that fails is started again; replicas wait for it or do without, as their loader does."""

    def __init__(self, folder: RunFolder, settings: FleetSettings, *, on_mps_lost: Callable[[], None]) -> None:
        self._folder, self.settings, self._on_mps_lost = folder, settings, on_mps_lost
        self.running: list[tuple[ProcessPlan, Kept]] = []

    async def ensure(self, plan: FleetPlan) -> None:
        """Start those of a plan that do not run yet, MPS first, and wait until they answer.

        Raises ReplicaError when one that was asked for by name (`on`) does not.
        """
        for wanted in plan.services:
            if all(wanted != known for known, _ in self.running):
                await self._start(wanted)

    async def prune(self, plan: FleetPlan) -> None:
        """Stop those that the plan has not."""
        for one in [pair for pair in self.running if pair[0] not in plan.services]:
            self.running.remove(one)
            await self._stop(*one)

    async def stop(self) -> None:
        """All of them, MPS last: it waits for its clients."""
        while self.running:
            await self._stop(*self.running.pop())

    async def _start(self, plan: MpsPlan | DecodePlan) -> None:
        is_mps = isinstance(plan, MpsPlan)
        patience = Patience(_MPS_START_S if is_mps else _DECODE_START_S, self.settings.stop_s, 0.5, _FOR_EVER)
        kept = self._mps(plan, patience) if isinstance(plan, MpsPlan) else self._decode(plan, patience)
        self.running.append((plan, kept))
        kept.start()
        if await kept.ready_within(_MPS_START_S if is_mps else _DECODE_START_S):
            return
        if (self.settings.mps if is_mps else self.settings.decode_service) == "on":
            raise ReplicaError(f"{plan.name} does not start", given=kept.last_end, remedy=kept.log)
        _log.warning(
            "%s does not start (%s); the fleet goes on without it; log: %s", plan.name, kept.last_end, kept.log
        )

    def _mps(self, plan: MpsPlan, patience: Patience) -> Kept:
        daemon = MpsDaemon(plan)
        daemon.make_folders()
        told, check = self._on_mps_phase, daemon.is_well
        return Kept(
            plan.name, lambda: plan, self._folder, patience, on_phase=told, check=check, check_every_s=_MPS_CHECK_S
        )

    def _decode(self, plan: DecodePlan, patience: Patience) -> Kept:
        check = _DecodeCheck(plan)
        return Kept(plan.name, lambda: plan, self._folder, patience, check=check, check_every_s=_DECODE_CHECK_S)

    def _on_mps_phase(self, phase: Phase) -> None:
        """One that never came up had no clients."""
        mps = next((kept for plan, kept in self.running if isinstance(plan, MpsPlan)), None)
        if phase is Phase.STARTING or mps is None or not mps.was_ready:
            return
        for _, kept in self.running:
            if kept is not mps:
                kept.lost.set()
        self._on_mps_lost()

    async def _stop(self, plan: ProcessPlan, kept: Kept) -> None:
        if isinstance(plan, MpsPlan):
            await MpsDaemon(plan).quit()
        await kept.stop()


class _DecodeCheck:
    """Whether a decode service takes connections; once it did, whether it says how it is. It speaks its own protocol,
    so it is asked by its own command."""

    def __init__(self, plan: DecodePlan) -> None:
        self._plan, self._was_there = plan, False

    async def __call__(self) -> bool:
        if not self._was_there:
            self._was_there = await asyncio.to_thread(_takes_connections, self._plan.socket)
            return self._was_there
        words = (*self._plan.command[:3], "--socket", str(self._plan.socket), "--stats")
        return await output_of(words, timeout_s=_ASK_S) is not None


def _takes_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(_ASK_S)
        try:
            link.connect(str(path))
        except OSError:
            return False
    return True
