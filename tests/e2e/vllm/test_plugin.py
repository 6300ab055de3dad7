"""A real vLLM whose clips are decoded by a decode service: the embedded engine's captions, whatever becomes of it."""

import os
import signal
import socket
import subprocess
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from corpus_truth import all_truths
from patchify_report import check_patchify
from vllm_servers import BUNDLED, PYTHON, ask, captioned, require_vllm, until

import framefleet
from framefleet.decode.service.client import ServiceClient
from framefleet.decode.service.process import DecodeServiceProcess, ServiceSettings
from framefleet.engine.embedded.checkpoint import open_checkpoint

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
SAMPLES = sorted((Path(framefleet.__file__).parent / "scenes" / "samples").glob("*.mp4"))
BROKEN = [truth.path for truth in all_truths() if truth.must_fail]
UP_S = 400
MODEL = str(open_checkpoint(BUNDLED).folder)
FLAGS = [
    "--served-model-name", BUNDLED, "--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager",
    "--kv-cache-memory-bytes", "64M", "--dtype", "float32",
]  # fmt: skip
ENVIRONMENT = {
    "FRAMEFLEET_TAKE_OVER": "1", "FRAMEFLEET_MODEL": MODEL, "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A vLLM: where it answers and what it writes."""

    url: str
    log: Path

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(self.url + "/health", timeout=5).close()
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A decode service that is started again whenever it dies."""
    folder, ending = tmp_path_factory.mktemp("service"), threading.Event()
    settings = ServiceSettings(socket=folder / "s", cpu_workers=1)

    def keep(running):
        while not ending.wait(0.1):
            running.ensure_running()

    with DecodeServiceProcess(settings, log=folder / "log") as running:
        running.wait_ready()
        keeping = threading.Thread(target=keep, args=[running])
        keeping.start()
        yield running
        ending.set()
        keeping.join()


@pytest.fixture(scope="module")
def vllm(service, tmp_path_factory):
    """A vLLM with our loader taking over."""
    require_vllm()
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("vllm") / "log")
    environment = {**os.environ, **ENVIRONMENT, "FRAMEFLEET_DECODE_SOCKET": str(service.settings.socket)}
    command = [str(PYTHON.with_name("vllm")), "serve", MODEL, "--port", str(port), *FLAGS]
    with server.log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        until(f"vLLM, {server.log}", lambda: server.answers() or process.poll() is not None, UP_S)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its engine outlives its API server
        process.wait()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """The embedded engine's record of each sample."""
    return captioned(SAMPLES, tmp_path_factory.mktemp("embedded") / "captions.jsonl")


def at(vllm) -> tuple[str, ...]:
    return "--endpoint", vllm.url, "--model", BUNDLED


def said(records):
    return [(Path(one["clip"]).name, one["status"], one["text"], one["prompt_tokens"]) for one in records]


def test_captions_are_the_embedded_engines(vllm, service, embedded, tmp_path):
    client = ServiceClient(service.settings.socket)
    before = client.stats().done
    assert said(captioned(SAMPLES, tmp_path / "captions.jsonl", *at(vllm))) == said(embedded)
    assert client.stats().done - before == len(SAMPLES)
    assert vllm.log.read_text().count("clips are decoded by the service at") == 1
    until("frames dropped", lambda: client.stats().budget_held_bytes == 0)


@pytest.mark.parametrize("clip", BROKEN, ids=lambda path: path.name)
def test_a_broken_clip_is_the_clients_fault(vllm, clip):
    status, body = ask(vllm.url, clip)
    assert status == 400, body


def test_one_pass_patchify_beside_the_transformers_that_vllm_brought():
    require_vllm()
    check_patchify(PYTHON)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_no_request_is_lost_with_a_service(vllm, service, embedded, tmp_path, number):
    client, restarts = ServiceClient(service.settings.socket), service.restarts
    before = client.stats().done

    def end_midway():
        until("a third decoded", lambda: client.stats().done - before >= len(SAMPLES) / 3, 120)
        os.kill(service.pid, number)

    ending = threading.Thread(target=end_midway)
    ending.start()
    records = captioned(SAMPLES, tmp_path / "captions.jsonl", *at(vllm), "--concurrency", "8")
    ending.join()
    assert said(records) == said(embedded)
    assert {record["attempts"] for record in records} == {1}
    assert service.restarts == restarts + 1
