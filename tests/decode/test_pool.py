"""DecodePool: the same frames as in this process, for loops and threads, within the bytes allowed."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from framefleet.decode import session
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool, decode_isolated
from framefleet.decode.wire import mapping_of
from framefleet.errors import (
    BudgetTimeout,
    BudgetTooLarge,
    ConfigError,
    DecodeError,
    FramefleetError,
    SourceNotFound,
    SourceTooLarge,
)
from framefleet.media.digest import content_digest
from framefleet.media.source import VideoSource
from framefleet.units import GIB, MIB

CORPUS = Path(__file__).parent.parent / "corpus"
TRUTH = json.loads((CORPUS / "truth.json").read_text())
BASE = CORPUS / "files" / "base.mp4"
BOMB = CORPUS / "files" / "pixel_bomb_8k.mp4"
SMALL = DecodeOptions(num_frames=8, max_pixels=128 * 128, timeout_s=120)
CLIP_BYTES = 4 * 48 * 64 * 3  # of a clip by faulty_tasks


@pytest.fixture(scope="module")
def pool():
    with DecodePool(workers=2) as opened:
        yield opened


def outcome(work):
    """Whatever must be the same in this process and in a worker."""
    try:
        return work()
    except FramefleetError as error:
        return type(error).__name__, str(error)


def facts(frames):
    stats = frames.stats
    return (
        frames.info, frames.duration_s, frames.fps, frames.total_num_frames, stats.backend, stats.refusals,
        stats.num_missing, stats.num_corrupt, stats.notes, stats.index_method, stats.frames_walked,
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_every_corpus_file_gives_what_it_gives_in_this_process(pool, name):
    path = CORPUS / "files" / name
    here = outcome(lambda: session.decode(path, SMALL))
    there = outcome(lambda: pool.run("decode", path, SMALL))
    if isinstance(here, tuple) or isinstance(there, tuple):
        assert there == here
        return
    assert facts(there) == facts(here)
    for array, same in ((there.data, here.data), (there.pts_s, here.pts_s), (there.indices, here.indices)):
        assert array.dtype == same.dtype
        assert np.array_equal(array, same)
    assert there.data.flags.writeable
    assert there.data.flags.c_contiguous
    assert there.stats.peak_bytes > 10 * MIB
    assert {"wait", "queue"} <= set(there.stats.seconds)


def same_scan(one, other):
    assert (one.info, one.index.end_ns, one.index.method) == (other.info, other.index.end_ns, other.index.method)
    for name in ("packet_pts", "packet_is_keyframe", "packet_is_reference", "packet_of_row", "pts_ns"):
        assert np.array_equal(getattr(one.index, name), getattr(other.index, name))
    coded, same = one.index.coded_frames, other.index.coded_frames
    assert (coded is None) == (same is None)
    if coded is not None:
        assert np.array_equal(coded.packet, same.packet)
        assert np.array_equal(coded.needs, same.needs)


@pytest.mark.parametrize("name", ["base.mp4", "many_frames_14000.mp4", "editlist_cut.mp4", "av1.mp4"])
def test_scan_and_digest(pool, name):
    source = VideoSource.of(CORPUS / "files" / name)

    async def scenario():
        return await asyncio.gather(pool.scan(source), pool.digest(source))

    clip, digest = asyncio.run(scenario())
    here, _ = session.scan_timed(source, DecodeOptions())
    assert clip.source == source
    same_scan(clip, here)
    assert digest == content_digest(source)


def test_a_scanned_clip_is_not_scanned_again(pool):
    whole = pool.run("decode", BASE, SMALL)
    for source in (BASE, BASE.read_bytes()):
        clip = asyncio.run(pool.scan(source))
        assert clip.source == VideoSource.of(source)
        frames = pool.run("decode", clip, SMALL)
        assert frames.stats.seconds["probe"] == 0
        assert np.array_equal(frames.data, whole.data)


def test_bytes_and_file_objects(pool):
    whole = pool.run("decode", BASE, SMALL)
    assert np.array_equal(pool.run("decode", BASE.read_bytes(), SMALL).data, whole.data)
    with BASE.open("rb") as stream:
        assert np.array_equal(pool.run("decode", stream, SMALL).data, whole.data)


@pytest.mark.parametrize("name", [b"clip\xff.mp4", "\u3072 100% #1?.mp4".encode(), b"-x\n.mp4"], ids=repr)
def test_names_that_hold_whatever_a_file_system_allows(pool, tmp_path, name):
    path = os.fsdecode(os.path.join(os.fsencode(tmp_path), name))  # noqa: PTH118
    shutil.copy(BASE, path)
    assert np.array_equal(pool.run("decode", path, SMALL).data, pool.run("decode", BASE, SMALL).data)
    clip = asyncio.run(pool.scan(path))
    assert clip.source == VideoSource.of(path)
    assert len(pool.run("decode", clip, SMALL)) == 8
    assert pool.run("scan", path).source == VideoSource.of(path)
    assert asyncio.run(pool.digest(path)) == content_digest(VideoSource.of(BASE))
    Path(path).unlink()
    for source in (path, clip):
        assert outcome(lambda source=source: pool.run("decode", source, SMALL))[0] == "SourceNotFound"
    assert outcome(lambda: pool.run("decode", path, SMALL)) == outcome(lambda: session.decode(path, SMALL))


def test_many_at_once_from_a_loop(pool):
    async def scenario():
        return await asyncio.gather(
            *(pool.decode(BASE, DecodeOptions(num_frames=n)) for n in range(1, 41)),
            *(pool.decode("no such file") for _ in range(5)),
            return_exceptions=True,
        )

    results = asyncio.run(scenario())
    assert [len(frames) for frames in results[:40]] == list(range(1, 41))
    assert {type(error) for error in results[40:]} == {SourceNotFound}


def test_a_blocked_event_loop_does_not_hold_up_the_workers():
    async def scenario(pool):
        jobs = [asyncio.create_task(pool.decode("fine")) for _ in range(10)]
        await asyncio.sleep(0)
        end_s = time.monotonic() + 20
        while pool.load.jobs_done < 10:  # the loop stands still meanwhile
            assert time.monotonic() < end_s
            time.sleep(0.005)
        return await asyncio.gather(*jobs)

    with DecodePool(workers=1, tasks="faulty_tasks") as pool:
        assert len(asyncio.run(scenario(pool))) == 10


def test_the_async_block_opens_and_closes():
    async def scenario():
        async with DecodePool(workers=1, tasks="faulty_tasks") as pool:
            frames = await pool.decode("fine")
        with pytest.raises(ConfigError, match="not open"):
            await pool.decode("fine")
        return frames

    frames = asyncio.run(scenario())
    assert frames.data.max() == 7, "frames outlive their pool"


def test_frames_in_flight_never_pass_the_bound_and_a_slow_consumer_stops_the_workers():
    bound = 3 * CLIP_BYTES + 100
    with (
        DecodePool(workers=2, tasks="faulty_tasks", max_bytes_in_flight=bound) as pool,
        ThreadPoolExecutor(8) as threads,
    ):
        jobs = [threads.submit(pool.run, "decode", "fine", DecodeOptions(timeout_s=1.5)) for _ in range(8)]
        end_s = time.monotonic() + 20
        while pool.load.waiting_for_room < 2:
            assert time.monotonic() < end_s
            time.sleep(0.005)
        time.sleep(2.5)  # longer than the clips' deadlines: waiting for room must not count
        assert pool.load.bytes_in_flight == 3 * CLIP_BYTES
        assert sum(job.done() for job in jobs) == 3
        finished = 0
        while jobs:
            done = [job for job in jobs if job.done()]
            finished += sum(len(job.result()) == 4 for job in done)
            jobs = [job for job in jobs if job not in done]
            del done
            assert pool.budget.held_bytes <= bound
            time.sleep(0.01)
        assert finished == 8
        assert pool.budget.stats.peak_held_bytes <= bound
        assert pool.load.workers_lost == 0
        assert pool.load.bytes_in_flight == 0


def test_frames_count_until_the_last_view_is_gone():
    with DecodePool(workers=1, tasks="faulty_tasks") as pool:
        frames = pool.run("decode", "fine")
        assert pool.budget.held_bytes == CLIP_BYTES
        one, pts_s = frames.data[1:2, :, ::2], frames.pts_s
        del frames
        assert pool.budget.held_bytes == CLIP_BYTES
        assert one.max() == 7
        del one
        assert pool.budget.held_bytes == 0, "time stamps do not keep the pictures"
        assert pts_s[1] == 1 / 25


def test_a_clip_larger_than_the_whole_bound_is_refused_and_costs_no_worker():
    with DecodePool(workers=1, tasks="faulty_tasks", max_bytes_in_flight=CLIP_BYTES) as pool:
        with pytest.raises(BudgetTooLarge, match="frames in flight is smaller"):
            pool.run("decode", "fine", DecodeOptions(num_frames=5))
        assert len(pool.run("decode", "fine", DecodeOptions(num_frames=4))) == 4
        assert pool.load.workers_lost == 0


def test_room_that_does_not_come_free_in_time_is_an_error_and_costs_no_worker():
    with DecodePool(workers=1, tasks="faulty_tasks", max_bytes_in_flight=CLIP_BYTES, lease_timeout_s=0.05) as pool:
        kept = pool.run("decode", "fine")
        with pytest.raises(BudgetTimeout, match="room for frames in flight"):
            pool.run("decode", "fine")
        del kept
        assert len(pool.run("decode", "fine")) == 4
        assert pool.load.workers_lost == 0


def test_cancelling_a_clip_that_waits_for_room_gives_its_place_up():
    async def scenario(pool):
        kept = await pool.decode("fine")
        waiting = asyncio.create_task(pool.decode("fine"))
        while not pool.load.waiting_for_room:
            await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert pool.budget.num_waiting == 0
        del kept
        return len(await pool.decode("fine"))

    with DecodePool(workers=1, tasks="faulty_tasks", max_bytes_in_flight=CLIP_BYTES) as pool:
        assert asyncio.run(scenario(pool)) == 4
        assert pool.budget.held_bytes == 0


def test_cancelling_after_the_frames_came_does_not_keep_them():
    async def scenario(pool):
        task = asyncio.create_task(pool.decode("fine"))
        await asyncio.sleep(0)
        while pool.load.jobs_done < 1:
            time.sleep(0.005)  # the loop does not learn of the result ...
        task.cancel()  # ... before this
        await asyncio.gather(task, return_exceptions=True)

    with DecodePool(workers=1, tasks="faulty_tasks") as pool:
        asyncio.run(scenario(pool))
        assert pool.budget.held_bytes == 0


def test_a_bomb_costs_only_its_clip():
    """34 kB of 8K video: about 500 MiB to decode, 1.6 GB as 16 full frames."""
    with DecodePool(workers=1, worker_bytes=250 * MIB, max_bytes_in_flight=1 * GIB) as pool:
        with pytest.raises((SourceTooLarge, DecodeError)):
            pool.run("decode", BOMB, DecodeOptions(num_frames=2, size=(64, 36)))
        with pytest.raises((BudgetTooLarge, SourceTooLarge, DecodeError)):
            pool.run("decode", BOMB)
        assert len(pool.run("decode", BASE)) == 16
    with DecodePool(workers=1, max_bytes_in_flight=1 * GIB) as pool, pytest.raises(BudgetTooLarge):
        pool.run("decode", BOMB)


def test_decode_isolated():
    frames = decode_isolated(BASE, SMALL)
    assert np.array_equal(frames.data, session.decode(BASE, SMALL).data)
    assert mapping_of(frames.data) is not None
    with pytest.raises(SourceNotFound):
        decode_isolated("no such file")


@pytest.mark.parametrize("options", [{"num_ffmpeg_threads": 2}, {"num_ffmpeg_threads": 0}, {"device": "cuda"}], ids=str)
def test_options_that_do_not_fit_a_pool_are_refused_before_anything_starts(pool, options):
    with pytest.raises(ConfigError):
        pool.run("decode", BASE, DecodeOptions(**options))
    with pytest.raises(ConfigError, match="decode, scan, digest"):
        pool.run("dance", BASE)


def test_the_pools_own_process_loads_no_decode_library():
    code = "import sys, framefleet.decode.pool\nprint(sorted({'av', 'torch', 'cv2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_pool_is_opened_once(pool):
    with pytest.raises(ConfigError, match="open already"):
        pool.open()
