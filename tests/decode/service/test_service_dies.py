"""A service that dies and comes back loses no request; a clip that kills it is found out, and nobody else is blamed."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import framefleet
from framefleet.decode import wire
from framefleet.decode.messages import Problem
from framefleet.decode.options import DecodeOptions
from framefleet.decode.service.client import ServiceClient
from framefleet.decode.service.process import DecodeServiceProcess, ServiceSettings
from framefleet.decode.service.protocol import Again, Ask, Failure, Started
from framefleet.decode.session import decode
from framefleet.errors import DecoderLost, DeviceError, SourceCorrupt
from framefleet.media.source import VideoSource

SAMPLES = sorted((Path(framefleet.__file__).parent / "scenes" / "samples").glob("*.mp4"))
FEW = DecodeOptions(num_frames=4)


class Kept:
    """Restarts a service (anything with `start`, `is_running`) from a thread, as a fleet does."""

    def __init__(self, start):
        self.start, self.process, self.starts = start, start(), 1
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._ending.wait(0.02):
            if self.process.poll() is not None:
                self.process, self.starts = self.start(), self.starts + 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ending.set()
        self._thread.join()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def deadly(tmp_path):
    script = str(Path(__file__).parent / "deadly_service.py")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])}
    with Kept(lambda: subprocess.Popen([sys.executable, script, str(tmp_path / "s")], env=environ)) as kept:
        kept.client = ServiceClient(tmp_path / "s")
        yield kept


def named(words):
    return VideoSource("bytes", words, b"some bytes")


def test_a_clip_that_killed_the_service_twice_is_refused_from_then_on(deadly):
    with pytest.raises(DecoderLost, match=r"quarantined.*2 times"):
        deadly.client.decode(named("deadly clip"))
    assert len(deadly.client.decode(named("good"), FEW)) == 4
    starts = deadly.starts
    with pytest.raises(DecoderLost, match="quarantined"):
        deadly.client.decode(named("deadly clip"))
    assert len(deadly.client.decode(named("good"), FEW)) == 4
    assert deadly.starts == starts == 3


def test_those_decoded_beside_a_killer_are_not_blamed(deadly):
    deadly.client.decode(named("first"))
    names = [f"slow 0.3 {n}" for n in range(3)] + ["deadly clip"]
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(deadly.client.decode, named(name), FEW) for name in names]
        for good in asked[:3]:
            assert len(good.result(60)) == 4
        with pytest.raises(DecoderLost):
            asked[3].result(60)


@pytest.fixture
def scripted(tmp_path):
    """A socket that answers each connection with the next of some replies, then ends it; the asks it got."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    asks = []

    def play(*replies):
        for reply in replies:
            with listener.accept()[0] as link:
                asks.append(wire.receive(link).decode(Ask))
                for message in reply:
                    wire.send(link, message)

    with listener, ThreadPoolExecutor(1) as threads:
        yield lambda *replies: (threads.submit(play, *replies), asks, ServiceClient(tmp_path / "s"))


def test_only_those_whose_turn_had_come_are_suspects(scripted):
    end = [Started(), Failure(Problem("SourceCorrupt", "is damaged"))]
    innocent = [[], [Again()], [Started(), Again()], [Started(is_isolated=True)]]
    _, asks, client = scripted(*innocent, [Started()], *innocent, end, end)
    for _ in range(2):
        with pytest.raises(SourceCorrupt, match="is damaged"):
            client.decode(named("good"))
    assert [ask.is_suspect for ask in asks] == [False] * 5 + [True] * 6


def test_patience_ends(deadly):
    deadly.client.decode(named("first"), FEW)
    client = ServiceClient(deadly.client.path, patience_s=1.0)
    with pytest.raises(DeviceError, match="no answer in time"):
        client.decode(named("slow 60"))
    while deadly.client.stats().cancelled < 1:
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_real_services_killed_at_work_lose_no_request(tmp_path, number):
    service = DecodeServiceProcess(ServiceSettings(socket=tmp_path / "s", cpu_workers=2), log=tmp_path / "log")
    client = ServiceClient(tmp_path / "s")
    clips = [path.read_bytes() for path in SAMPLES[:8]] * 2
    with service, ThreadPoolExecutor(8) as threads:
        service.wait_ready()
        asked = [threads.submit(client.decode, clip, FEW) for clip in clips]
        while client.stats().done < 3:
            time.sleep(0.01)
        os.kill(service.pid, number)
        while not all(one.done() for one in asked):
            service.ensure_running()
            time.sleep(0.05)
        frames = [one.result() for one in asked]
    assert service.restarts == 1
    for path, came in zip(SAMPLES[:8], frames, strict=False):
        assert np.array_equal(came.data, decode(path, FEW).data)
