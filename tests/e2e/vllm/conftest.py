"""A fleet of two real vLLM servers, our decode service and plugin, the proxy in front; and clips to ask about."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_servers import PYTHON, captioned, require_vllm, serving, until

from framefleet.scenes import sample_scene, write_clip

UP_S, NUM_SCENES, NUM_CLIPS = 400, 20, 200
SETTINGS = f"""
[fleet]
model = "dashcam_tiny"
engine = "vllm"
python = "{PYTHON}"
replicas = 2
cores = "split"
args = ["--enforce-eager", "--kv-cache-memory-bytes", "64M"]
env = {{ VLLM_CPU_OMP_THREADS_BIND = "nobind", HF_HUB_OFFLINE = "1", VLLM_NO_USAGE_STATS = "1" }}

[fleet.vllm]
dtype = "float32"  # as the embedded engine's on a CPU
max_model_len = 4096
max_num_seqs = 8
max_num_batched_tokens = 0
gpu_memory_utilization = 0.0
api_server_count = 1
renderer_num_workers = 2
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Path:
    """fleet.toml."""
    path = tmp_path_factory.mktemp("settings") / "fleet.toml"
    path.write_text(SETTINGS)
    return path


@pytest.fixture(scope="module")
def fleet(settings, tmp_path_factory):
    """What `framefleet serve` runs, both replicas ready."""
    require_vllm()
    with serving(settings, tmp_path_factory.mktemp("fleet")) as started:
        until("both replicas ready", lambda: started.states() == ["ready", "ready"], UP_S)
        yield started


@pytest.fixture(scope="session")
def scenes(tmp_path_factory) -> list[Path]:
    """Small drawn clips, each another scene."""
    folder = tmp_path_factory.mktemp("scenes")
    for number in range(NUM_SCENES):
        write_clip(sample_scene(7000 + number), folder / f"{number:03}.mp4", width=320, height=192)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def clips(scenes, tmp_path_factory) -> list[Path]:
    """NUM_CLIPS clips of these scenes, no two of equal bytes: `free` boxes of other lengths follow them."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(NUM_CLIPS):
        size = 8 + number // NUM_SCENES
        free = size.to_bytes(4, "big") + b"free" + bytes(size - 8)
        (folder / f"{number:03}.mp4").write_bytes(scenes[number % NUM_SCENES].read_bytes() + free)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def expected(scenes, tmp_path_factory) -> list[dict]:
    """The embedded engine's record of each scene."""
    return captioned(scenes, tmp_path_factory.mktemp("embedded") / "captions.jsonl")
