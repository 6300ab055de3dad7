"""The keeper leaves nothing behind, whoever dies first."""

import os
import signal
import subprocess
import sys

import pytest
from fleets import eventually, processes_of

from framefleet.serve import keeper

STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300' & sleep 300 & while :; do sleep 0.1; done"
"""Ignores SIGTERM, has a child, and one in a session of its own."""


@pytest.fixture
def keep(tmp_path):
    started = []

    def start(*command, grace_s=0.2, cores="-"):
        words = [sys.executable, "-I", "-S", keeper.__file__, str(grace_s), cores, *command]
        pipe = subprocess.PIPE
        environ = {**os.environ, "FRAMEFLEET_RUN": str(tmp_path)}
        process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True, env=environ
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_the_command_ends_by_itself_and_its_leftovers_are_killed(keep, tmp_path):
    process = keep("sh", "-c", "setsid sleep 300 & exit 7")
    assert process.wait(20) == 7
    assert processes_of(tmp_path) == {}


def test_a_killed_command_is_told_as_a_signal(keep):
    process = keep("sleep", "300")
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    assert process.wait(20) == 128 + signal.SIGKILL


def test_a_command_that_ends_when_told_is_not_killed(keep, tmp_path):
    script = f"trap 'echo bye > {tmp_path}/bye; exit 0' TERM; echo > {tmp_path}/up; while :; do sleep 0.05; done"
    process = keep("sh", "-c", script, grace_s=20)
    eventually((tmp_path / "up").exists)
    process.stdin.close()
    assert process.wait(20) == 0
    assert (tmp_path / "bye").exists()


@pytest.mark.parametrize("end", ["owner", "signal"])
def test_a_stubborn_one_is_killed_with_all_it_started(keep, tmp_path, end):
    process = keep("sh", "-c", STUBBORN)
    eventually(lambda: len(processes_of(tmp_path)) >= 5)
    process.stdin.close() if end == "owner" else process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGKILL
    assert processes_of(tmp_path) == {}


def test_the_command_dies_with_its_keeper(keep, tmp_path):
    process = keep("sleep", "300")
    pid = int(process.stdout.readline())
    process.kill()
    eventually(lambda: pid not in processes_of(tmp_path))


def test_a_command_that_is_not_there(keep):
    process = keep("/nosuch")
    assert (process.wait(20), process.stdout.readline()) == (127, b"")


def test_it_is_kept_to_its_cores(keep):
    core = min(os.sched_getaffinity(0))
    process = keep("sleep", "300", cores=str(core))
    assert os.sched_getaffinity(int(process.stdout.readline())) == {core}
