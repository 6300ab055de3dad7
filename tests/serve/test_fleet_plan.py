"""The exact command of every process, from settings and a made-up host."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError
from framefleet.serve.fleet_plan import PORT, choose_engine, plan_fleet, share_cores
from framefleet.serve.fleet_settings import FleetSettings, VllmSettings
from framefleet.serve.host import EngineEnvironment, Gpu, Host

HOST = Host(
    gpus=(Gpu("0", "H200", tuple(range(8))), Gpu("1", "H200", tuple(range(8, 16)))),
    cores=tuple(range(16)),
    engine=EngineEnvironment(vllm="0.32.0", framefleet="0.1.0"),
    has_mps=True,
)
CPU = Host(cores=(0, 1, 2, 3), engine=EngineEnvironment(framefleet="0.1.0"))
RUN = Path("/run/fleet")


def plan(host=HOST, **settings):
    return plan_fleet(FleetSettings(**{"model": "Qwen/Q", **settings}), host, RUN)


def flags(process):
    """Flag -> the words behind it."""
    found, name = {}, ""
    for word in process.command:
        if word.startswith("--"):
            name = word
            found[name] = []
        elif name:
            found[name].append(word)
    return {name: " ".join(words) for name, words in found.items()}


def test_vllm_on_two_gpus_by_the_recipe():
    made = plan(allowed_local_media_path="/clips")
    assert [one.name for one in made.processes] == ["mps", "decode0", "decode1", "r0", "r1"]
    r1 = made.replicas[1]
    assert r1.command[:5] == (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "Qwen/Q")
    assert flags(r1) == {
        "--host": "127.0.0.1", "--port": PORT, "--served-model-name": "Qwen/Q", "--allowed-local-media-path": "/clips",
        "--dtype": "auto", "--max-model-len": "16384", "--max-num-seqs": "256", "--max-num-batched-tokens": "32768",
        "--gpu-memory-utilization": "0.85", "--api-server-count": "4", "--renderer-num-workers": "4",
        "--async-scheduling": "", "--mm-processor-cache-gb": "0",
    }  # fmt: skip
    assert dict(r1.environ) == {
        "CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "1",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/fleet/mps", "CUDA_MPS_LOG_DIRECTORY": "/run/fleet/mps-log",
        "FRAMEFLEET_TAKE_OVER": "1", "FRAMEFLEET_MODEL": "Qwen/Q",
        "FRAMEFLEET_DECODE_SOCKET": "/run/fleet/decode1.sock",
    }  # fmt: skip
    assert flags(made.decode_services[1]) == {"--socket": "/run/fleet/decode1.sock", "--cpu-workers": "8", "--gpu": "1"}
    assert made.mps.command[-2:] == ("nvidia-cuda-mps-control", "-f")
    assert r1.at(8001).command[r1.command.index("--port") + 1] == "8001"


def test_what_a_user_says_comes_last_and_as_it_is():
    vllm = VllmSettings(media_io_kwargs={"video": {"fps": 2}}, async_scheduling=False, max_model_len=0)
    made = plan(vllm=vllm, args=("--load-format", "dummy"), env={"OMP_NUM_THREADS": "2"}, command=("d", "exec", "vllm"))
    words = made.replicas[0].command
    assert words[:4] == ("d", "exec", "vllm", "serve")
    assert words[-2:] == ("--load-format", "dummy")
    assert flags(made.replicas[0])["--media-io-kwargs"] == '{"video":{"fps":2}}'
    assert "--no-async-scheduling" in words
    assert "--max-model-len" not in words
    assert made.replicas[0].environ["OMP_NUM_THREADS"] == "2"


def test_vllms_own_decoder_has_nothing_of_ours():
    made = plan(decoder="vllm", mps="off")
    assert made.services == ()
    assert not any(name.startswith(("FRAMEFLEET", "CUDA_MPS")) for name in made.replicas[0].environ)


def test_several_replicas_on_a_gpu_share_its_memory_and_decode_service():
    made = plan(replicas_per_gpu=2, cores="split")
    assert [one.environ["CUDA_VISIBLE_DEVICES"] for one in made.replicas] == ["0", "1", "0", "1"]
    assert {flags(one)["--gpu-memory-utilization"] for one in made.replicas} == {"0.425"}
    assert made.replicas[2].environ["FRAMEFLEET_DECODE_SOCKET"] == "/run/fleet/decode0.sock"
    assert made.replicas[3].cores == made.decode_services[1].cores == tuple(range(8, 16))
    assert len(plan(replicas=1).decode_services) == 1
    assert [flags(one)["--gpu-memory-utilization"] for one in plan(replicas=3).replicas] == ["0.425", "0.85", "0.425"]


def test_the_embedded_engine_divides_the_cores():
    made = plan(CPU, model="dashcam_tiny", replicas=2, cores="split")
    assert made.engine == "embedded"
    assert made.services == ()
    assert flags(made.replicas[0])["--num-threads"] == "2"
    assert [one.cores for one in made.replicas] == [(0, 1), (2, 3)]


def test_the_bundled_model_in_vllm_is_a_folder():
    made = plan(engine="vllm", model="dashcam_tiny")
    assert Path(made.replicas[0].command[4], "config.json").exists()
    assert flags(made.replicas[0])["--served-model-name"] == "dashcam_tiny"


@pytest.mark.parametrize(
    ("model", "vllm", "command", "engine"),
    [
        ("dashcam_tiny", "0.32.0", (), "embedded"),
        ("Qwen/Q", "0.32.0", (), "vllm"),
        ("Qwen/Q", "", (), "embedded"),
        ("Qwen/Q", "", ("vllm",), "vllm"),
    ],
)
def test_auto_engines(model, vllm, command, engine):
    settings = FleetSettings(model=model, command=command)
    assert choose_engine(settings, replace(HOST, engine=EngineEnvironment(vllm=vllm))) == engine


@pytest.mark.parametrize(
    ("host", "settings", "said"),
    [
        (CPU, {"engine": "vllm"}, "no vLLM in the engine's environment"),
        (CPU, {"mps": "on"}, "MPS cannot be started here; got no GPU"),
        (replace(HOST, has_mps=False), {"mps": "on"}, "no nvidia-cuda-mps-control"),
        (CPU, {"command": ("vllm",), "engine": "embedded"}, "fleet.command is for vLLM"),
        (CPU, {"decode_service": "on"}, "only vLLM with our decoder"),
        (replace(HOST, engine=EngineEnvironment(vllm="0.32")), {}, "lacks framefleet"),
        (HOST, {"vllm": VllmSettings(mm_processor_cache_gb=4)}, "not safe with several renderer workers"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(host, settings, said):
    with pytest.raises(ConfigError, match=said):
        plan(host, **settings)


def test_an_mps_of_somebody_else_is_left_alone():
    assert plan(replace(HOST, is_in_mps=True)).mps is None
    assert plan(replace(HOST, is_in_mps=True), mps="on").mps is not None


def test_a_line_for_the_shell_hides_secrets():
    line = str(plan(env={"HF_TOKEN": "hf_x", "A": "b c"}).replicas[0])
    assert "hf_x" not in line
    assert "HF_TOKEN=***" in line.replace("'", "")
    assert "'A=b c'" in line
    assert f"--port {PORT}" in line


NODES = [(), tuple(range(16)), tuple(range(16, 32)), tuple(range(90, 99))]
"""Cores near a GPU, as a host has them: nodes that share none; of the last the fleet may use none."""


@given(
    cores=st.sets(st.integers(0, 31), min_size=1).map(lambda found: tuple(sorted(found))),
    near=st.lists(st.sampled_from(NODES), min_size=1, max_size=9),
)
def test_every_group_gets_cores_near_it_where_it_can(cores, near):
    shares = share_cores(near, cores)
    assert all(share and set(share) <= set(cores) for share in shares)
    if len(set(near)) == 1 and len(cores) >= len(near):
        given_out = [core for share in shares for core in share]
        assert len(given_out) == len(set(given_out))
    if all(sum(core in node for core in cores) >= near.count(node) for node in near):
        assert all(set(share) <= set(node) for share, node in zip(shares, near, strict=True))
