"""A running `framefleet serve` for tests: started by the command line, asked, looked at for what it leaves behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from framefleet.serve.control import ask_fleet
from framefleet.serve.run_folder import VARIABLE

COMMAND = (sys.executable, "-c", "from framefleet.cli.app import main; main()")
QUICK = """
[proxy]
port = 0
health_s = 0.2
probe_s = 5
open_s = 0.2
"""


def eventually(is_so, timeout_s=90):
    """The first true value of `is_so()`; an assertion when there is none in time."""
    until_s = time.monotonic() + timeout_s
    while not (value := is_so()):
        assert time.monotonic() < until_s, is_so
        time.sleep(0.05)
    return value


def processes_of(folder):
    """Command lines of the processes that a fleet of this folder started, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if f"{VARIABLE}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class Running:
    """A fleet and how to speak to it."""

    def __init__(self, folder, process):
        self.folder, self.process = folder, process
        self.started = json.loads(process.stdout.readline())
        self.address = self.started["address"]

    def command(self, *words):
        """`framefleet fleet ...` as a process: (exit code, its JSON, what it noted)."""
        words = ("fleet", *map(str, words), "--folder", str(self.folder), "--json")
        done = subprocess.run([*COMMAND, *words], check=False, capture_output=True, text=True, timeout=280)
        answer = json.loads(done.stdout)
        assert "error" not in answer, done.stderr
        return done.returncode, answer, done.stderr

    def standing(self):
        return ask_fleet(self.folder, "status")

    def replica(self, name):
        return next(one for one in self.standing()["replicas"] if one["name"] == name)

    def states(self):
        return {one["name"]: one["state"] for one in self.standing()["replicas"]}

    def all_ready(self, timeout_s=120):
        eventually(lambda: self.process.poll() is None and set(self.states().values()) == {"ready"}, timeout_s)

    def ask(self, clip, **more):
        content = [{"type": "text", "text": "Describe."}, {"type": "video_url", "video_url": {"url": f"file://{clip}"}}]
        body = {"messages": [{"role": "user", "content": content}], **more}
        return httpx.post(f"{self.address}/v1/chat/completions", json=body, timeout=120)


@contextlib.contextmanager
def serving(folder, settings, *, environ=None):
    """A fleet with these settings (TOML). It must end with exit code 0 on SIGTERM, and leave no process behind."""
    file = folder / "fleet.toml"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(settings if "[proxy]" in settings else settings + QUICK)
    words = ("serve", "--config", str(file), "--folder", str(folder), "--json", "--quiet")
    errors = (folder / "stderr").open("w")
    with (
        errors,
        subprocess.Popen(
            [*COMMAND, *words], stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **(environ or {})}
        ) as process,
    ):
        try:
            yield Running(folder, process)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0, (folder / "stderr").read_text()
                assert processes_of(folder) == {}
        finally:
            process.kill()
            process.stdout.close()
    assert "Traceback" not in (folder / "stderr").read_text()
