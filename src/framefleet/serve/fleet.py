"""The fleet that runs here: replicas, decode services and MPS as processes, and what the proxy sees of them.

Whether a replica is ready or lost is the proxy's to judge (`health.py`: /health and a real request); what follows from
it is decided here. A replica that is kept out (drained by an operator, or a canary on trial) becomes ready and at once
drained, so that no request ever goes there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from framefleet.errors import ReplicaError
from framefleet.serve.child import Child
from framefleet.serve.fleet_plan import FleetPlan, ProcessPlan
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.kept import Kept, Patience, Phase
from framefleet.serve.replica import Replica, ReplicaState
from framefleet.serve.run_folder import RunFolder
from framefleet.serve.services import Services

_S = ReplicaState
_UP = (_S.READY, _S.DRAINING, _S.DRAINED)
_POLL_S = 0.05
_log = logging.getLogger(__name__)


class Member:
    """One replica and its process."""

    def __init__(self, plan: ProcessPlan, revision: int) -> None:
        self.plan, self.revision = plan, revision
        self.snapshot = Replica(plan.name, "http://127.0.0.1:0", _S.STOPPED)
        self.since_s = time.time()
        self.is_kept_out = False
        self.has_given_up = False
        self.kept: Kept | None = None

    @property
    def state(self) -> ReplicaState:
        """Where it stands."""
        return self.snapshot.state

    def move(self, to: ReplicaState) -> None:
        """To its next state. Raises ReplicaError for a move that there is not."""
        self.snapshot = self.snapshot.moved(to)
        self.since_s = time.time()

    def keep(self, folder: RunFolder, patience: Patience) -> None:
        """Start it, and start it again whenever it dies."""
        self.has_given_up = False
        self.kept = Kept(self.plan.name, self._next_plan, folder, patience, on_phase=self._on_phase)
        self.kept.start()

    def _next_plan(self) -> ProcessPlan:
        port = free_port()
        self.snapshot = Replica(self.plan.name, f"http://127.0.0.1:{port}", self.state)
        return self.plan.at(port)

    def _on_phase(self, phase: Phase) -> None:
        if phase is Phase.STARTING:
            self.move(_S.STARTING)
            return
        self.has_given_up = phase is Phase.GAVE_UP
        if self.state is not _S.LOST:
            self.move(_S.LOST)

    def answers(self, *, is_idle: bool) -> None:
        """It was seen to be well."""
        if self.state in (_S.STARTING, _S.LOST) and self.kept and self.kept.child:
            self.kept.ready.set()
            self.move(_S.READY)
            _log.info("%s is ready at %s", self.plan.name, self.snapshot.base_url)
            if self.is_kept_out:
                self.move(_S.DRAINING)
        if self.state is _S.DRAINING and is_idle:
            self.move(_S.DRAINED)

    def is_silent(self, grace_s: float) -> None:
        """It was seen not to answer: unless it does within its grace, its process is killed and started again."""
        if self.state in _UP and self.kept and self.kept.child:
            self.move(_S.LOST)
            _log.warning("%s answers no more; it is killed unless it does within %g s", self.plan.name, grace_s)
            asyncio.get_running_loop().call_later(grace_s, self._kill_if_lost, self.kept, self.kept.child)

    def _kill_if_lost(self, kept: Kept, child: Child) -> None:
        if self.state is _S.LOST and kept.child is child:
            kept.lost.set()

    def keep_out(self) -> None:
        """No new work."""
        self.is_kept_out = True
        if self.state is _S.READY:
            self.move(_S.DRAINING)

    def let_in(self) -> None:
        """Work again."""
        self.is_kept_out = False
        if self.state in (_S.DRAINING, _S.DRAINED):
            self.move(_S.READY)

    async def stop(self) -> None:
        """End its process."""
        if self.state is _S.STOPPED:
            return
        if self.state is not _S.STOPPING:
            self.move(_S.STOPPING)
        if self.kept:
            await self.kept.stop()
        self.move(_S.STOPPED)


class Fleet:
    """`async with Fleet(...)` starts everything, and leaves nothing running. It is the proxy's FleetView."""

    def __init__(self, settings: FleetSettings, plan: FleetPlan, folder: RunFolder, *, revision: int = 1) -> None:
        self.plan, self.folder = plan, folder
        self.members = {one.name: Member(one, revision) for one in plan.replicas}
        self.services = Services(folder, settings, on_mps_lost=self._restart_clients)
        self.on_change: Callable[[], None] = lambda: None
        """Called when a replica may take work that could not before."""
        self.changing = asyncio.Lock()
        """Held by whoever restarts replicas: one change at a time."""
        self._starting: asyncio.Task[None] | None = None

    @property
    def settings(self) -> FleetSettings:
        """Those by which whatever is started from now on is started."""
        return self.services.settings

    @settings.setter
    def settings(self, settings: FleetSettings) -> None:
        self.services.settings = settings

    async def __aenter__(self) -> Fleet:
        self._starting = asyncio.create_task(self._start())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._starting:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await asyncio.gather(*(member.stop() for member in self.members.values()))
        await self.services.stop()

    async def _start(self) -> None:
        """What replicas need, then they: vLLM measures the GPU's free memory when it starts."""
        await self.services.ensure(self.plan)
        for member in self.members.values():
            member.keep(self.folder, self._patience())

    async def failed(self) -> str:
        """Returns when nothing is left that could ever answer; why."""
        while True:
            members = self.members.values()
            if self._starting and self._starting.done() and (error := self._starting.exception()):
                return str(error)
            is_over = not self.changing.locked() and all(member.has_given_up for member in members)
            if members and is_over:  # in the middle of a change, another start follows
                return next(iter(members)).kept.last_end  # type: ignore[union-attr]
            await asyncio.sleep(0.2)

    # --- what the proxy asks and tells

    def replicas(self) -> tuple[Replica, ...]:
        """All of them now."""
        return tuple(member.snapshot for member in self.members.values())

    def observe(self, name: str, *, is_answering: bool, num_in_flight: int) -> None:
        """What the proxy saw."""
        member = self.members.get(name)
        if member is None:
            return
        if not is_answering:
            member.is_silent(self.settings.lost_s)
            return
        before = member.state
        member.answers(is_idle=num_in_flight == 0)
        if before is not member.state:
            self.on_change()

    def drain(self, name: str) -> None:
        """No new work, until `undrain`; also after a restart."""
        self.named(name).keep_out()

    def undrain(self, name: str) -> None:
        """Take work again."""
        self.named(name).let_in()
        self.on_change()

    # --- what changes it

    def named(self, name: str) -> Member:
        """Raises ReplicaError when there is none."""
        if name not in self.members:
            raise ReplicaError("no such replica", given=repr(name), allowed=", ".join(self.members))
        return self.members[name]

    async def restart(
        self, name: str, plan: ProcessPlan | None = None, *, revision: int = 0, is_trial: bool = False
    ) -> None:
        """Drain, stop, start (with another plan, where given) and wait until it is ready. It stays kept out if it was,
        and takes work again otherwise. `is_trial`: it may die once before it is, not again and again.

        Raises ReplicaError when it does not become ready.
        """
        member = self.named(name)
        was_kept_out = member.is_kept_out
        await self._emptied(member)
        await member.stop()
        if plan is not None:
            member.plan, member.revision = plan, revision
        member.is_kept_out = was_kept_out
        await self._start_and_wait(member, is_trial=is_trial)

    async def add(self, plan: ProcessPlan, revision: int) -> None:
        """One more, ready but kept out. Raises ReplicaError when it does not become so."""
        self.members[plan.name] = Member(plan, revision)
        self.members[plan.name].is_kept_out = True
        await self._start_and_wait(self.members[plan.name], is_trial=True)

    async def remove(self, name: str) -> None:
        """One less; what is in flight there ends first."""
        await self._emptied(self.named(name))
        await self.named(name).stop()
        del self.members[name]

    async def _start_and_wait(self, member: Member, *, is_trial: bool) -> None:
        member.keep(self.folder, replace(self._patience(), **({"max_restarts": 1} if is_trial else {})))
        assert member.kept is not None
        if not await member.kept.ready_within(self.settings.start_s):
            raise ReplicaError(
                f"{member.plan.name} did not become ready",
                given=member.kept.last_end or f"nothing in {self.settings.start_s:g} s",
                remedy=f"look into {member.kept.log}",
            )
        member.kept.patience = self._patience()

    def _patience(self) -> Patience:
        settings = self.settings
        return Patience(settings.start_s, settings.stop_s, settings.restart_wait_s, settings.max_restarts)

    async def _emptied(self, member: Member) -> None:
        """Until nothing is in flight there, or `drain_s` is over."""
        member.keep_out()
        with contextlib.suppress(TimeoutError):
            await until(lambda: member.state is not _S.DRAINING, self.settings.drain_s)

    def _restart_clients(self) -> None:
        """MPS failed, and with it all that use it: whether they know or not, they are started anew."""
        _log.error("MPS failed: all its clients are started again")
        for member in self.members.values():
            if member.kept:
                member.kept.lost.set()  # also of one that is just starting


async def until(is_so: Callable[[], bool], timeout_s: float) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not is_so():
            await asyncio.sleep(_POLL_S)


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
