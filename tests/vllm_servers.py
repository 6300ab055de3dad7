"""Servers in process groups of their own, such as a real vLLM on the CPU (`make vllm`), and what asks them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from framefleet.engine.embedded.checkpoint import BUNDLED, open_checkpoint

ROOT = Path(__file__).parents[1]
VLLM = ROOT / os.environ.get("VLLM_VENV", ".venv-vllm") / "bin" / "vllm"
FRAMEFLEET = str(Path(sys.executable).with_name("framefleet"))
FLAGS = [
    "--served-model-name", BUNDLED, "--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager",
    "--kv-cache-memory-bytes", "64M", "--dtype", "float32",
]  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A process that leads its own group, and where it answers."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def group(self) -> list[int]:
        """Its processes that are alive."""
        listed = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()]
        return [int(pid) for pid, group, state in rows if int(group) == self.process.pid and state[0] != "Z"]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """The whole group: vLLM's engine outlives its API server."""
        if self.group():
            os.killpg(self.process.pid, number)
        self.process.wait(60)


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as response:
        body = response.read()
    return json.loads(body) if body else {}


def until(what, is_true, limit_s: float = 60.0):
    """Wait for a truth; what it last was is in the failure."""
    end_s = time.monotonic() + limit_s
    while not (seen := is_true()):
        assert time.monotonic() < end_s, f"{what}: not within {limit_s:.0f} s, but {seen!r}"
        time.sleep(0.2)
    return seen


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def started(command: list[str], url: str, log: Path, **environment: str):
    """The server of a command, in a process group of its own; killed at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **environment}, start_new_session=True
        )
    server = Server(process, url, log)
    try:
        yield server
    finally:
        server.kill()


def vllm_started(port: int, core: int, log: Path):
    model = str(open_checkpoint(BUNDLED).folder)
    return started(
        [str(VLLM), "serve", model, "--port", str(port), *FLAGS],
        f"http://127.0.0.1:{port}",
        log,
        FRAMEFLEET_TAKE_OVER="1",
        FRAMEFLEET_MODEL=model,
        VLLM_CPU_OMP_THREADS_BIND=str(core),
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
    )


def states(proxy: Server) -> list[str]:
    """Of the replicas, as `/fleet` tells them."""
    return [replica["state"] for replica in get(proxy.url + "/fleet")["replicas"]]


def captioned(clips: list[Path], store: Path, *flags: str) -> list[dict]:
    """What `framefleet caption` says of each clip, in the order of their names. It must succeed."""
    command = [FRAMEFLEET, "caption", *map(str, clips), "--output", str(store), "--quiet", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in store.read_text().splitlines()]
    return sorted(records, key=lambda record: record["clip"])
