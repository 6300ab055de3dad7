import asyncio

from framefleet.caption.channel import Channel


def test_items_come_out_in_order_and_end_with_the_channel():
    async def main() -> list[int]:
        channel: Channel[int] = Channel(2)

        async def feed() -> None:
            for n in range(10):
                assert await channel.put(n)
            await channel.close()

        feeding = asyncio.create_task(feed())
        got = [item async for item in channel]
        await feeding
        return got

    assert asyncio.run(main()) == list(range(10))


def test_put_waits_while_it_is_full():
    async def main() -> None:
        channel: Channel[int] = Channel(2)
        await channel.put(1)
        await channel.put(2)
        third = asyncio.create_task(channel.put(3))
        await asyncio.sleep(0)
        assert not third.done()
        assert await channel.take(10) == [1, 2]
        assert await third
        assert len(channel) == 1

    asyncio.run(main())


def test_closing_lets_waiters_go_and_takes_nothing_more():
    async def main() -> None:
        channel: Channel[int] = Channel(1)
        await channel.put(1)
        waiting = asyncio.create_task(channel.put(2))
        await asyncio.sleep(0)
        await channel.close()
        assert await waiting is False
        assert await channel.put(3) is False
        assert await channel.take(5) == [1]
        assert await channel.take(5) == []
        dropped: Channel[int] = Channel(1)
        await dropped.put(1)
        await dropped.close(discard=True)
        assert await dropped.take(1) == []

    asyncio.run(main())


def test_many_at_either_end_get_every_item_once():
    async def main() -> list[int]:
        channel: Channel[int] = Channel(3)
        got: list[int] = []

        async def read() -> None:
            async for item in channel:
                await asyncio.sleep(0)
                got.append(item)

        async def write(first: int) -> None:
            for n in range(first, first + 50):
                await channel.put(n)

        readers = [asyncio.create_task(read()) for _ in range(4)]
        await asyncio.gather(*(write(k * 50) for k in range(4)))
        await channel.close()
        await asyncio.gather(*readers)
        return got

    assert sorted(asyncio.run(main())) == list(range(200))
