"""Servers, from the commands that `framefleet serve` would run, in its keeper; and an MPS daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from framefleet.serve import keeper
from framefleet.serve.fleet_plan import ProcessPlan
from framefleet.serve.host import MPS_CONTROL

STOP_S = 8


@dataclass(frozen=True)
class Server:
    """A command in its keeper, which ends all of it when this process ends, however that happens."""

    name: str
    process: subprocess.Popen[bytes]
    """The keeper."""
    group: int
    """Process group of the command."""
    url: str
    log: Path

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def facts(self) -> dict[str, str]:
        """What its log tells of the GPU's memory."""
        text = self.log.read_text(errors="replace")
        wanted = {
            "kv_tokens": r"KV cache size: ([\d,]+) tokens",
            "reserved_gib": r"Reserving ([\d.]+) GiB of GPU memory for frontend",
            "weights_gib": r"Model loading took ([\d.]+) GiB",
        }
        return {name: found[1].replace(",", "") for name, how in wanted.items() if (found := re.search(how, text))}


def start(name: str, plan: ProcessPlan, folder: Path, environ: dict[str, str]) -> Server:
    """Run a plan, with `environ` over its own; output goes to a log in `folder`."""
    port = _free_port()
    plan = plan.at(port)
    cores = ",".join(map(str, plan.cores)) or "-"
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(STOP_S), cores, *plan.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            env={**os.environ, **plan.environ, **environ},
            start_new_session=True,
        )
    assert process.stdout is not None
    group = int(process.stdout.readline() or 0)  # nothing: it could not be started, and has ended
    return Server(name, process, group, f"http://127.0.0.1:{port}", log)


async def until_up(server: Server, limit_s: float, path: Path | None = None) -> bool:
    """Whether it answers /health (or has its socket at `path`) within the time."""
    end_s = time.monotonic() + limit_s
    while server.is_alive and time.monotonic() < end_s:
        if path.is_socket() if path else await asyncio.to_thread(_is_well, server.url):
            return True
        await asyncio.sleep(0.5)
    return False


def stop(servers: list[Server]) -> None:
    """End all, at the same time: told first, killed with all their children after STOP_S."""
    for server in servers:
        assert server.process.stdin is not None
        server.process.stdin.close()
    for server in servers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_S + 10)


class Mps:
    """A daemon of our own, with private folders. `environ` is what its clients need.

    It sees every GPU: where it is shown one only, its clients would have to number them anew.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environ = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}

    def start(self) -> bool:
        """Whether it runs."""
        if shutil.which(MPS_CONTROL) is None:
            return False
        for path in self.environ.values():
            Path(path).mkdir(parents=True, exist_ok=True)
        plan = ProcessPlan(name="mps", command=("env", "-u", "CUDA_VISIBLE_DEVICES", MPS_CONTROL, "-f"))
        self._daemon = start("mps", plan, self._folder, self.environ)
        time.sleep(1)
        return self._daemon.is_alive

    def stop(self) -> None:
        """After its clients."""
        environ = {**os.environ, **self.environ}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([MPS_CONTROL], input=b"quit -t 3\n", env=environ, timeout=8, check=False)
        stop([self._daemon])


def _is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
