"""A command that is started again whenever it ends: with growing waits, and not for ever if it never comes up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from framefleet.errors import ReplicaError
from framefleet.serve.child import Child, tail_of
from framefleet.serve.fleet_plan import ProcessPlan
from framefleet.serve.run_folder import VARIABLE, RunFolder

MAX_WAIT_S = 60.0
FAILED_CHECKS = 3
"""In a row, of a command that was ready: then it is taken for dead."""
_CHECK_S = 0.25
_log = logging.getLogger(__name__)


class Phase(StrEnum):
    """What its owner is told."""

    STARTING = "starting"
    ENDED = "ended"
    """It is started again after a while."""
    GAVE_UP = "gave_up"
    """It is not."""


@dataclass(frozen=True, slots=True)
class Patience:
    """With one command."""

    start_s: float = 60.0
    stop_s: float = 20.0
    wait_s: float = 1.0
    max_restarts: int = 5

    def wait_after(self, deaths: int) -> float | None:
        """Seconds before it is started again, after so many deaths in a row; None: no more. Pure."""
        if deaths > self.max_restarts:
            return None
        return min(MAX_WAIT_S, self.wait_s * 2.0 ** min(deaths - 1, 30))


class Kept:
    """`start()` and `await stop()`. Whoever knows that it is ready or lost sets these events."""

    def __init__(
        self,
        name: str,
        next_plan: Callable[[], ProcessPlan],
        folder: RunFolder,
        patience: Patience,
        *,
        on_phase: Callable[[Phase], None] = lambda _: None,
        check: Callable[[], Awaitable[bool]] | None = None,
        check_every_s: float = 2.0,
    ) -> None:
        """`next_plan` is asked before each start. `check` is asked again and again whether all is well, where nobody
        else looks after that; often until it is ready."""
        self.name, self._next_plan, self._folder, self.patience = name, next_plan, folder, patience
        self._on_phase, self._check, self._check_every_s = on_phase, check, check_every_s
        self.ready, self.lost = asyncio.Event(), asyncio.Event()
        self.child: Child | None = None
        self.num_restarts = 0
        self.last_end = ""
        """How it last ended."""
        self.was_ready = False
        """Before it last ended."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def log(self) -> str:
        """Where its output goes."""
        return str(self._folder.log_of(self.name))

    def start(self) -> None:
        """Keep it from now on."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End it, and wait until nothing of it is left. It is ended in peace also when the waiting is called off."""
        if self._task is None:
            return
        if not self._is_stopping:
            self._is_stopping = True
            self._task.cancel()
        await asyncio.shield(asyncio.gather(self._task, return_exceptions=True))

    async def ready_within(self, seconds: float) -> bool:
        """Whether it is ready before that; at once False when it will not be."""
        ready = asyncio.create_task(self.ready.wait())
        waited: set[asyncio.Task[Any]] = {ready, *([self._task] if self._task else [])}
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        return self.ready.is_set()

    async def _keep(self) -> None:
        deaths = 0
        while True:
            self._on_phase(Phase.STARTING)
            how = await self._once()
            self.was_ready = self.ready.is_set()
            deaths = 1 if self.was_ready else deaths + 1
            self.ready.clear()
            wait_s = self.patience.wait_after(deaths)
            self.last_end = how
            _log.warning("%s ended: %s; %s", self.name, how, "given up" if wait_s is None else f"again in {wait_s} s")
            if wait_s is None:
                self.last_end = f"{how}; its log ends:\n{tail_of(self._folder.log_of(self.name))}"
                self._on_phase(Phase.GAVE_UP)
                return
            self._on_phase(Phase.ENDED)
            await asyncio.sleep(wait_s)
            self.num_restarts += 1

    async def _once(self) -> str:
        """From its start to its end; how it ended."""
        self.ready.clear()
        self.lost.clear()
        log, environ = self._folder.log_of(self.name), {VARIABLE: str(self._folder.path), "SPT_NOENV": "1"}
        try:
            child = await Child.start(self._next_plan(), log=log, environ=environ, grace_s=self.patience.stop_s)
        except (ReplicaError, OSError) as error:
            return str(error)
        self.child = child
        checking = asyncio.create_task(self._keep_checking()) if self._check else None
        try:
            how = await self._until_it_ends(child)
            await child.kill()
        finally:  # also when it is to be stopped: in peace then
            if checking:
                checking.cancel()
            await child.stop()
            self.child = None
        return how

    async def _until_it_ends(self, child: Child) -> str:
        ended = asyncio.create_task(child.ended())
        lost, ready = asyncio.create_task(self.lost.wait()), asyncio.create_task(self.ready.wait())
        events: set[asyncio.Task[Any]] = {ended, lost, ready}
        try:
            await asyncio.wait(events, timeout=self.patience.start_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                events.remove(ready)
                await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            return "it answers no more" if lost.done() else f"not ready after {self.patience.start_s:g} s"
        finally:
            for event in (ended, lost, ready):
                event.cancel()

    async def _keep_checking(self) -> None:
        assert self._check is not None
        failed = 0
        while True:
            failed = 0 if await self._check() else failed + 1
            if not failed:
                self.ready.set()
            elif self.ready.is_set() and failed >= FAILED_CHECKS:
                self.lost.set()
            await asyncio.sleep(self._check_every_s if self.ready.is_set() else _CHECK_S)
