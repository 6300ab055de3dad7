"""MemoryBudget: never above its total, in order, nothing lost however a holder or waiter leaves (recipe R7)."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from framefleet.errors import BudgetTimeout, BudgetTooLarge, ConfigError
from framefleet.vram.budget import Lease, LeaseRequest, MemoryBudget

B = 1000


def on_a_loop(test):
    @functools.wraps(test)
    def run():
        asyncio.run(asyncio.wait_for(test(), 60))

    return run


def test_a_lease_is_held_inside_its_block_only():
    budget = MemoryBudget(B)
    with budget.lease(300) as lease:
        assert (budget.held_bytes, budget.free_bytes, lease.nbytes) == (300, 700, 300)
    assert budget.free_bytes == B
    assert lease.nbytes == 0


def test_release_is_idempotent():
    budget = MemoryBudget(B)
    lease = budget.lease(B)
    for _ in range(3):
        lease.release()
    assert budget.free_bytes == B


def test_exactly_the_whole_budget_is_granted_and_one_byte_more_is_refused_at_once():
    budget = MemoryBudget(B, name="frames")
    with budget.lease(B):
        assert budget.free_bytes == 0
        with pytest.raises(BudgetTooLarge, match="frames is smaller"):
            budget.lease(B + 1)  # at once, although the budget is taken: waiting cannot help
    assert budget.stats.num_refused == 1


@pytest.mark.parametrize("total", [0, -5])
def test_an_empty_budget_is_a_config_error(total):
    with pytest.raises(ConfigError):
        MemoryBudget(total)


def test_a_negative_request_or_settlement_is_a_config_error():
    budget = MemoryBudget(B)
    with pytest.raises(ConfigError):
        budget.lease(-1)
    with budget.lease(10) as lease, pytest.raises(ConfigError):
        lease.settle(-1)
    assert budget.free_bytes == B


def test_settling_lower_returns_the_difference_to_those_who_wait():
    budget = MemoryBudget(B)
    lease = budget.lease(900)
    waiting = budget.request(500)
    assert not waiting.granted.done()
    lease.settle(400)
    assert waiting.wait(0).nbytes == 500
    assert budget.free_bytes == 100


def test_settling_higher_overdraws_and_blocks_until_paid_back():
    budget = MemoryBudget(B)
    lease = budget.lease(600)
    lease.settle(1300)
    assert budget.free_bytes == -300
    waiting = budget.request(1)
    assert not waiting.granted.done()
    lease.release()
    assert waiting.wait(0).nbytes == 1
    assert budget.stats.peak_held_bytes == 1300


def test_settling_after_release_changes_nothing():
    budget = MemoryBudget(B)
    lease = budget.lease(10)
    lease.release()
    lease.settle(500)
    assert budget.free_bytes == B


def test_a_large_request_is_not_overtaken_by_small_ones():
    budget = MemoryBudget(B)
    first = budget.lease(300)
    large = budget.request(900)
    small = [budget.request(10) for _ in range(40)]
    assert not any(r.granted.done() for r in [large, *small]), "the small ones fit, but came later"
    first.release()
    assert large.wait(0).nbytes == 900
    assert [r.granted.done() for r in small] == [True] * 10 + [False] * 30


def test_waiting_longer_than_allowed_raises_and_leaves_the_queue():
    budget = MemoryBudget(B, name="frames")
    with budget.lease(B):
        with pytest.raises(BudgetTimeout, match="no frames came free"):
            budget.lease(1, timeout_s=0.01)
        assert budget.num_waiting == 0
        assert budget.stats.num_timeouts == 1
    assert budget.lease(B, timeout_s=0).nbytes == B


def test_a_waiter_behind_one_that_gives_up_is_served():
    budget = MemoryBudget(B)
    _held = budget.lease(500)
    blocker, behind = budget.request(900), budget.request(400)
    assert not behind.granted.done()
    blocker.withdraw()
    assert behind.wait(0).nbytes == 400


def test_withdrawing_wakes_the_waiting_thread_and_returns_a_lease_already_granted():
    budget = MemoryBudget(B)
    held = budget.lease(B)
    request = budget.request(5)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(request.wait)
        request.withdraw()
        with pytest.raises(CancelledError):
            waiter.result(5)
    held.release()
    granted = budget.request(7)
    granted.withdraw()
    assert budget.free_bytes == B


def test_waiting_is_measured():
    budget = MemoryBudget(B)
    first = budget.lease(B)
    assert first.waited_s < 1
    request = budget.request(1)
    request.asked_at_s -= 5  # as if it had come five seconds ago
    first.release()
    assert 5 <= request.wait(0).waited_s < 6
    assert 5 <= budget.stats.waited_s < 7


def test_a_block_that_raises_returns_its_lease():
    budget = MemoryBudget(B)
    with pytest.raises(ZeroDivisionError), budget.lease(900):
        1 / 0  # noqa: B018
    assert budget.free_bytes == B


def test_a_lease_may_be_returned_by_the_garbage_collector_while_the_books_are_being_changed():
    """The collector's callback runs in the thread that holds the books: waiting for them would hang for ever."""
    budget = MemoryBudget(B)

    class Frames:
        pass

    inner_release = budget.lease(400).release
    frames = Frames()
    weakref.finalize(frames, inner_release)
    frames.loop = frames
    del frames
    budget._books.post(lambda: (gc.collect(), None)[1])
    assert budget.free_bytes == B


@on_a_loop
async def test_async_waiters_and_threads_share_one_queue():
    budget = MemoryBudget(B)
    held = budget.lease(B)
    task = asyncio.create_task(budget.lease_async(600))
    await asyncio.sleep(0)
    behind = budget.request(600)
    held.release()
    lease = await task
    assert not behind.granted.done()
    lease.release()
    assert behind.wait(0).nbytes == 600


@on_a_loop
async def test_cancelling_an_async_waiter_and_an_async_holder_frees_everything():
    budget = MemoryBudget(B)
    started = asyncio.Event()

    async def hold():
        with await budget.lease_async(B):
            started.set()
            await asyncio.sleep(60)

    holder = asyncio.create_task(hold())
    await started.wait()
    waiter = asyncio.create_task(budget.lease_async(10))
    await asyncio.sleep(0)
    assert budget.num_waiting == 1
    waiter.cancel()
    holder.cancel()
    await asyncio.gather(waiter, holder, return_exceptions=True)
    assert waiter.cancelled()
    assert (budget.free_bytes, budget.num_waiting) == (B, 0)


@on_a_loop
async def test_a_grant_that_crosses_a_cancellation_is_not_lost():
    budget = MemoryBudget(B)
    held = budget.lease(B)
    waiter = asyncio.create_task(budget.lease_async(10))
    await asyncio.sleep(0)
    held.release()  # granted now ...
    waiter.cancel()  # ... but the task never learns of it
    await asyncio.gather(waiter, return_exceptions=True)
    assert budget.free_bytes == B


@on_a_loop
async def test_async_timeout():
    budget = MemoryBudget(B)
    with budget.lease(B), pytest.raises(BudgetTimeout):
        await budget.lease_async(1, timeout_s=0.01)
    assert (budget.free_bytes, budget.num_waiting) == (B, 0)


@on_a_loop
async def test_r7_forty_at_once_with_every_way_to_leave():
    """0.3 B, 0.9 B, exactly B, 1.1 B; forty at once; raising, cancelled while waiting and while holding."""
    budget = MemoryBudget(B)
    seen_bytes = []

    async def job(number, size):
        with await budget.lease_async(size):
            seen_bytes.append(budget.held_bytes)
            await asyncio.sleep(0.001)
            if number % 7 == 3:
                raise ZeroDivisionError
            await asyncio.sleep(30 if number % 11 == 5 else 0.001)

    sizes = [(300, 900, B, 1100)[n % 4] for n in range(40)]
    tasks = [asyncio.create_task(job(n, size)) for n, size in enumerate(sizes)]
    await asyncio.sleep(0.003)
    for number in range(5, 40, 11):
        tasks[number].cancel()  # some wait still, some hold already
    tasks[38].cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    assert sum(isinstance(r, BudgetTooLarge) for r in results) == sum(
        size == 1100 and not tasks[n].cancelled() for n, size in enumerate(sizes)
    )
    assert any(isinstance(r, ZeroDivisionError) for r in results)
    assert max(seen_bytes) <= B
    assert budget.stats.peak_held_bytes <= B
    assert (budget.free_bytes, budget.num_waiting) == (B, 0)


def test_threads_never_hold_more_than_the_total_and_end_with_all_of_it():
    budget = MemoryBudget(B)
    counted = threading.Lock()
    really_held, peaks = [0], []

    def job(number):
        size = 1 + (number * 7919) % B
        for _ in range(30):
            try:
                lease = budget.lease(size, timeout_s=None if number % 3 else 0.002)
            except BudgetTimeout:
                continue
            with lease:
                with counted:
                    really_held[0] += size
                    peaks.append(really_held[0])
                with counted:
                    really_held[0] -= size

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(job, range(40)))
    assert max(peaks) <= B
    assert (budget.free_bytes, budget.num_waiting) == (B, 0)
    assert budget.stats.peak_held_bytes <= B


class BudgetMachine(RuleBasedStateMachine):
    """Against a model: a list of holders and a queue, served in order."""

    @initialize()
    def start(self):
        self.budget = MemoryBudget(B)
        self.held: dict[LeaseRequest, int] = {}
        self.queue: list[LeaseRequest] = []

    def serve(self):
        while self.queue and self.queue[0].nbytes <= B - sum(self.held.values()):
            request = self.queue.pop(0)
            self.held[request] = request.nbytes

    @rule(size=st.integers(0, B + 200))
    def ask(self, size):
        if size > B:
            with pytest.raises(BudgetTooLarge):
                self.budget.request(size)
            return
        self.queue.append(self.budget.request(size))
        self.serve()

    def pick(self, data, among) -> LeaseRequest | None:
        return among[data.draw(st.integers(0, len(among) - 1))] if among else None

    @rule(data=st.data(), times=st.integers(1, 2))
    def release(self, data, times):
        if request := self.pick(data, list(self.held)):
            for _ in range(times):
                request.granted.result(0).release()
            del self.held[request]
            self.serve()

    @rule(data=st.data(), used=st.integers(0, B + 300))
    def settle(self, data, used):
        if request := self.pick(data, list(self.held)):
            request.granted.result(0).settle(used)
            self.held[request] = used
            self.serve()

    @rule(data=st.data())
    def give_up(self, data):
        if request := self.pick(data, self.queue):
            request.withdraw()
            self.queue.remove(request)
            self.serve()

    @invariant()
    def agrees_with_the_model(self):
        assert self.budget.held_bytes == sum(self.held.values())
        assert self.budget.num_waiting == len(self.queue)
        assert all(isinstance(r.granted.result(0), Lease) for r in self.held)
        assert not any(r.granted.done() for r in self.queue)

    def teardown(self):
        for request in [*self.queue, *self.held]:
            request.withdraw()
        assert self.budget.free_bytes == B


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, B), min_size=1, max_size=30))
def test_grants_come_in_the_order_of_asking(sizes):
    budget = MemoryBudget(B)
    first = budget.lease(B)
    requests = [budget.request(size) for size in sizes]
    order = []
    for number, request in enumerate(requests):
        request.granted.add_done_callback(lambda _, number=number: order.append(number))
    first.release()
    for request in requests:
        request.granted.result(0).release()
    assert order == list(range(len(sizes)))
    assert budget.free_bytes == B
