"""A fleet for the length of a run: it is there for the run, and gone with it, however that ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fleets import eventually

from framefleet.caption.settings import CaptionSettings
from framefleet.cli.own_fleet import with_fleet
from framefleet.errors import ConfigError
from framefleet.serve import fleet_engine
from framefleet.serve.host import EngineEnvironment, Gpu, Host

BASE = Path(__file__).parents[1] / "corpus" / "files" / "base.mp4"


def caption(tmp_path, args, **popen):
    environ = {**os.environ, "FRAMEFLEET_FLEET_ARGS": json.dumps(args), "FRAMEFLEET_FLEET_MAX_RESTARTS": "0"}
    environ |= {"TMPDIR": str(tmp_path), "FRAMEFLEET_PROXY_HEALTH_S": "0.2"}
    words = [sys.executable, "-m", "framefleet", "caption", str(BASE), "--engine", "fleet", "--quiet", "--json"]
    words += ["--output", str(tmp_path / "out.jsonl")]
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)


def serving_for(tmp_path):
    """Processes of fleets whose folder is in `tmp_path`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if entry.name.isdecimal() and any(word.startswith(f"{tmp_path}/framefleet-fleet-") for word in words):
            found.append(int(entry.name))
    return found


def test_a_run_has_its_own_fleet(tmp_path):
    with caption(tmp_path, ["--engine", "fake"]) as running:
        out, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    assert json.loads(out)["ok"] == 1
    record = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[-1])
    assert "Frames" in json.dumps(record)
    assert not list(tmp_path.glob("framefleet-fleet-*"))
    assert serving_for(tmp_path) == []


def test_a_fleet_that_does_not_start_is_told_with_its_log(tmp_path):
    with caption(tmp_path, ["--nosuch-flag"]) as running:
        _, errors = running.communicate(timeout=120)
    assert running.returncode == 5
    assert "unrecognized arguments: --nosuch-flag" in errors
    assert "Traceback" not in errors
    assert serving_for(tmp_path) == []
    (folder,) = tmp_path.glob("framefleet-fleet-*")
    assert (folder / "logs" / "r0.log").exists()


def test_it_ends_also_with_a_run_that_is_killed(tmp_path):
    with caption(tmp_path, ["--engine", "fake"]) as running:
        eventually(lambda: serving_for(tmp_path))
        running.send_signal(signal.SIGKILL)
        running.communicate()
    eventually(lambda: not serving_for(tmp_path))


VLLM = Host(cores=(0,), engine=EngineEnvironment(vllm="0.32.0", framefleet="1"))
TWO_GPUS = Host(gpus=(Gpu("0"), Gpu("1")), cores=(0,))
PLAIN = Host(cores=(0,), engine=EngineEnvironment(framefleet="1"))


@pytest.mark.parametrize(
    ("host", "settings", "engine"),
    [
        (VLLM, {"model": "Qwen/Q"}, "fleet"),
        (TWO_GPUS, {"model": "Qwen/Q"}, "fleet"),
        (PLAIN, {"model": "Qwen/Q"}, None),
        (VLLM, {"model": "dashcam_tiny"}, None),
        (VLLM, {}, None),
        (VLLM, {"model": "Qwen/Q", "engine": "embedded"}, "embedded"),
        (VLLM, {"model": "Qwen/Q", "endpoint": "http://a/v1"}, None),
        (VLLM, {"model": "Qwen/Q", "engine_options": {"dtype": "float16"}}, None),
        (PLAIN, {"engine": "fleet"}, "fleet"),
    ],
)
def test_when_a_run_starts_one(monkeypatch, host, settings, engine):
    monkeypatch.setattr(fleet_engine, "look_at_host", lambda _: host)
    assert with_fleet(CaptionSettings(**settings), None).engine == engine


def test_the_settings_file_is_the_fleets_too(monkeypatch, tmp_path):
    file = tmp_path / "f.toml"
    file.write_text("[fleet]\nreplicas = 3\n")
    monkeypatch.setattr(fleet_engine, "look_at_host", lambda _: VLLM)
    settings = with_fleet(CaptionSettings(model="Qwen/Q"), file)
    assert settings.engine_options == {"config": str(file)}
    engine = fleet_engine.open_fleet(model="Qwen/Q", **settings.engine_options)
    assert (engine._wanted.replicas, engine.model) == (3, "Qwen/Q")
    assert msgspec.structs.asdict(engine.settings)["model"] == "Qwen/Q"
    file.write_text("[fleet]\nreplica = 3\n")
    with pytest.raises(ConfigError, match="did you mean"):
        with_fleet(CaptionSettings(model="Qwen/Q"), file)
