"""A bounded queue that can be closed: where one stage hands over to the next, and waits when that one is behind."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """`put` waits while `capacity` items wait; iteration ends once it is closed and empty. Any number at either end."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self.capacity = capacity
        self._items: deque[T] = deque()
        self._is_closed = False
        lock = asyncio.Lock()
        self._has_room = asyncio.Condition(lock)  # two, so that one item wakes one waiter
        self._has_items = asyncio.Condition(lock)

    def __len__(self) -> int:
        return len(self._items)

    async def put(self, item: T) -> bool:
        """Hand over. False when the channel is closed: the item is not taken."""
        async with self._has_room:
            await self._has_room.wait_for(lambda: self._is_closed or len(self._items) < self.capacity)
            if self._is_closed:
                return False
            self._items.append(item)
            self._has_items.notify()
            return True

    async def take(self, most: int) -> list[T]:
        """At least one item, at most `most`, as many as are there; none when closed and empty."""
        async with self._has_items:
            await self._has_items.wait_for(lambda: self._is_closed or self._items)
            taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._has_room.notify(len(taken))
            return taken

    async def close(self, *, discard: bool = False) -> None:
        """No more items; with `discard` those waiting are dropped. Repeatable."""
        async with self._has_items:
            self._is_closed = True
            if discard:
                self._items.clear()
            self._has_items.notify_all()
            self._has_room.notify_all()

    async def __aiter__(self) -> AsyncIterator[T]:
        while taken := await self.take(1):
            yield taken[0]
