"""Commands that are started again: when, how often, and what is left."""

import asyncio
import os
import signal

import pytest
from fleets import processes_of

from framefleet.serve.fleet_plan import ProcessPlan
from framefleet.serve.kept import MAX_WAIT_S, Kept, Patience, Phase
from framefleet.serve.run_folder import RunFolder

QUICK = Patience(start_s=30, stop_s=0.5, wait_s=0.01, max_restarts=2)


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path) as opened:
        yield opened
    assert processes_of(tmp_path) == {}


def keeping(folder, script, patience=QUICK, **more):
    phases = []
    plan = ProcessPlan(name="it", command=("sh", "-c", script), environ={"WORD": "from the plan"})
    return Kept("it", lambda: plan, folder, patience, on_phase=phases.append, **more), phases


async def until(is_so):
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


def test_the_waits_grow_and_end():
    patience = Patience(wait_s=1, max_restarts=8)
    waits = [patience.wait_after(deaths) for deaths in range(1, 10)]
    assert waits == [1, 2, 4, 8, 16, 32, MAX_WAIT_S, MAX_WAIT_S, None]


def test_one_that_never_comes_up_is_given_up_with_the_end_of_its_log(folder):
    async def story():
        kept, phases = keeping(folder, 'echo "no $WORD"; exit 3')
        kept.start()
        assert not await kept.ready_within(30)
        assert phases == [Phase.STARTING, Phase.ENDED] * 2 + [Phase.STARTING, Phase.GAVE_UP]
        assert (kept.num_restarts, kept.last_end) == (2, "exit code 3; its log ends:\nno from the plan")
        await kept.stop()

    asyncio.run(story())


def test_deaths_of_one_that_was_ready_are_forgiven(folder):
    async def story():
        kept, phases = keeping(folder, "sleep 300")
        kept.start()
        for restarts in range(5):
            await until(lambda: kept.num_restarts == restarts and kept.child)  # noqa: B023
            kept.ready.set()
            os.killpg(kept.child.pid, signal.SIGKILL)
            await until(lambda: kept.num_restarts == restarts + 1)  # noqa: B023
        assert kept.last_end == "signal 9"
        assert Phase.GAVE_UP not in phases
        await kept.stop()

    asyncio.run(story())


def test_one_that_is_lost_is_killed_and_started_again(folder):
    async def story():
        kept, _ = keeping(folder, "trap '' TERM; while :; do sleep 0.1; done", Patience(stop_s=60, wait_s=0.01))
        kept.start()
        await until(lambda: kept.child)
        kept.ready.set()
        kept.lost.set()
        await until(lambda: kept.num_restarts == 1)
        assert kept.last_end == "it answers no more"
        os.killpg(kept.child.pid, signal.SIGKILL) if kept.child else None
        kept.patience = QUICK
        await kept.stop()

    asyncio.run(story())


def test_one_that_is_late_is_killed(folder):
    async def story():
        kept, _ = keeping(folder, "sleep 300", Patience(start_s=0.05, stop_s=0.1, wait_s=0.01, max_restarts=0))
        kept.start()
        assert not await kept.ready_within(30)
        assert kept.last_end.startswith("not ready after 0.05 s")

    asyncio.run(story())


def test_a_check_tells_ready_and_lost(folder):
    async def story():
        is_well = True

        async def check():
            return is_well

        kept, _ = keeping(folder, "sleep 300", check=check, check_every_s=0.02)
        kept.start()
        assert await kept.ready_within(30)
        is_well = False
        await until(lambda: kept.num_restarts == 1)
        await kept.stop()

    asyncio.run(story())


def test_stopping_at_any_moment_leaves_nothing(folder):
    async def story():
        for wait_s in (0, 0.01, 0.03, 0.1):
            kept, _ = keeping(folder, "sleep 300 & sleep 300")
            kept.start()
            await asyncio.sleep(wait_s)
            await kept.stop()
            assert processes_of(folder.path) == {}

    asyncio.run(story())
