"""The writer's lock and the readers' mark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from framefleet.errors import StoreLocked
from framefleet.store.lock import Lock, Presence, is_nobody_present

HOLD = """
import sys, os, time
from pathlib import Path
from framefleet.store.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def hold_elsewhere(path: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    return holder


def test_another_process_is_named_and_its_death_frees(tmp_path: Path):
    path = tmp_path / "writer.lock"
    holder = hold_elsewhere(path)
    try:
        with pytest.raises(StoreLocked, match=f"held by process {holder.pid} on .*, since 20"):
            Lock(path)
    finally:
        holder.kill()
        holder.communicate()
    assert path.exists()
    with Lock(path):
        pass
    assert not path.exists()


def test_waiting_for_it(tmp_path: Path):
    first = Lock(tmp_path / "lock")
    with pytest.raises(StoreLocked):
        Lock(tmp_path / "lock", wait_s=0.2)
    first.close()
    Lock(tmp_path / "lock", wait_s=0.2).close()


def test_a_forked_child_that_outlives_its_parent_a_little_is_waited_for(tmp_path: Path):
    """The kernel keeps the lock until the last process with the descriptor is gone."""
    path = tmp_path / "lock"
    code = HOLD.replace("time.sleep(60)", "os.fork() or time.sleep(1)\nos._exit(0)")
    subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.DEVNULL, check=True)
    with Lock(path):
        pass


def test_closing_twice_frees_nobody_elses(tmp_path: Path):
    first = Lock(tmp_path / "lock")
    first.close()
    second = Lock(tmp_path / "lock")
    first.close()
    assert (tmp_path / "lock").exists()
    with pytest.raises(StoreLocked):
        Lock(tmp_path / "lock")
    second.close()


def test_a_file_without_a_name_in_it(tmp_path: Path):
    path = tmp_path / "lock"
    lock = Lock(path)
    os.truncate(path, 0)
    with pytest.raises(StoreLocked, match="has not said which"):
        Lock(path)
    lock.close()


def test_readers_are_noticed(tmp_path: Path):
    path = tmp_path / "readers.lock"
    assert is_nobody_present(path)
    first, second = Presence(path), Presence(path)
    assert not is_nobody_present(path)
    first.close()
    first.close()
    assert not is_nobody_present(path)
    second.close()
    assert is_nobody_present(path)


def test_a_place_that_cannot_be_written_has_readers_all_the_same(tmp_path: Path):
    Presence(tmp_path / "missing" / "readers.lock").close()
    assert not is_nobody_present(tmp_path / "missing" / "readers.lock")
