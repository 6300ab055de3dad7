"""Turns: never more than there are places, clients served in rotation, those who leave are passed over."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.service.turns import Turns


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def order_of(turns, clients):
    """In which order the clients' requests, all made while every place is taken, come to their turn."""
    order, go = [], asyncio.Event()

    async def hold():
        async with turns.turn("holder"):
            await go.wait()

    async def ask(client):
        async with turns.turn(client):
            order.append(client)

    holders = [asyncio.create_task(hold()) for _ in range(turns.slots)]
    await settle()
    asks = [asyncio.create_task(ask(client)) for client in clients]
    await settle()
    assert turns.num_waiting == len(clients)
    go.set()
    await asyncio.gather(*holders, *asks)
    assert (turns.num_taken, turns.num_waiting) == (0, 0)
    return order


@given(st.lists(st.integers(0, 3), max_size=25))
def test_no_client_gets_ahead_of_another_that_waits(clients):
    order = asyncio.run(order_of(Turns(1), clients))
    assert Counter(order) == Counter(clients)
    so_far = Counter()
    for client in order:
        so_far[client] += 1
        for other, total in Counter(clients).items():
            assert so_far[client] <= so_far[other] + 1 or so_far[other] == total


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20))
def test_places_are_bounded_and_survive_those_who_leave(slots, requests):
    async def play():
        turns, inside, most = Turns(slots), 0, 0

        async def ask(client):
            nonlocal inside, most
            async with turns.turn(client):
                inside += 1
                most = max(most, inside)
                try:
                    await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = [(asyncio.create_task(ask(client)), leaves) for client, leaves in requests]
        await asyncio.sleep(0)
        for task, leaves in tasks:
            if leaves:
                task.cancel()
                await asyncio.sleep(0)
        results = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        assert all(result is None for result, (_, leaves) in zip(results, requests, strict=True) if not leaves)
        assert most <= slots
        assert (turns.num_taken, turns.num_waiting) == (0, 0)

    asyncio.run(play())
