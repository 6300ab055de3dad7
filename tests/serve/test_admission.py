"""Who gets in, who waits, who is sent away."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import EngineBusy
from framefleet.serve.admission import Admission, Priority

LIVE, BATCH = Priority.LIVE, Priority.BATCH


class Hall:
    """Guests who stay until told to leave."""

    def __init__(self, capacity=1, max_queue=10, timeout_s=30):
        self.capacity = capacity
        self.admission = Admission(lambda: self.capacity, max_queue=max_queue, timeout_s=timeout_s)
        self.inside, self.order, self.tasks, self.refused = {}, [], {}, []

    async def come(self, name, priority=BATCH):
        self.tasks[name] = asyncio.create_task(self._stay(name, priority))
        await settle()

    async def _stay(self, name, priority):
        try:
            async with self.admission.admitted(priority):
                self.order.append(name)
                self.inside[name] = asyncio.Event()
                try:
                    await self.inside[name].wait()
                finally:
                    del self.inside[name]
        except EngineBusy as error:
            self.refused.append((name, str(error)))

    async def leave(self, name):
        self.inside[name].set()
        await settle()

    async def vanish(self, name):
        self.tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.tasks[name]
        await settle()


async def settle():
    for _ in range(8):
        await asyncio.sleep(0)


def test_live_goes_before_batch_and_the_first_come_goes_first():
    async def story():
        hall = Hall()
        for name, priority in [("a", BATCH), ("b1", BATCH), ("b2", BATCH), ("l1", LIVE), ("l2", LIVE)]:
            await hall.come(name, priority)
        for name in ["a", "l1", "l2", "b1", "b2"]:
            assert list(hall.inside) == [name]
            await hall.leave(name)
        assert hall.admission.num_admitted == hall.admission.num_waiting() == 0

    asyncio.run(story())


def test_a_full_queue_sends_away_and_live_takes_the_place_of_batch():
    async def story():
        hall = Hall(max_queue=2)
        for name in ["a", "b1", "b2", "b3"]:
            await hall.come(name)
        assert [name for name, _ in hall.refused] == ["b3"]
        for name in ["l1", "l2", "l3"]:
            await hall.come(name, LIVE)
        assert [name for name, _ in hall.refused] == ["b3", "b2", "b1", "l3"]
        assert "queue is full" in hall.refused[0][1]
        for name in ["a", "l1", "l2"]:
            await hall.leave(name)
        assert hall.admission.num_admitted == hall.admission.num_waiting() == 0

    asyncio.run(story())


def test_waiting_has_an_end():
    async def story():
        hall = Hall(timeout_s=0.01)
        await hall.come("a")
        await hall.come("b")
        await hall.tasks["b"]
        assert "waited too long" in hall.refused[0][1]
        assert hall.admission.num_waiting() == 0
        await hall.leave("a")

    asyncio.run(story())


def test_capacity_that_comes_later_wakes_those_who_wait():
    async def story():
        hall = Hall(capacity=0)
        await hall.come("a")
        await hall.come("b")
        hall.capacity = 2
        hall.admission.wake()
        await settle()
        assert list(hall.inside) == ["a", "b"]
        assert hall.admission.retry_after_s() >= 1
        for name in "ab":
            await hall.leave(name)

    asyncio.run(story())


def test_one_cancelled_in_the_moment_of_its_turn_passes_it_on():
    async def story():
        hall = Hall()
        for name in ["a", "b", "c"]:
            await hall.come(name)
        hall.inside["a"].set()
        await asyncio.sleep(0)  # a leaves: b's turn is set, b has not run yet
        hall.tasks["b"].cancel()
        await settle()
        assert list(hall.inside) == ["c"]
        await hall.leave("c")
        assert hall.admission.num_admitted == 0

    asyncio.run(story())


@given(st.lists(st.tuples(st.sampled_from(["live", "batch", "leave", "vanish"]), st.integers(0, 9)), max_size=40))
def test_never_more_inside_than_allowed_and_nobody_forgotten(steps):
    async def story():
        hall = Hall(capacity=2, max_queue=3)
        for i, (what, pick) in enumerate(steps):
            alive = [name for name, task in hall.tasks.items() if not task.done()]
            if what in ("live", "batch"):
                await hall.come(f"{i}", LIVE if what == "live" else BATCH)
            elif what == "leave" and hall.inside:
                await hall.leave(list(hall.inside)[pick % len(hall.inside)])
            elif what == "vanish" and alive:
                await hall.vanish(alive[pick % len(alive)])
            assert hall.admission.num_admitted == len(hall.inside) <= 2
            assert hall.admission.num_waiting() <= 3
            assert len(hall.inside) == 2 or hall.admission.num_waiting() == 0
        while hall.inside:
            await hall.leave(next(iter(hall.inside)))
        assert all(task.done() for task in hall.tasks.values())

    asyncio.run(story())


def test_batch_may_wait_for_ever_but_says_when_to_come_back():
    admission = Admission(lambda: 0, max_queue=0, timeout_s=1)
    with pytest.raises(EngineBusy, match="queue is full"):
        asyncio.run(admission._enter(BATCH))
    assert admission.retry_after_s() == 1
