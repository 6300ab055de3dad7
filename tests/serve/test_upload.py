"""Bodies on their way: order, limits of what is held, and another reading."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefleet.errors import SourceTooLarge
from framefleet.serve.cost import HEAD_BYTES
from framefleet.serve.upload import AHEAD_BYTES, SMALL_BYTES, DiskRoom, Spool, Upload

BIG = 10**9


async def everything(upload):
    return b"".join([chunk async for chunk in upload.chunks()])


async def feed(upload, chunks):
    for chunk in chunks:
        await upload.feed(chunk)
    upload.finish()


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 700_000), max_size=8),
    st.sampled_from([0, 300_000, BIG]),
    st.sampled_from([0, 500_000, BIG]),
    st.integers(0, 8),
)
def test_every_reader_gets_the_whole_or_is_refused(sizes, memory_bytes, disk_bytes, stop_after):
    rng, room = Random(1), DiskRoom(disk_bytes)
    chunks = [rng.randbytes(size) for size in sizes]
    whole = b"".join(chunks)

    async def story():
        upload = Upload(Spool(memory_bytes, room))
        feeding = asyncio.create_task(feed(upload, chunks))
        head = await upload.head()
        assert whole.startswith(head)
        assert head == whole if upload.is_small else len(head) >= HEAD_BYTES
        received = b""
        async for chunk in upload.chunks():  # an attempt that fails on its way
            received += chunk
            stop_after_now = len(received) >= stop_after * 300_000
            if stop_after_now:
                break
        assert whole.startswith(received)
        if upload.may_be_read_again:
            assert await everything(upload) == whole
        else:
            assert min(memory_bytes, disk_bytes) < len(whole)
            feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        assert upload.tail == whole[: upload.num_bytes][-HEAD_BYTES:]
        upload.forget()
        upload.forget()
        assert room.free_bytes == disk_bytes

    asyncio.run(story())


def test_little_is_held_that_nobody_has_taken():
    async def story():
        upload, fed = Upload(Spool(0, DiskRoom(BIG))), 0

        async def feeding():
            nonlocal fed
            for _ in range(100):
                await upload.feed(bytes(100_000))
                fed += 100_000
            upload.finish()

        task = asyncio.create_task(feeding())
        await upload.head()
        for _ in range(20):
            await asyncio.sleep(0)
        assert fed <= AHEAD_BYTES + 100_000
        assert len(await everything(upload)) == 10_000_000
        await task
        upload.forget()

    asyncio.run(story())


def test_a_failure_reaches_whoever_reads():
    async def story():
        for before in (b"", bytes(SMALL_BYTES + 1)):
            upload = Upload(Spool(BIG, DiskRoom(0)))
            feeding = asyncio.create_task(upload.feed(before))
            await asyncio.sleep(0)
            upload.fail(SourceTooLarge("too large"))
            with pytest.raises(SourceTooLarge):
                await everything(upload)
            with pytest.raises(SourceTooLarge):
                await upload.head()
            await feeding

    asyncio.run(story())


def test_a_new_reader_ends_the_one_before():
    async def story():
        upload = Upload(Spool(BIG, DiskRoom(0)))
        await upload.feed(b"ab")
        first = upload.chunks()
        assert await anext(first) == b"ab"
        waiting = asyncio.create_task(anext(first))
        await asyncio.sleep(0)
        second = upload.chunks()
        assert await anext(second) == b"ab"
        await upload.feed(b"cd")
        upload.finish()
        assert await anext(second) == b"cd"
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(story())


def test_what_is_unwanted_is_thrown_away_without_waiting():
    async def story():
        upload = Upload(Spool(BIG, DiskRoom(0)))
        feeding = asyncio.create_task(feed(upload, [bytes(900_000)] * 5))
        await asyncio.sleep(0)
        await upload.discard(5)
        await asyncio.wait_for(feeding, 5)
        assert upload.num_bytes < 4_500_000

    asyncio.run(story())


def test_a_full_disk_costs_the_second_attempt_only(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)

    async def story():
        upload = Upload(Spool(0, DiskRoom(BIG), str(tmp_path)))
        feeding = asyncio.create_task(feed(upload, [b"x" * 3_000_000]))
        assert await everything(upload) == b"x" * 3_000_000
        await feeding
        assert not upload.may_be_read_again

    asyncio.run(story())
