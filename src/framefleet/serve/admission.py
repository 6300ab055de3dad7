"""How many requests are at the replicas at a time, who waits, and who is sent away.

Live requests go before batch ones, and within each the first come goes first. The queue is bounded; a live request that
finds it full takes the place of the newest batch one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import IntEnum

from framefleet.errors import EngineBusy

MAX_RETRY_AFTER_S = 60


class Priority(IntEnum):
    """Lower goes first."""

    LIVE = 0
    BATCH = 1

    @property
    def word(self) -> str:
        """As the header and the metrics have it."""
        return self.name.lower()


class Admission:
    """`async with admission.admitted(Priority.LIVE): ...`."""

    def __init__(self, capacity: Callable[[], int], *, max_queue: int, timeout_s: float) -> None:
        self._capacity, self._max_queue, self._timeout_s = capacity, max_queue, timeout_s
        self._queues: dict[Priority, deque[asyncio.Future[None]]] = {priority: deque() for priority in Priority}
        self._mean_held_s = 1.0
        self.num_admitted = 0

    def num_waiting(self, priority: Priority | None = None) -> int:
        """In the queue."""
        return sum(len(queue) for p, queue in self._queues.items() if priority in (None, p))

    @asynccontextmanager
    async def admitted(self, priority: Priority) -> AsyncIterator[None]:
        """Waits its turn. Raises EngineBusy when the queue is full or the wait too long."""
        await self._enter(priority)
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._mean_held_s += 0.1 * (time.monotonic() - started_s - self._mean_held_s)
            self.num_admitted -= 1
            self.wake()

    def wake(self) -> None:
        """Let in whom there is room for. To be called when the capacity has grown."""
        while self.num_admitted < self._capacity() and (turn := self._next()):
            turn.set_result(None)
            self.num_admitted += 1

    def retry_after_s(self) -> int:
        """When it may be worth coming back: the time the queue takes, from how long requests have lately taken."""
        queue_s = self._mean_held_s * (self.num_waiting() + 1) / max(1, self._capacity())
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(queue_s)))

    async def _enter(self, priority: Priority) -> None:
        if not self.num_waiting() and self.num_admitted < self._capacity():
            self.num_admitted += 1
            return
        self._make_room(priority)
        turn = asyncio.get_running_loop().create_future()
        self._queues[priority].append(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            self._give_up(priority, turn)
            if isinstance(error, TimeoutError):
                raise EngineBusy("waited too long for a replica", given=f"{self._timeout_s:g} s") from None
            raise

    def _make_room(self, priority: Priority) -> None:
        if self.num_waiting() < self._max_queue:
            return
        full = EngineBusy("the queue is full", given=f"{self.num_waiting()} requests wait", remedy="later")
        batch = self._queues[Priority.BATCH]
        if priority is not Priority.LIVE or not batch:
            raise full
        batch.pop().set_exception(full)

    def _give_up(self, priority: Priority, turn: asyncio.Future[None]) -> None:
        """Leave the queue; a turn that came in the same moment goes to the next."""
        if turn in self._queues[priority]:
            self._queues[priority].remove(turn)
        elif turn.done() and not turn.cancelled() and turn.exception() is None:
            self.num_admitted -= 1
            self.wake()

    def _next(self) -> asyncio.Future[None] | None:
        for priority in Priority:
            while self._queues[priority]:
                turn = self._queues[priority].popleft()
                if not turn.done():
                    return turn
        return None
