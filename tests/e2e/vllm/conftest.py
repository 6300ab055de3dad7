"""Two real vLLM servers with our plugin taking over, our proxy in front, and clips to ask about."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from vllm_servers import FRAMEFLEET, VLLM, answers, captioned, free_port, started, states, until, vllm_started

from framefleet.scenes import sample_scene, write_clip

UP_S, NUM_SCENES, NUM_CLIPS = 280, 40, 200


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """Two vLLM servers of the bundled model that answer."""
    if not VLLM.exists():
        message = f"no {VLLM}; try: make vllm"
        (pytest.fail if os.environ.get("FRAMEFLEET_REQUIRE_VLLM") == "1" else pytest.skip)(message)
    folder = tmp_path_factory.mktemp("vllm")
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        servers = [
            stack.enter_context(vllm_started(free_port(), cores[number % len(cores)], folder / f"vllm{number}.log"))
            for number in range(2)
        ]
        for server in servers:
            until(f"vLLM, {server.log}", lambda server=server: answers(server.url + "/health"), UP_S)
        yield servers


@pytest.fixture(scope="module")
def proxy(replicas, tmp_path_factory):
    """The proxy in front of both, as `framefleet proxy` starts it."""
    port, log = free_port(), tmp_path_factory.mktemp("proxy") / "proxy.log"
    upstreams = [flag for server in replicas for flag in ("--upstream", server.url)]
    command = [FRAMEFLEET, "proxy", *upstreams, "--port", str(port), "--quiet"]
    with started(command, f"http://127.0.0.1:{port}", log) as server:
        until("both replicas ready", lambda: answers(server.url + "/health") and states(server) == ["ready", "ready"])
        yield server


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
        source = scenes[number % NUM_SCENES]
        size = 8 + number // NUM_SCENES
        free = size.to_bytes(4, "big") + b"free" + bytes(size - 8)
        (folder / f"{number:03}.mp4").write_bytes(source.read_bytes() + free)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def expected(scenes, tmp_path_factory) -> list[dict]:
    """The embedded engine's record of each scene."""
    return captioned(scenes, tmp_path_factory.mktemp("embedded") / "captions.jsonl")
