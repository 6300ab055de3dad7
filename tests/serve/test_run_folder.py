"""One fleet per folder; what an earlier one left alive is ended."""

import os
import subprocess
from pathlib import Path

import pytest

from framefleet.errors import ConfigError, ReplicaError
from framefleet.serve.run_folder import VARIABLE, RunFolder, default_folder


def test_orphans_are_ended_and_others_are_not(tmp_path):
    def sleeper(folder):
        return subprocess.Popen(["sleep", "300"], env={**os.environ, VARIABLE: str(folder)})

    ours, theirs = sleeper(tmp_path), sleeper(f"{tmp_path}-2")
    try:
        with RunFolder(tmp_path) as folder:
            assert folder.swept == [ours.pid]
            assert ours.wait(10) == -9
            assert theirs.poll() is None
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()


def test_two_fleets_cannot_have_one_folder(tmp_path):
    with RunFolder(tmp_path), pytest.raises(ReplicaError, match=f"held by process {os.getpid()}"), RunFolder(tmp_path):
        pass
    with RunFolder(tmp_path):
        pass


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use the fleet's folder"), RunFolder(tmp_path / "file"):
        pass


def test_only_its_owner_gets_in_and_sockets_have_short_names(tmp_path):
    deep = tmp_path / ("d" * 90)
    with RunFolder(deep) as folder:
        assert deep.stat().st_mode & 0o777 == 0o700
        sockets = folder.sockets
        assert len(str(sockets)) < 60
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert not sockets.exists()


def test_a_large_log_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr("framefleet.serve.run_folder._MAX_LOG_BYTES", 10)
    with RunFolder(tmp_path) as folder:
        folder.log_of("r0").write_text("x" * 11)
        assert not folder.log_of("r0").exists()
        assert (tmp_path / "logs" / "r0.log.1").exists()


def test_the_default_folder():
    assert default_folder({"FRAMEFLEET_FOLDER": "/a"}) == Path("/a")
    assert default_folder({"XDG_STATE_HOME": "/s"}) == Path("/s/framefleet/fleet")
