"""MPS and decode services beside replicas; CUDA's tool is a stand-in on PATH."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from fleets import processes_of

from framefleet.errors import ReplicaError
from framefleet.serve import kept as kept_module
from framefleet.serve import services as services_module
from framefleet.serve.fleet import Fleet
from framefleet.serve.fleet_plan import DecodePlan, FleetPlan, MpsPlan, ProcessPlan
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.mps import MpsDaemon
from framefleet.serve.replica import ReplicaState
from framefleet.serve.run_folder import RunFolder
from framefleet.serve.services import Services

QUICK = FleetSettings(stop_s=1.0, restart_wait_s=0.05)
LISTENER = """
import pathlib, socket, sys, time
path = sys.argv[2]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
    if "--stats" in sys.argv:
        s.connect(path)
        sys.exit(pathlib.Path(path + ".frozen").exists())
    s.bind(path); s.listen(); time.sleep(300)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(__file__).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(kept_module, "_CHECK_S", 0.05)
    monkeypatch.setattr(services_module, "_MPS_CHECK_S", 0.05)
    monkeypatch.setattr(services_module, "_DECODE_CHECK_S", 0.05)
    with RunFolder(tmp_path) as opened:
        yield opened
    assert processes_of(tmp_path) == {}


def mps_plan(folder):
    pipes, logs = folder.sockets / "mps", folder.sockets / "mps-log"
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    command = ("env", "-u", "CUDA_VISIBLE_DEVICES", "nvidia-cuda-mps-control", "-f")
    return MpsPlan(name="mps", command=command, environ=environ, pipe_folder=pipes, log_folder=logs)


def replica_plans(num):
    return tuple(ProcessPlan(name=f"r{i}", command=("sleep", "300")) for i in range(num))


async def until(is_so):
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


def test_the_daemon_is_started_checked_and_told_to_quit(folder):
    async def story():
        plan = mps_plan(folder)
        services = Services(folder, QUICK, on_mps_lost=lambda: None)
        await services.ensure(FleetPlan(engine="vllm", replicas=(), mps=plan))
        assert await MpsDaemon(plan).is_well()
        assert plan.pipe_folder.stat().st_mode & 0o777 == 0o700
        await services.stop()
        assert not await MpsDaemon(plan).is_well()
        return (plan.pipe_folder / "said").read_text().splitlines()

    said = asyncio.run(story())
    assert said[0] == "start unset"  # it sees every GPU: clients' numbers are those of the machine
    assert said[-1] == "quit -t 5"


@pytest.mark.parametrize("fault", ["a server says FAULT", "the daemon is killed"])
def test_a_fault_of_mps_restarts_all_its_clients(folder, fault):
    async def story():
        plan = mps_plan(folder)
        async with Fleet(QUICK, FleetPlan(engine="vllm", replicas=replica_plans(2), mps=plan), folder) as fleet:
            members = list(fleet.members.values())
            await until(lambda: all(member.kept and member.kept.child for member in members))
            fleet.observe("r0", is_answering=True, num_in_flight=0)
            pids = [member.kept.child.pid for member in members]
            if fault == "a server says FAULT":
                (plan.pipe_folder / "state").write_text("FAULT\n")
            else:
                os.killpg(fleet.services.running[0][1].child.pid, signal.SIGKILL)
            await until(lambda: all(m.kept.child and m.kept.child.pid not in pids for m in members))
            assert [member.kept.num_restarts for member in members] == [1, 1]
            await until(fleet.services.running[0][1].ready.is_set)

    asyncio.run(story())


def decode_plan(folder, name="decode0"):
    path = folder.sockets / f"{name}.sock"
    return DecodePlan(name=name, command=(sys.executable, "-c", LISTENER, "--socket", str(path)), socket=path)


def test_replicas_wait_for_their_decode_service_which_is_kept(folder):
    async def story():
        service = decode_plan(folder)
        plan = FleetPlan(engine="vllm", replicas=replica_plans(1), decode_services=(service,))
        async with Fleet(QUICK, plan, folder) as fleet:
            await until(lambda: fleet.members["r0"].state is ReplicaState.STARTING)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(str(service.socket))
            kept = fleet.services.running[0][1]
            service.socket.unlink()
            os.killpg(kept.child.pid, signal.SIGKILL)
            await until(lambda: kept.num_restarts == 1 and kept.ready.is_set())
            Path(f"{service.socket}.frozen").touch()
            await until(lambda: kept.num_restarts == 2)
            service.socket.unlink(missing_ok=True)
            Path(f"{service.socket}.frozen").unlink()
            await until(kept.ready.is_set)
            assert fleet.members["r0"].kept.num_restarts == 0  # its loader waits for the service

    asyncio.run(story())


def test_what_changed_is_started_and_the_rest_left_alone(folder):
    async def story():
        old, new = decode_plan(folder), decode_plan(folder, "decode1")
        services = Services(folder, QUICK, on_mps_lost=lambda: None)
        await services.ensure(FleetPlan(engine="vllm", replicas=(), decode_services=(old,)))
        pid = services.running[0][1].child.pid
        both = FleetPlan(engine="vllm", replicas=(), decode_services=(old, new))
        await services.ensure(both)
        assert services.running[0][1].child.pid == pid
        await services.prune(FleetPlan(engine="vllm", replicas=(), decode_services=(new,)))
        assert [plan.name for plan, _ in services.running] == ["decode1"]
        await services.stop()

    asyncio.run(story())


def test_a_service_that_was_asked_for_must_start(folder, monkeypatch):
    monkeypatch.setattr("framefleet.serve.services._MPS_START_S", 0.2)
    plan = FleetPlan(engine="vllm", replicas=(), mps=MpsPlan(
        name="mps", command=("false",), pipe_folder=folder.sockets / "p", log_folder=folder.sockets / "l",
    ))  # fmt: skip

    async def start(mps):
        services = Services(folder, FleetSettings(mps=mps, stop_s=0.1), on_mps_lost=lambda: None)
        try:
            await services.ensure(plan)
        finally:
            await services.stop()

    asyncio.run(start("auto"))
    with pytest.raises(ReplicaError, match="mps does not start"):
        asyncio.run(start("on"))
