"""The fleet over processes that only sleep: what is said of them is said by the test in the proxy's place."""

import asyncio
import os
import signal

import pytest
from fleets import processes_of

from framefleet.errors import ReplicaError
from framefleet.serve.fleet import Fleet
from framefleet.serve.fleet_plan import FleetPlan, MpsPlan, ProcessPlan
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.replica import ReplicaState as S
from framefleet.serve.run_folder import RunFolder

QUICK = FleetSettings(stop_s=0.5, restart_wait_s=0.02, start_s=30.0, lost_s=0.2, drain_s=5.0)


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path) as opened:
        yield opened
    assert processes_of(tmp_path) == {}


def plans(num, command=("sleep", "300")):
    return tuple(ProcessPlan(name=f"r{i}", command=command) for i in range(num))


async def until(is_so):
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


class Driven:
    """`async with Driven(folder) as fleet:` a fleet of which every replica has a process, and no other watch."""

    def __init__(self, folder, num=2, settings=QUICK, **plan):
        self.fleet = Fleet(settings, FleetPlan(engine="embedded", replicas=plans(num), **plan), folder)

    async def __aenter__(self):
        await self.fleet.__aenter__()
        await until(lambda: all(m.kept and m.kept.child for m in self.fleet.members.values()))
        return self.fleet

    async def __aexit__(self, *error):
        await self.fleet.__aexit__(*error)


def see(fleet, name, is_answering, num_in_flight=0):
    fleet.observe(name, is_answering=is_answering, num_in_flight=num_in_flight)
    return fleet.named(name).state


def pid_of(fleet, name):
    kept = fleet.named(name).kept
    return kept.child and kept.child.pid


def run(story):
    asyncio.run(story)


def test_one_that_is_silent_for_a_moment_keeps_its_process(folder):
    async def story():
        async with Driven(folder) as fleet:
            pid = pid_of(fleet, "r0")
            assert see(fleet, "r0", False) is S.STARTING  # it has not begun to answer
            assert see(fleet, "r0", True) is S.READY
            assert see(fleet, "r0", False) is S.LOST
            assert see(fleet, "r0", True) is S.READY
            await asyncio.sleep(0.4)
            assert pid_of(fleet, "r0") == pid

    run(story())


def test_one_that_stays_silent_is_started_again_at_another_address(folder):
    async def story():
        async with Driven(folder) as fleet:
            see(fleet, "r0", True)
            pid, url = pid_of(fleet, "r0"), fleet.replicas()[0].base_url
            see(fleet, "r0", False)
            await until(lambda: pid_of(fleet, "r0") not in (None, pid))
            assert fleet.replicas()[0].base_url != url
            assert fleet.replicas()[0].state is S.STARTING

    run(story())


def test_one_that_dies_takes_no_work_from_then_on(folder):
    async def story():
        async with Driven(folder) as fleet:
            see(fleet, "r0", True)
            os.killpg(pid_of(fleet, "r0"), signal.SIGKILL)
            await until(lambda: not fleet.replicas()[0].takes_work)
            await until(lambda: fleet.replicas()[0].state is S.STARTING)

    run(story())


def test_one_that_is_kept_out_is_never_given_work(folder):
    async def story():
        async with Driven(folder) as fleet:
            fleet.drain("r0")
            assert see(fleet, "r0", True, num_in_flight=0) is S.DRAINED
            see(fleet, "r0", False)
            await until(lambda: fleet.named("r0").kept.num_restarts == 1 and pid_of(fleet, "r0"))
            assert see(fleet, "r0", True) is S.DRAINED  # also after its restart
            woken = []
            fleet.on_change = lambda: woken.append(fleet.named("r0").state)
            fleet.undrain("r0")
            assert woken == [S.READY]
            with pytest.raises(ReplicaError, match="no such replica; got 'r7'; allowed: r0, r1"):
                fleet.drain("r7")

    run(story())


def test_a_restart_waits_for_what_is_in_flight(folder):
    async def story():
        async with Driven(folder) as fleet:
            see(fleet, "r0", True)
            pid = pid_of(fleet, "r0")
            restarting = asyncio.create_task(fleet.restart("r0"))
            await asyncio.sleep(0.1)
            assert see(fleet, "r0", True, num_in_flight=1) is S.DRAINING
            assert pid_of(fleet, "r0") == pid
            see(fleet, "r0", True, num_in_flight=0)
            await until(lambda: fleet.named("r0").state is S.STARTING and pid_of(fleet, "r0") not in (None, pid))
            assert see(fleet, "r0", True) is S.READY
            await restarting

    run(story())


def test_a_plan_that_does_not_start_is_told_after_its_second_death(folder):
    async def story():
        async with Driven(folder) as fleet:
            bad = ProcessPlan(name="r0", command=("sh", "-c", "echo no such flag; exit 2"))
            with pytest.raises(ReplicaError, match=r"r0 did not become ready; got exit code 2; its log ends:\nno such"):
                await fleet.restart("r0", bad, revision=2, is_trial=True)
            assert fleet.named("r0").kept.num_restarts == 1
            assert fleet.named("r0").has_given_up

    run(story())


def test_it_ends_in_the_middle_of_anything(folder):
    async def story():
        for wait_s in (0.0, 0.05, 0.2):
            async with Driven(folder) as fleet:
                see(fleet, "r0", True)
                see(fleet, "r0", True)
                restarting = asyncio.create_task(fleet.restart("r0"))
                await asyncio.sleep(wait_s)
                see(fleet, "r0", True)
                await asyncio.sleep(wait_s)
                restarting.cancel()
            assert processes_of(folder.path) == {}

    run(story())


def test_when_all_have_given_up_it_says_why(folder):
    async def story():
        settings = FleetSettings(max_restarts=0, restart_wait_s=0.01, stop_s=0.1)
        plan = FleetPlan(engine="embedded", replicas=plans(2, ("sh", "-c", "echo out of memory; exit 1")))
        async with Fleet(settings, plan, folder) as fleet:
            assert "out of memory" in await asyncio.wait_for(fleet.failed(), 30)

    run(story())


def test_mps_that_never_came_up_restarts_nobody(folder, monkeypatch):
    monkeypatch.setattr("framefleet.serve.services._MPS_START_S", 0.1)

    async def story():
        pipes = folder.sockets / "p"
        mps = MpsPlan(name="mps", command=("false",), pipe_folder=pipes, log_folder=pipes)
        async with Driven(folder, mps=mps) as fleet:
            pids = [pid_of(fleet, name) for name in fleet.members]
            await until(lambda: fleet.services.running[0][1].num_restarts >= 2)
            assert [pid_of(fleet, name) for name in fleet.members] == pids

    run(story())


def test_a_trial_that_fails_does_not_end_a_fleet_of_one(folder):
    async def story():
        async with Driven(folder, num=1) as fleet:
            failing = asyncio.create_task(fleet.failed())
            bad = ProcessPlan(name="r0", command=("false",))
            async with fleet.changing:
                with pytest.raises(ReplicaError):
                    await fleet.restart("r0", bad, is_trial=True)
                await asyncio.sleep(0.5)
                assert not failing.done()
            assert await asyncio.wait_for(failing, 30)

    run(story())
