"""A real service with real workers: the pool's frames and errors, room given back, and who ends with whom."""

import gc
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

import framefleet
from framefleet.decode import wire
from framefleet.decode.options import DecodeOptions
from framefleet.decode.service import __main__ as command_line
from framefleet.decode.service.client import ServiceClient
from framefleet.decode.service.process import DecodeServiceProcess, ServiceSettings
from framefleet.decode.service.protocol import Ask, Started
from framefleet.decode.session import decode
from framefleet.errors import (
    BudgetTooLarge,
    ConfigError,
    DeviceError,
    ServiceUnreachable,
    SourceCorrupt,
    SourceNotFound,
)
from framefleet.media.source import VideoSource
from framefleet.units import MIB

SAMPLES = Path(framefleet.__file__).parent / "scenes" / "samples"
CLIP = SAMPLES / "scene_00_480p_h264.mp4"
FEW = DecodeOptions(num_frames=4)


def until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    settings = ServiceSettings(socket=folder / "s", cpu_workers=2, budget_bytes=64 * MIB)
    with DecodeServiceProcess(settings, log=folder / "log") as running:
        running.wait_ready()
        yield running
    assert not (folder / "s").exists()


@pytest.fixture
def client(service):
    return ServiceClient(service.settings.socket)


@pytest.mark.parametrize("clip", [CLIP, CLIP.read_bytes(), VideoSource.of(CLIP)], ids=["path", "bytes", "source"])
def test_frames_are_those_of_decoding_here_and_lie_in_shared_memory(client, clip):
    came, expected = client.decode(clip, FEW), decode(CLIP, FEW)
    assert np.array_equal(came.data, expected.data)
    assert (came.pts_s.tolist(), came.info) == (expected.pts_s.tolist(), expected.info)
    assert (came.indices.tolist(), came.fps, came.duration_s) == (
        expected.indices.tolist(),
        expected.fps,
        expected.duration_s,
    )
    assert wire.mapping_of(came.data) is not None


def test_a_path_is_the_clients_own(client, monkeypatch):
    monkeypatch.chdir(CLIP.parent)
    assert len(client.decode(CLIP.name, FEW)) == 4


def test_room_is_taken_while_any_view_of_the_frames_lives(client):
    frames = client.decode(CLIP, FEW)
    size = frames.data.nbytes
    until(lambda: client.stats().budget_held_bytes == size)
    assert client.stats().frames_held == 1
    view = frames.data[1:, ::2]
    del frames
    gc.collect()
    assert client.stats().frames_held == 1
    assert view.any()
    del view
    until(lambda: client.stats().budget_held_bytes == client.stats().frames_held == client.stats().clients == 0)


def test_errors_are_raised_as_what_they_are(client, corpus):
    before = client.stats().failed
    with pytest.raises(SourceCorrupt, match="bytes:"):
        client.decode((corpus / "html_404.mp4").read_bytes())
    with pytest.raises(SourceCorrupt, match="empty"):
        client.decode(b"")
    with pytest.raises(SourceNotFound, match=r"none\.mp4"):
        client.decode("/nowhere/none.mp4")
    with pytest.raises(ConfigError, match="contradict"):
        client.decode(CLIP, DecodeOptions(num_frames=3, fps=1))
    with pytest.raises(BudgetTooLarge):
        client.decode(CLIP, DecodeOptions(num_frames=8, size=(3840, 2160)))
    assert client.stats().failed == before + 5


def test_a_client_that_goes_away_stops_its_work(service, client):
    before = client.stats().cancelled
    kept = [client.decode(CLIP, DecodeOptions(num_frames=4, size=(1920, 1080))) for _ in range(2)]  # 48 of 64 MiB
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(str(service.settings.socket))
        wire.send(link, Ask(VideoSource.of(CLIP), DecodeOptions(num_frames=4, size=(1920, 1080))))
        assert wire.receive(link).decode(Started).is_isolated
        until(lambda: client.stats().budget_waiting == 1)
    until(lambda: client.stats().cancelled == before + 1)
    until(lambda: client.stats().budget_waiting == client.stats().running == 0)
    del kept


def test_clips_wait_for_room_instead_of_filling_the_memory(client):
    options = DecodeOptions(num_frames=4, size=(1920, 1080))
    for _ in range(4):
        client.decode(CLIP, options)  # dropped at once: 96 MiB through a budget of 64
    assert client.stats().budget_bytes == 64 * MIB


def test_rubbish_from_a_client_costs_its_own_connection(service, client):
    for message in (b"irubbish", b"", b"f"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(str(service.settings.socket))
            link.send(message)
            link.settimeout(10)
            assert link.recv(100) == b""
    assert client.decode(CLIP, FEW).data.any()


def test_stats_from_the_command_line_and_as_metrics(service, client):
    command = [sys.executable, "-m", "framefleet.decode.service", "--socket", str(service.settings.socket), "--stats"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f'"pid":{service.pid}' in done.stdout
    text = subprocess.run([*command, "prometheus"], capture_output=True, text=True, check=True).stdout
    assert 'framefleet_decode_silicon_slots{silicon="cpu"} 2\n' in text
    assert f"framefleet_decode_done_total {client.stats().done}\n" in text


def test_a_second_service_does_not_take_the_socket_over(service, tmp_path):
    again = DecodeServiceProcess(service.settings, log=tmp_path / "log")
    again.start()
    with pytest.raises(DeviceError, match=f"there already.*process {service.pid}"):
        again.wait_ready()
    again.stop()
    assert ServiceClient(service.settings.socket).stats().pid == service.pid


def test_nobody_there_is_said_at_once_after_the_grace(tmp_path):
    client = ServiceClient(tmp_path / "s", grace_s=0.2)
    for _ in range(2):
        with pytest.raises(ServiceUnreachable, match="does not answer"):
            client.decode(CLIP, FEW)
    with pytest.raises(ServiceUnreachable):
        client.stats()


PARENT = """
import sys, time
from pathlib import Path
from framefleet.decode.service.process import DecodeServiceProcess, ServiceSettings
service = DecodeServiceProcess(ServiceSettings(socket=Path(sys.argv[1]), cpu_workers=1))
service.start()
print(service.wait_ready().pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "s")], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    assert not (tmp_path / "s").exists()


def test_a_gpu_that_is_not_there_is_said_at_the_start(monkeypatch):
    monkeypatch.setattr(command_line, "nvdec_is_here", lambda: False)
    asked = Namespace(gpu="0", cpu_workers=1, budget=MIB, gpu_budget=MIB)
    with pytest.raises(ConfigError, match="no NVDEC"), command_line._opened(asked):
        pass


def test_a_socket_name_that_the_kernel_would_cut_is_refused(tmp_path):
    long = DecodeServiceProcess(ServiceSettings(socket=tmp_path / ("x" * 120)), log=tmp_path / "log")
    with long, pytest.raises(DeviceError, match="too long"):
        long.wait_ready()
