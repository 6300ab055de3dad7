"""`diagnose` and `tune` by the command line, on a fleet of two engines behind the proxy, on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from framefleet.scenes import sample_clips

FRAMEFLEET = str(Path(sys.executable).with_name("framefleet"))
CLIPS = [str(clip.path) for clip in sample_clips()[:3]]
SETTINGS = """[fleet]
model = "dashcam_tiny"
replicas = {replicas}
allowed_local_media_path = "{clips}"
[fleet.embedded]
num_threads = 1
decode_workers = 1
max_batch = 4
"""


class Fleet:
    """`framefleet serve` as a process, ready."""

    def __init__(self, folder, replicas):
        self.folder = folder
        settings = folder / "fleet.toml"
        settings.write_text(SETTINGS.format(replicas=replicas, clips=Path(CLIPS[0]).parent))
        command = [FRAMEFLEET, "serve", "--config", settings, "--folder", folder / "run", "--port", "0", "--json"]
        self.process = subprocess.Popen([*command, "--quiet"], stdout=subprocess.PIPE, start_new_session=True)
        self.url = json.loads(self.process.stdout.readline())["address"]
        self._until_ready(replicas)

    def _until_ready(self, replicas):
        until_s = time.monotonic() + 240
        while time.monotonic() < until_s:
            with urllib.request.urlopen(self.url + "/fleet", timeout=10) as answer:
                states = [one["state"] for one in json.load(answer)["replicas"]]
            if states == ["ready"] * replicas:
                return
            assert self.process.poll() is None
            time.sleep(0.2)
        pytest.fail("the fleet did not come up")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.close()
        assert self.process.wait(60) == 0


def run(*arguments, expect=0):
    command = [FRAMEFLEET, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert answer.returncode == expect, answer.stderr[-3000:]
    return answer


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    running = Fleet(tmp_path_factory.mktemp("fleet"), 2)
    yield running
    running.stop()


def test_diagnose_measures_every_stage_and_leaves_a_report(fleet, tmp_path):
    asked = ("--endpoint", fleet.url, "--time", "5s", "--concurrency", 4, "--max-tokens", 8, "--prompt", "av")
    answer = run("diagnose", *CLIPS, *asked, "--max-clips", 3, "--report", tmp_path / "r", "--json")
    found = json.loads(answer.stdout)
    evidence = found["evidence"]
    assert found["site"]["has_proxy"]
    assert len(found["site"]["engine_urls"]) == 2
    assert found["invalid"] == {}
    assert set(evidence["ablations"]) == {"decoded_before", "one_token", "half_frames", "more_in_flight"}
    assert {"client", "proxy", "cpu_decode", "vision_prefill", "generation"} <= set(evidence["stages"])
    assert evidence["stages"]["cpu_decode"]["service_s"] > 0.001
    assert {"API server", "engine", "CPU cores"} == {lanes["name"] for lanes in evidence["shared"]}
    assert found["verdict"]["bottlenecks"] or found["verdict"]["reason"].startswith("not clear")
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.count("<svg") >= 6
    assert (tmp_path / "r" / Path(found["log"]).name).exists()


def test_tune_finds_the_knee_and_leaves_the_fleet_as_it_was(fleet, tmp_path):
    before = run("fleet", "status", "--folder", fleet.folder / "run", "--json").stdout
    asked = ("--folder", fleet.folder / "run", "--ladder", "concurrency=1,2", "--most-in-flight", 2)
    load = ("--trial", "0.5s", "--time", "3s", "--max-tokens", 4, "--prompt", "av", "--max-clips", 3)
    answer = run("tune", *CLIPS, *asked, *load, "--report", tmp_path / "t", "--json")
    found = json.loads(answer.stdout)
    assert found["chosen"]["concurrency"] in (1, 2, 4)
    assert found["points"]
    assert all(not point["failure"] for point in found["points"])
    assert "[fleet]" in (tmp_path / "t" / "fleet.toml").read_text()
    after = json.loads(run("fleet", "status", "--folder", fleet.folder / "run", "--json").stdout)
    assert after["revision"] == json.loads(before)["revision"]


@pytest.mark.slow
def test_tune_restarts_replicas_and_applies_what_it_chose(tmp_path):
    fleet = Fleet(tmp_path, 1)
    try:
        asked = ("--folder", tmp_path / "run", "--ladder", "embedded.max_batch=1,4", "--ladder", "concurrency=2,4")
        load = ("--trial", "2s", "--time", "60s", "--max-tokens", 4, "--prompt", "av", "--most-in-flight", 4)
        answer = subprocess.run(
            [FRAMEFLEET, "tune", *CLIPS, *map(str, (*asked, *load, "--report", tmp_path / "t")), "--apply", "--json"],
            capture_output=True, text=True, timeout=280, check=False, env=os.environ,
        )  # fmt: skip
        assert answer.returncode in (0, 6), answer.stderr[-3000:]  # 6: rolled back, on a machine that is busy otherwise
        found = json.loads(answer.stdout)
        tried = {point["settings"]["embedded.max_batch"] for point in found["points"]}
        assert tried == {1, 4}
        settings = json.loads(run("fleet", "status", "--folder", tmp_path / "run", "--json").stdout)
        assert settings["revision"] > 1
        assert found["applied"]["kept"] == (answer.returncode == 0)
    finally:
        fleet.stop()
