"""`framefleet serve` and `framefleet fleet` as users run them: real processes, real requests, nothing left over."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest
from fleets import COMMAND, eventually, processes_of, serving

from framefleet.scenes import sample_clips
from framefleet.store.sink import open_store

CLIPS = [clip.path for clip in sorted(sample_clips(), key=lambda clip: clip.width * clip.height)]
"""The smallest first."""
SAMPLES = CLIPS[0].parent
FAKE = f"""
[fleet]
model = "dashcam_tiny"
replicas = 2
allowed_local_media_path = "{SAMPLES}"
args = ["--engine", "fake", "--decode-workers", "1"]
start_s = 100
restart_wait_s = 0.2
"""


def settings(**more):
    canary = f'[fleet.canary]\nclips = ["{CLIPS[0]}", "{CLIPS[1]}"]\n'
    return FAKE + "".join(f"{name} = {value}\n" for name, value in more.items()) + canary


@pytest.fixture
def write(tmp_path):
    def write_settings(**more):
        file = tmp_path / "next.toml"
        file.write_text(settings(**more))
        return file

    return write_settings


class Load:
    """Questions without a pause until the block ends; what became of each."""

    def __init__(self, fleet, num_at_once=2):
        self.fleet, self.answers, self._is_over = fleet, [], False
        self.threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(num_at_once)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_over = True
        for thread in self.threads:
            thread.join()

    def _ask(self, number):
        while not self._is_over:
            clip = CLIPS[(number := number + 1) % 3]
            answer = self.fleet.ask(clip)
            text = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.text
            time.sleep(0.1)
            self.answers.append((answer.status_code, clip.name, text))


def test_no_request_is_lost_while_replicas_die_drain_and_change(tmp_path, write):
    folder = tmp_path / "fleet"
    with serving(folder, settings()) as fleet:
        fleet.all_ready()
        with Load(fleet) as load:
            os.killpg(fleet.replica("r0")["pid"], signal.SIGKILL)
            eventually(lambda: fleet.replica("r0")["restarts"] == 1 and fleet.states()["r0"] == "ready")

            code, standing, _ = fleet.command("drain", "r1", "--wait")
            assert (code, [one["state"] for one in standing["replicas"]]) == (0, ["ready", "drained"])
            pid = fleet.replica("r1")["pid"]
            assert fleet.command("restart", "r1")[0] == 0
            assert fleet.replica("r1")["pid"] != pid
            assert fleet.states()["r1"] == "drained"  # the operator said so
            fleet.command("undrain", "r1")
            assert fleet.states()["r1"] == "ready"

            code, revision, _ = fleet.command("apply", write(drain_s=599, replicas_per_gpu=2))
            assert (code, revision["number"], revision["outcome"]) == (0, 2, "applied")
            assert revision["canary"]["num_clips"] == 2
            assert {one["revision"] for one in fleet.standing()["replicas"]} == {2}

            story = "{FRAMEFLEET_FAKE_ANSWERS = '[\"quite another story\"]'}"
            code, revision, notes = fleet.command("apply", write(env=story))
            assert (code, revision["outcome"]) == (6, "rolled_back")
            assert "captions differ" in revision["reasons"][0]
            assert "r1: draining" not in notes  # only the canary ever had them
            assert fleet.states() == {"r0": "ready", "r1": "ready"}

            code, revision, _ = fleet.command("rollback")
            assert (code, revision["origin"], revision["settings"]["drain_s"]) == (0, "rollback to 1", 600)
        assert len(load.answers) > 10
        assert {status for status, _, _ in load.answers} == {200}
        assert len({(clip, text) for _, clip, text in load.answers}) == len({clip for _, clip, _ in load.answers})
        outcomes = [one["outcome"] for one in fleet.command("revisions")[1]["revisions"]]
        assert outcomes == ["applied", "applied", "rolled_back", "applied"]


def test_what_does_not_start_is_rolled_back_and_the_fleet_can_grow_and_shrink(tmp_path, write):
    with serving(tmp_path / "fleet", settings(replicas_per_gpu=1).replace("replicas = 2", "replicas = 1")) as fleet:
        fleet.all_ready()
        code, revision, _ = fleet.command("apply", write(env='{FRAMEFLEET_SERVE_ENGINE_NOSUCH = "1"}'))
        assert (code, revision["outcome"]) == (6, "rolled_back")
        assert "did you mean" in revision["reasons"][0] or "no such setting" in revision["reasons"][0]
        assert fleet.states() == {"r0": "ready"}
        assert fleet.command("apply", write(stop_s=19))[0] == 0
        assert fleet.states() == {"r0": "ready", "r1": "ready"}
        assert fleet.command("rollback")[0] == 0
        assert fleet.states() == {"r0": "ready"}
        assert httpx.get(f"{fleet.address}/health").status_code == 200


def test_a_killed_parent_leaves_nothing_and_the_next_start_goes_on(tmp_path):
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    with contextlib.suppress(AssertionError), serving(folder, settings()) as fleet:
        fleet.all_ready()
        assert len(processes_of(folder)) >= 4  # a keeper and a server for each replica, and their workers
        fleet.process.kill()
        eventually(lambda: not processes_of(folder))
    with serving(folder, settings()) as fleet:
        fleet.all_ready()
        assert fleet.standing()["revision"] == 1  # the same settings are no new revision
        words = [*COMMAND, "serve", "dashcam_tiny", "--folder", str(folder)]
        again = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
        assert again.returncode == 5
        assert "runs from this folder already" in again.stderr


def test_a_replica_on_each_gpu_under_an_mps_of_its_own(tmp_path):
    """nvidia-smi and MPS are stand-ins; what each replica's process was given is what counts."""
    tools = tmp_path / "tools"
    shutil.copytree(
        Path(__file__).parents[1] / "serve", tools, ignore=lambda _, names: {n for n in names if "mps" not in n}
    )
    (tools / "nvidia-smi").write_text("#!/bin/sh\nfor i in 0 1 2; do echo $i, GPU-$i, H200, 0000:0$i:00.0; done\n")
    (tools / "nvidia-smi").chmod(0o755)
    environ = {"PATH": f"{tools}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "2,0"}
    with serving(tmp_path / "fleet", settings(mps='"on"').replace("replicas = 2", ""), environ=environ) as fleet:
        fleet.all_ready()
        assert {one["name"]: one["gpu"] for one in fleet.standing()["replicas"]} == {"r0": "2", "r1": "0"}
        pids = {one["name"]: one["pid"] for one in fleet.standing()["replicas"]}
        given = dict(word.split("=", 1) for word in Path(f"/proc/{pids['r0']}/environ").read_text().split("\0") if word)
        pipes = Path(given["CUDA_MPS_PIPE_DIRECTORY"])
        assert (given["CUDA_VISIBLE_DEVICES"], pipes.parent) == ("2", fleet.folder / "sockets")
        (pipes / "state").write_text("FAULT\n")
        eventually(lambda: {one["restarts"] for one in fleet.standing()["replicas"]} == {1})
        fleet.all_ready()
        assert (pipes / "said").read_text().count("start unset") == 2  # the daemon, too, was started anew
    assert not pipes.exists()


def test_a_fleet_that_cannot_start_says_why_and_ends(tmp_path):
    file = tmp_path / "fleet.toml"
    environ = '{FRAMEFLEET_SERVE_ENGINE_NOSUCH = "1", A_TOKEN = "secret-word"}'
    file.write_text(settings(max_restarts=0, env=environ) + "[proxy]\nport = 0\n")
    words = [*COMMAND, "serve", "--config", str(file), "--folder", str(tmp_path / "f")]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 5
    assert "no replica can be started" in done.stderr
    assert processes_of(tmp_path / "f") == {}
    assert "secret-word" not in done.stdout + done.stderr + (tmp_path / "f" / "logs" / "r0.log").read_text()


@pytest.mark.slow
def test_captions_of_the_bundled_model_through_a_fleet_that_loses_a_replica(tmp_path):
    """The words are those of the embedded engine by itself, whoever of the two said them."""
    clips = tmp_path / "clips"
    clips.mkdir()
    for clip in CLIPS[:8]:
        shutil.copy(clip, clips)
    with serving(tmp_path / "fleet", '[fleet]\nmodel = "dashcam_tiny"\nreplicas = 2\n') as fleet:
        fleet.all_ready()
        caption = ["caption", str(clips), "--endpoint", f"{fleet.address}/v1", "--quiet", "--json"]
        words = [*COMMAND, *caption, "--output", str(tmp_path / "fleet.jsonl")]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
            eventually(lambda: fleet.replica("r1")["in_flight"] > 0)
            os.killpg(fleet.replica("r1")["pid"], signal.SIGKILL)
            summary = json.loads(running.communicate(timeout=200)[0])
    assert (summary["ok"], summary["failed"], running.returncode) == (8, 0, 0)
    words = [*COMMAND, "caption", str(clips), "--quiet", "--output", str(tmp_path / "alone.jsonl")]
    assert subprocess.run(words, check=False, timeout=200).returncode == 0
    assert texts_of(tmp_path / "fleet.jsonl") == texts_of(tmp_path / "alone.jsonl")


def texts_of(store):
    with open_store(str(store), "r") as opened:
        texts = {Path(record.clip).name: record.text for record in opened.records()}
    assert len(set(texts.values())) > 4
    return texts
