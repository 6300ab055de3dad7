"""What a clip does to its decoder costs that clip only: hangs, crashes, bombs, wrong code, shots from outside."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.errors import (
    ConfigError,
    DecoderBug,
    DecoderLost,
    DecodeTimeout,
    DeviceError,
    SourceCorrupt,
    SourceTooLarge,
)
from framefleet.units import MIB

SHORT = DecodeOptions(timeout_s=0.3)


@contextmanager
def faulty_pool(workers=1, **settings):
    with DecodePool(workers=workers, tasks="faulty_tasks", **settings) as pool:
        yield pool
    assert pool.budget.held_bytes == 0, "frames nobody has are counted as in flight"


FAKE = DecodeOptions(backend="fake", timeout_s=4, num_frames=4)


def test_through_the_session_a_hang_and_a_crash_cost_their_clip_only(tmp_path):
    with DecodePool(workers=1) as pool:
        with pytest.raises(DecodeTimeout, match="worker was killed"):
            pool.run("decode", b'fake:{"fault": "hang"}', FAKE)
        with pytest.raises(DecoderLost, match="worker died"):
            pool.run("decode", b'fake:{"fault": "crash"}', FAKE)
        once = b'fake:{"fault": "crash", "once": "%s"}' % str(tmp_path / "mark").encode()
        assert len(pool.run("decode", once, FAKE)) == 4
        assert {offence.backend for offence in pool.quarantined} == {"fake"}
        assert pool.load.workers_lost == 4


def still_works(pool):
    return len(pool.run("decode", "fine")) == 4


def worker_pid(pool):
    return int(pool.run("digest", "any"))


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true, within_s=10):
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


@pytest.mark.parametrize("fault", ["hang", "hang_after"])
def test_a_hang_with_the_interpreters_lock_held_ends_at_the_deadline(fault):
    with faulty_pool() as pool:
        with pytest.raises(DecodeTimeout, match=r"deadline passed.*0\.3 s"):
            pool.run("decode", fault, SHORT)
        assert still_works(pool)
        assert pool.load.workers_lost == 1


@pytest.mark.parametrize(
    ("fault", "died_of"),
    [
        ("segfault", "SIGSEGV; Fatal Python error: Segmentation fault"),
        ("segfault_after", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("exit", "exit status 4"),
    ],
)
def test_a_crash_is_tried_once_more_and_then_quarantined(fault, died_of):
    with faulty_pool() as pool:
        with pytest.raises(DecoderLost, match="worker died") as caught:
            pool.run("decode", fault)
        assert died_of in str(caught.value)
        assert still_works(pool)
        with pytest.raises(DecoderLost, match="quarantined: it cost 2 workers"):
            pool.run("decode", fault)
        assert pool.load.workers_lost == 2, "refused without another try"
        (offence,) = pool.quarantined
        assert (offence.name, offence.num_kills) == (fault, 2)
    with faulty_pool(known_offences=[offence]) as later, pytest.raises(DecoderLost, match="quarantined"):
        later.run("decode", fault)


@pytest.mark.parametrize(("max_kills", "lost_by_call"), [(1, [1, 1]), (3, [2, 3, 3]), (4, [2, 4, 4])])
def test_a_crash_is_never_tried_more_than_twice_in_one_call(max_kills, lost_by_call):
    with faulty_pool(max_kills=max_kills) as pool:
        for lost in lost_by_call:
            with pytest.raises(DecoderLost):
                pool.run("decode", "segfault")
            assert pool.load.workers_lost == lost
        assert len(pool.quarantined) == 1


def test_a_clip_too_slow_twice_is_quarantined_for_deadlines_no_longer():
    with faulty_pool() as pool:
        for _ in range(2):
            with pytest.raises(DecodeTimeout, match="deadline passed"):
                pool.run("decode", "hang", SHORT)
        with pytest.raises(DecodeTimeout, match="quarantined"):
            pool.run("decode", "hang", SHORT)
        assert len(pool.quarantined) == 1


def test_a_worker_shot_from_outside_mid_decode_costs_nothing(tmp_path):
    with faulty_pool() as pool:
        assert len(pool.run("decode", f"die_once:{tmp_path / 'mark'}")) == 4
        assert pool.quarantined == ()
        assert pool.load.workers_lost == 1


def test_a_worker_shot_while_idle_costs_nothing():
    with faulty_pool() as pool:
        os.kill(worker_pid(pool), signal.SIGKILL)
        assert still_works(pool)


def test_one_fault_leaves_the_other_workers_at_their_work():
    with faulty_pool(workers=2) as pool, ThreadPoolExecutor(8) as threads:
        clips = ["fine", "segfault", "hang", "wrong", "corrupt:x", "exit", *["fine"] * 20]
        jobs = [threads.submit(pool.run, "decode", clip, DecodeOptions(timeout_s=4)) for clip in clips]
        kinds = [type(job.exception()).__name__ for job in jobs]
        del jobs
    assert kinds == [
        "NoneType", "DecoderLost", "DecodeTimeout", "DecoderBug", "SourceCorrupt", "DecoderLost", *["NoneType"] * 20,
    ]  # fmt: skip


def test_errors_of_the_tree_arrive_whole():
    with faulty_pool() as pool, pytest.raises(SourceCorrupt) as caught:
        pool.run("decode", "corrupt:some.mp4")
    assert (caught.value.given, caught.value.remedy) == ("some.mp4", "fetch it again")


def test_any_other_error_is_a_bug_with_its_traceback_and_costs_no_worker():
    with faulty_pool() as pool:
        with pytest.raises(DecoderBug, match="ZeroDivisionError: by our own hand") as caught:
            pool.run("decode", "wrong")
        assert "in be_wrong" in "".join(caught.value.__notes__)
        assert still_works(pool)
        assert pool.load.workers_lost == 0


def test_a_result_of_another_type_is_not_believed():
    with faulty_pool(max_kills=1) as pool:
        with pytest.raises(DecoderLost):
            pool.run("scan", "any")
        assert still_works(pool)


def test_memory_above_the_workers_limit_costs_the_clip_and_not_the_machine():
    with faulty_pool(worker_bytes=300 * MIB) as pool:
        with pytest.raises(SourceTooLarge, match="more memory than a decode worker may take"):
            pool.run("decode", "memory:400")
        assert still_works(pool)
        assert len(pool.run("decode", "memory:100")) == 4


def test_a_clip_is_not_blamed_for_memory_that_others_took():
    with faulty_pool(worker_bytes=300 * MIB) as pool:
        pool.run("decode", "leak:180")
        assert len(pool.run("decode", "memory:180")) == 4, "done by a fresh worker"
        assert pool.load.workers_lost == 1


def test_worn_workers_are_replaced():
    with faulty_pool(recycle_after_jobs=3) as pool:
        pids = [worker_pid(pool) for _ in range(7)]
    assert [pids.index(pid) for pid in pids] == [0, 0, 0, 3, 3, 3, 6]
    with faulty_pool(recycle_above_bytes=150 * MIB) as pool:
        before = worker_pid(pool)
        pool.run("decode", "leak:120")
        assert worker_pid(pool) != before
        assert pool.load.workers_recycled == 1


def test_a_worker_that_cannot_start_is_reported_with_its_last_words(monkeypatch, caplog):
    monkeypatch.setenv("FAULTY_START", "1")
    with faulty_pool() as pool:
        with pytest.raises(DeviceError, match=r"does not start; got exit status 3 \(no such library\)"):
            pool.run("decode", "fine")
        monkeypatch.delenv("FAULTY_START")
        assert still_works(pool), "the next job tries again"
    assert "does not start" in caplog.text


def test_cancelling_kills_the_work_within_a_second(tmp_path):
    async def scenario(pool):
        note = tmp_path / "pid"
        task = asyncio.create_task(pool.decode(f"sleep:{note}"))
        while not (note.exists() and note.read_text()):
            await asyncio.sleep(0.005)
        pid = int(note.read_text())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: not is_running(pid), 1)
        assert len(await pool.decode("fine")) == 4

    with faulty_pool() as pool:
        asyncio.run(scenario(pool))
        assert pool.quarantined == ()


def test_cancelling_a_queued_clip_leaves_the_running_one_alone(tmp_path):
    async def scenario(pool):
        note = tmp_path / "pid"
        first = asyncio.create_task(pool.decode(f"sleep:{note}"))
        while not note.exists():
            await asyncio.sleep(0.005)
        second = asyncio.create_task(pool.decode("fine"))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert pool.load.workers_lost == 0
        assert not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert len(await pool.decode("fine")) == 4

    with faulty_pool() as pool:
        asyncio.run(scenario(pool))


def test_closing_ends_everything_and_says_so_to_those_who_wait(tmp_path):
    note = tmp_path / "pid"
    with ThreadPoolExecutor(3) as threads:
        with faulty_pool() as pool:
            running = threads.submit(pool.run, "decode", f"sleep:{note}")
            wait_until(lambda: note.exists() and note.read_text())
            queued = threads.submit(pool.run, "decode", "fine")
            wait_until(lambda: pool.load.queued == 1)
        for job in (running, queued):
            with pytest.raises(DeviceError, match="pool was closed"):
                job.result(10)
    assert not is_running(int(note.read_text()))
    with pytest.raises(ConfigError, match="not open"):
        pool.run("decode", "fine")


def test_nothing_is_left_behind():
    before = (len([*Path("/proc/self/fd").iterdir()]), threading.active_count())
    for _ in range(3):
        with faulty_pool(workers=2) as pool:
            pids = {worker_pid(pool) for _ in range(4)}
            with pytest.raises(DecoderLost):
                pool.run("decode", "segfault")
        assert not any(map(is_running, pids))
    assert (len([*Path("/proc/self/fd").iterdir()]), threading.active_count()) == before


PARENT = """
import sys, threading, time
from framefleet.decode.pool import DecodePool
pool = DecodePool(workers=1, tasks="faulty_tasks")
pool.open()
print(pool.run("digest", "any"), flush=True)
if sys.argv[1] == "hang":
    threading.Thread(target=pool.run, args=("decode", "hang"), daemon=True).start()
    time.sleep(0.2)
    print("hanging", flush=True)
if sys.argv[1] != "leave":
    time.sleep(600)
"""


@pytest.mark.parametrize("way", ["idle", "hang", "leave"])
def test_workers_die_with_their_parent(way):
    """SIGKILL of the parent while the worker is idle or hangs in native code; and a pool that nobody closed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, way], stdout=subprocess.PIPE, text=True, env=environment)
    with parent:
        pid = int(parent.stdout.readline())
        if way == "hang":
            assert parent.stdout.readline() == "hanging\n"
        if way != "leave":
            assert is_running(pid)
            parent.kill()
        assert parent.wait(20) == (0 if way == "leave" else -signal.SIGKILL)
    wait_until(lambda: not is_running(pid))


def test_ctrl_c_is_the_parents_affair():
    with faulty_pool() as pool:
        pid = worker_pid(pool)
        os.kill(pid, signal.SIGINT)
        assert os.getpgid(pid) != os.getpgid(0), "the terminal's Ctrl-C does not reach it"
        assert worker_pid(pool) == pid
