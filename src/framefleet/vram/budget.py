"""MemoryBudget: who holds how many bytes of a bounded memory, first come first served.

    budget = MemoryBudget(2 * GIB, name="frames in flight")
    with budget.lease(nbytes, timeout_s=30) as lease:
        ...
        lease.settle(used)

One queue serves threads and event loops alike. A request waits behind every earlier one, even when it would fit, so a
large request is never starved by small ones.

Leases may be returned from anywhere, a garbage collector's callback included: such a callback can run inside any
line of this module, in the very thread that is changing the books. So nothing here waits for a lock. Whoever wants a
change posts it, and whoever finds the books free enters all that was posted; what is posted while they are taken is
entered by their holder before leaving. Two threads at once may therefore see each other's changes a moment late.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from types import TracebackType

from framefleet.errors import BudgetTimeout, BudgetTooLarge, ConfigError
from framefleet.units import format_bytes


@dataclass(frozen=True, slots=True)
class BudgetStats:
    """What a budget has seen so far."""

    num_granted: int = 0
    num_refused: int = 0
    """Too large for the whole budget."""
    num_timeouts: int = 0
    waited_s: float = 0.0
    """By all granted requests together."""
    peak_held_bytes: int = 0


class _Books:
    """Who holds what and who waits; every change to them is entered here, one after the other."""

    def __init__(self, total_bytes: int, name: str) -> None:
        self.total_bytes = total_bytes
        self.name = name
        self.held_bytes = 0
        self.stats = BudgetStats()
        self.queue: deque[LeaseRequest] = deque()
        self._posted: deque[Callable[[], None]] = deque()
        self._taken = threading.Lock()

    def post(self, change: Callable[[], None]) -> None:
        """Have a change entered, by this thread or by the one that holds the books."""
        self._posted.append(change)
        while self._posted and self._taken.acquire(blocking=False):
            try:
                while self._posted:
                    self._posted.popleft()()
                self._grant_in_turn()
            finally:
                self._taken.release()

    def hold(self, more_bytes: int) -> None:
        """Inside a posted change."""
        self.held_bytes += more_bytes
        self.count(peak_held_bytes=max(self.stats.peak_held_bytes, self.held_bytes))

    def count(self, **changes: float) -> None:
        """Inside a posted change."""
        self.stats = replace(self.stats, **changes)  # type: ignore[arg-type]

    def _grant_in_turn(self) -> None:
        while self.queue:
            first = self.queue[0]
            if not first.granted.cancelled() and first.nbytes > self.total_bytes - self.held_bytes:
                return
            self.queue.popleft()
            if first.granted.set_running_or_notify_cancel():
                self._grant(first)

    def _grant(self, request: LeaseRequest) -> None:
        waited_s = time.monotonic() - request.asked_at_s
        self.hold(request.nbytes)
        self.count(num_granted=self.stats.num_granted + 1, waited_s=self.stats.waited_s + waited_s)
        request.granted.set_result(Lease(self, request.nbytes, waited_s))


class Lease:
    """Bytes held. Returned by leaving the block or by `release`, which may be called any number of times."""

    def __init__(self, books: _Books, nbytes: int, waited_s: float) -> None:
        self.nbytes = nbytes
        """Held now; 0 once released."""
        self.waited_s = waited_s
        """Between the request and the grant."""
        self._books = books
        self._is_released = False

    def settle(self, used_bytes: int) -> None:
        """Hold what was really used. The difference goes back, or is charged even if that overdraws the budget.

        An overdraft is the truth about memory that is already taken; nothing is granted until it is paid back.
        """
        _check_size(used_bytes)
        self._books.post(lambda: self._resize(used_bytes))

    def release(self) -> None:
        """Give the bytes back."""
        self._books.post(self._close)

    def _resize(self, nbytes: int) -> None:
        if not self._is_released:
            self._books.hold(nbytes - self.nbytes)
            self.nbytes = nbytes

    def _close(self) -> None:
        self._resize(0)
        self._is_released = True

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Lease of {format_bytes(self.nbytes)}>"


class LeaseRequest:
    """A place in the queue, for those who must be able to leave it from another thread."""

    def __init__(self, books: _Books, nbytes: int) -> None:
        self.nbytes = nbytes
        self.asked_at_s = time.monotonic()
        self.granted: Future[Lease] = Future()
        self._books = books

    def wait(self, timeout_s: float | None = None) -> Lease:
        """The lease, once it is this request's turn. Raises BudgetTimeout, or CancelledError after `withdraw`."""
        try:
            return self.granted.result(timeout_s)
        except TimeoutError:
            self.withdraw()
            raise self._timed_out(timeout_s) from None
        except CancelledError:
            raise
        except BaseException:  # Ctrl-C while waiting: nobody will take the lease
            self.withdraw()
            raise

    async def wait_async(self, timeout_s: float | None = None) -> Lease:
        """As `wait`, on an event loop; cancelling the task leaves the queue."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self.granted), timeout_s)
        except TimeoutError:
            self.withdraw()
            raise self._timed_out(timeout_s) from None
        except asyncio.CancelledError:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Leave the queue; a lease that was granted meanwhile goes back."""
        if not self.granted.cancel():
            self.granted.result().release()
        self._books.post(_nothing)  # whoever stood behind may fit now

    def _timed_out(self, timeout_s: float | None) -> BudgetTimeout:
        books = self._books
        books.post(lambda: books.count(num_timeouts=books.stats.num_timeouts + 1))
        return BudgetTimeout(
            f"no {books.name} came free in time",
            given=f"{format_bytes(self.nbytes)} after {timeout_s:g} s",
            allowed=f"{format_bytes(books.total_bytes)} in all, {format_bytes(books.held_bytes)} held",
            remedy="drop what is done with, raise the budget, or wait longer",
        )


class MemoryBudget:
    """`total_bytes` to share out. `name` says of what, in errors."""

    def __init__(self, total_bytes: int, *, name: str = "memory") -> None:
        if total_bytes <= 0:
            raise ConfigError(f"the budget for {name} is empty", given=f"{total_bytes} bytes", allowed="1 or more")
        self._books = _Books(total_bytes, name)

    def lease(self, nbytes: int, *, timeout_s: float | None = None) -> Lease:
        """Hold `nbytes`, waiting at most `timeout_s` (None: as long as it takes).

        Raises BudgetTooLarge at once if the whole budget is smaller, BudgetTimeout if the turn does not come in time.
        """
        return self.request(nbytes).wait(timeout_s)

    async def lease_async(self, nbytes: int, *, timeout_s: float | None = None) -> Lease:
        """As `lease`, on an event loop: `with await budget.lease_async(n) as lease:`."""
        return await self.request(nbytes).wait_async(timeout_s)

    def request(self, nbytes: int) -> LeaseRequest:
        """Queue up without waiting. Raises BudgetTooLarge."""
        _check_size(nbytes)
        books = self._books
        if nbytes > self.total_bytes:
            books.post(lambda: books.count(num_refused=books.stats.num_refused + 1))
            raise BudgetTooLarge(
                f"the budget for {self.name} is smaller than the request",
                given=format_bytes(nbytes),
                allowed=f"at most {format_bytes(self.total_bytes)}",
                remedy="raise the budget, or ask for fewer or smaller frames",
            )
        request = LeaseRequest(books, nbytes)
        books.post(lambda: books.queue.append(request))
        return request

    @property
    def total_bytes(self) -> int:
        """To share out."""
        return self._books.total_bytes

    @property
    def name(self) -> str:
        """Of what."""
        return self._books.name

    @property
    def stats(self) -> BudgetStats:
        """Counts so far."""
        return self._books.stats

    @property
    def held_bytes(self) -> int:
        """Leased out now."""
        return self._books.held_bytes

    @property
    def free_bytes(self) -> int:
        """Not leased out; negative while overdrawn by `settle`."""
        return self.total_bytes - self.held_bytes

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return sum(not request.granted.cancelled() for request in tuple(self._books.queue))


def _check_size(nbytes: int) -> None:
    if nbytes < 0:
        raise ConfigError("not a size", given=f"{nbytes} bytes", allowed="0 or more")


def _nothing() -> None:
    pass
