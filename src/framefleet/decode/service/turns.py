"""Turns: a bounded number of places, dealt to clients one by one, so that a greedy client delays itself alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turns:
    """`slots` places on one event loop. Clients take turns; each client's own requests go in order."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = slots
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @property
    def num_waiting(self) -> int:
        """Requests whose turn has not come."""
        return sum(not request.done() for line in self._waiting.values() for request in line)

    @property
    def num_taken(self) -> int:
        """Places in use."""
        return self.slots - self._free

    @asynccontextmanager
    async def turn(self, client: Hashable) -> AsyncIterator[None]:
        """A place while the block lasts."""
        await self._take(client)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, client: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        request = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(request)
        try:
            await request
        except asyncio.CancelledError:
            if request.done() and not request.cancelled():  # the place came at the same moment
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._waiting:
            client, line = next(iter(self._waiting.items()))
            request = line.popleft()
            del self._waiting[client]
            if line:
                self._waiting[client] = line  # to the end: the others come first
            if not request.done():
                request.set_result(None)
                return
        self._free += 1
