"""A fleet over a real vLLM on the CPU (`make vllm`), as the command line runs it, and what asks it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from framefleet.engine.embedded.checkpoint import BUNDLED

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / os.environ.get("VLLM_VENV", ".venv-vllm") / "bin" / "python"
FRAMEFLEET = str(Path(sys.executable).with_name("framefleet"))
STOP_S = 60


def require_vllm() -> None:
    """Skip where there is no real vLLM; fail where `make test-vllm` says that there is to be one."""
    if not PYTHON.exists():
        is_required = os.environ.get("FRAMEFLEET_REQUIRE_VLLM") == "1"
        (pytest.fail if is_required else pytest.skip)(f"no {PYTHON}; try: make vllm")


@dataclass(frozen=True)
class Fleet:
    """`framefleet serve`, running."""

    process: subprocess.Popen[str]
    folder: Path
    url: str

    def tell(self, *words: str) -> dict:
        """What `framefleet fleet WORDS --json` answers. It must succeed."""
        command = [FRAMEFLEET, "fleet", *words, "--folder", str(self.folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def replicas(self) -> list[dict]:
        """As `fleet status` tells them."""
        return self.tell("status")["replicas"]

    def states(self) -> list[str]:
        return [replica["state"] for replica in self.replicas()]

    def pids(self) -> list[int]:
        """Every process that it started and that is alive: they all carry its folder in their environment."""
        mark = f"FRAMEFLEET_RUN={self.folder}".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
            except OSError:
                continue
        return found

    def commands(self) -> list[list[str]]:
        """Command lines of its processes."""
        return [(Path("/proc") / str(pid) / "cmdline").read_text().split("\0") for pid in self.pids()]


@contextmanager
def serving(settings: Path, folder: Path):
    """A fleet of these settings; whatever is left of it at the end is killed, and that is a failure."""
    with (folder / "serve.log").open("w") as log:
        command = [FRAMEFLEET, "serve", "--config", str(settings), "--folder", str(folder), "--port", "0", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    assert process.stdout is not None
    fleet = Fleet(process, folder, json.loads(read_object(process.stdout))["address"])
    try:
        yield fleet
        process.send_signal(signal.SIGINT)
        process.wait(STOP_S)
        assert fleet.pids() == []
    finally:
        for pid in [process.pid, *fleet.pids()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(10)
        process.stdout.close()


def read_object(lines) -> str:
    """The first JSON object of a stream that goes on."""
    text = ""
    for line in lines:
        text += line
        try:
            json.loads(text)
        except ValueError:
            continue
        return text
    raise AssertionError(f"no fleet, but {text!r}")


def until(what: str, is_true, limit_s: float = 60.0):
    """Wait for a truth; what it last was is in the failure."""
    end_s = time.monotonic() + limit_s
    while not (seen := is_true()):
        assert time.monotonic() < end_s, f"{what}: not within {limit_s:.0f} s, but {seen!r}"
        time.sleep(0.5)
    return seen


def ask(url: str, clip: Path) -> tuple[int, str]:
    """Status and body of the answer to one clip."""
    video = {"url": "data:video/mp4;base64," + base64.b64encode(clip.read_bytes()).decode()}
    content = [{"type": "video_url", "video_url": video}, {"type": "text", "text": "Describe."}]
    body = {"model": BUNDLED, "messages": [{"role": "user", "content": content}], "max_tokens": 8}
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def captioned(clips: list[Path], store: Path, *flags: str) -> list[dict]:
    """What `framefleet caption` says of each clip, in the order of their names. It must succeed."""
    command = [FRAMEFLEET, "caption", *map(str, clips), "--output", str(store), "--quiet", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in store.read_text().splitlines()]
    return sorted(records, key=lambda record: record["clip"])
