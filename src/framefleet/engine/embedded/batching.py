"""Which waiting questions go together. The choice is pure; the queue around it is one condition variable."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar


class Waiting(Protocol):
    """What the choice looks at."""

    @property
    def id(self) -> int: ...
    @property
    def key(self) -> Hashable: ...
    @property
    def num_tokens(self) -> int: ...


W = TypeVar("W", bound=Waiting)


def form_batch(waiting: Sequence[W], *, max_batch: int, max_batch_tokens: int) -> list[W]:
    """The oldest and, in order of arrival, those with its key while rows x longest stays within `max_batch_tokens`."""
    batch: list[W] = []
    longest = 0
    for one in waiting:
        grown = max(longest, one.num_tokens)
        if batch and (one.key != batch[0].key or grown * (len(batch) + 1) > max_batch_tokens):
            continue
        batch.append(one)
        longest = grown
        if len(batch) == max_batch:
            break
    return batch


class Inbox:
    """Questions in order of arrival, given out in batches. Filled by one thread, emptied by another."""

    def __init__(self, *, max_batch: int, max_batch_tokens: int, batch_wait_s: float) -> None:
        self._max_batch = max_batch
        self._max_batch_tokens = max_batch_tokens
        self._batch_wait_s = batch_wait_s
        self._waiting: list[Waiting] = []
        self._changed = threading.Condition()

    def put(self, one: Waiting) -> None:
        """Add the newest."""
        with self._changed:
            self._waiting.append(one)
            self._changed.notify()

    def withdraw(self, question_id: int) -> None:
        """Take one out, if it still waits."""
        with self._changed:
            self._waiting = [one for one in self._waiting if one.id != question_id]

    def take(self) -> list[Waiting]:
        """The next batch. Waits for a first question, then `batch_wait_s` at most for company."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: bool(self._waiting))
                self._wait_for_company()
                if batch := self._batch():
                    self._waiting = [one for one in self._waiting if one not in batch]
                    return batch

    def _wait_for_company(self) -> None:
        until = time.monotonic() + self._batch_wait_s
        while self._waiting and len(self._batch()) < self._max_batch and (left_s := until - time.monotonic()) > 0:
            self._changed.wait(left_s)

    def _batch(self) -> list[Waiting]:
        return form_batch(self._waiting, max_batch=self._max_batch, max_batch_tokens=self._max_batch_tokens)
