"""Servers in process groups of their own, from the commands that `framefleet serve` would run; and an MPS daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from framefleet.serve.fleet_plan import ProcessPlan
from framefleet.serve.host import MPS_CONTROL

STOP_S = 8


@dataclass(frozen=True)
class Server:
    """One process group."""

    name: str
    process: subprocess.Popen[bytes]
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
    cores = plan.cores or tuple(os.sched_getaffinity(0))
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            plan.command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **plan.environ, **environ},
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509 - before any thread is started
        )
    return Server(name, process, f"http://127.0.0.1:{port}", log)


async def until_up(server: Server, limit_s: float, path: Path | None = None) -> bool:
    """Whether it answers /health (or has its socket at `path`) within the time."""
    end_s = time.monotonic() + limit_s
    while server.is_alive and time.monotonic() < end_s:
        if path.is_socket() if path else await asyncio.to_thread(_is_well, server.url):
            return True
        await asyncio.sleep(0.5)
    return False


def stop(servers: list[Server]) -> None:
    """End all: told first, then killed with all their children."""
    for number, wait_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, 5)):
        for server in servers:
            _signal(server, number)
        end_s = time.monotonic() + wait_s
        while any(_group_is_alive(server) for server in servers) and time.monotonic() < end_s:
            time.sleep(0.2)
            for server in servers:
                server.process.poll()


class Mps:
    """A daemon of our own, with private folders. `environ` is what its clients need.

    It sees every GPU: where it is shown one only, its clients would have to number them anew.
    """

    def __init__(self, folder: Path) -> None:
        self.environ = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}

    def start(self) -> bool:
        """Whether it runs."""
        if shutil.which(MPS_CONTROL) is None:
            return False
        for path in self.environ.values():
            Path(path).mkdir(parents=True, exist_ok=True)
        environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._daemon = subprocess.Popen([MPS_CONTROL, "-f"], env={**environ, **self.environ}, start_new_session=True)
        time.sleep(1)
        return self._daemon.poll() is None

    def stop(self) -> None:
        """After its clients."""
        environ = {**os.environ, **self.environ}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([MPS_CONTROL], input=b"quit -t 3\n", env=environ, timeout=8, check=False)
        if self._daemon.poll() is None:
            os.killpg(self._daemon.pid, signal.SIGKILL)


def _signal(server: Server, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, number)


def _group_is_alive(server: Server) -> bool:
    try:
        os.killpg(server.process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_well(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
