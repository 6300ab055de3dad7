"""A service over NVDEC (in software): its frames come through shared memory too, and suspects go to a worker."""

import asyncio
import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import framefleet
from framefleet.decode import wire
from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
from framefleet.decode.nvdec.fake import FakeNvdecDevice
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.decode.service.__main__ import _listening
from framefleet.decode.service.client import ServiceClient
from framefleet.decode.service.served import ServedSilicon
from framefleet.decode.service.server import DecodeService
from framefleet.errors import BudgetTooLarge
from framefleet.media.source import VideoSource
from framefleet.units import MIB

NVDEC = DecodeOptions(num_frames=8, backend="pynvvideocodec")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvdec") / "s"
    nvdec = PyNvVideoCodecBackend(FakeNvdecDevice, lanes=2)
    with DecodePool(workers=2) as pool:
        served = ServedSilicon(pool, nvdec)
        loop, stop = asyncio.new_event_loop(), asyncio.Event()

        async def serve():
            with _listening(path) as listener:
                await DecodeService(served, room_bytes=16 * MIB).serve(listener, stop)

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        while not path.exists():
            time.sleep(0.01)
        yield ServiceClient(path)
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
        served.close()
        nvdec.close()


def test_its_frames_are_copied_to_shared_memory_and_charged_until_they_are_dropped(client, corpus):
    content = Path(corpus / "base.mp4").read_bytes()
    frames = client.decode(content, NVDEC)
    expected = framefleet.decode(content, num_frames=8)
    assert np.abs(frames.data.astype(int) - expected.data).mean() < 2
    assert frames.stats.backend == "pynvvideocodec"
    assert wire.mapping_of(frames.data) is not None
    assert client.stats().budget_held_bytes == frames.data.nbytes
    del frames
    gc.collect()
    while client.stats().budget_held_bytes:
        time.sleep(0.01)
    nvdec, cpu = client.stats().silicon
    assert (nvdec.name, nvdec.slots, cpu.name, cpu.slots) == ("nvdec", 2, "cpu", 2)
    assert nvdec.busy_s_total > 0


def test_frames_beyond_its_room_are_refused(client, corpus):
    with pytest.raises(BudgetTooLarge):
        client.decode(str(corpus / "base.mp4"), DecodeOptions(size=(1920, 1080), backend="pynvvideocodec"))


def test_a_suspect_goes_to_a_worker_unless_nvdec_is_insisted_on(client, corpus):
    clip = VideoSource.of(str(corpus / "base.mp4"))
    client._note_death(clip)
    assert client.decode(clip, DecodeOptions(num_frames=8)).stats.backend == "pyav"
    assert client.decode(clip, NVDEC).stats.backend == "pynvvideocodec"
