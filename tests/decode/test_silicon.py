"""Clips behind one door: NVDEC (in software) and the CPU, fallbacks, refusals, limits."""

import asyncio
import gc
import os
import threading

import numpy as np
import pytest

import framefleet
from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
from framefleet.decode.nvdec.fake import FakeNvdecDevice
from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.decode.silicon import SiliconReader, leftover_pool
from framefleet.errors import DecodeError, SourceUnsupported

OPTIONS = DecodeOptions(num_frames=8)


@pytest.fixture
def device():
    return FakeNvdecDevice()


@pytest.fixture
def pool():
    with DecodePool(workers=2) as opened:
        yield opened


@pytest.fixture
def nvdec(device):
    made = PyNvVideoCodecBackend(lambda: device, lanes=2)
    yield made
    made.close()
    assert device.num_open == 0


def read(reader, *clips, options=OPTIONS):
    async def all_of_them():
        return await asyncio.gather(*(reader.decode(str(clip), options) for clip in clips), return_exceptions=True)

    got = asyncio.run(all_of_them())
    reader.close()
    return got


def test_same_frames_whichever_silicon(corpus, pool, nvdec):
    reader = SiliconReader(pool, nvdec)
    frames = read(reader, *[corpus / "base.mp4"] * 12)
    expected = framefleet.decode(str(corpus / "base.mp4"), num_frames=8)
    for got in frames:
        np.testing.assert_array_equal(got.indices, expected.indices)
        assert np.abs(got.data.astype(int) - expected.data).mean() < 2
    assert reader.load.done["pynvvideocodec"] > 0
    assert sum(reader.load.done.values()) == 12
    assert reader.load.nvdec_clips == reader.load.cpu_clips == 0


def test_a_cpu_that_is_free_takes_what_would_wait(corpus, pool, nvdec):
    reader = SiliconReader(pool, nvdec)
    reader.gpu.note("h264", 1.0, 1.0)  # so slow that its queue is never worth waiting in
    (frames,) = read(reader, corpus / "base.mp4")
    assert frames.stats.backend == "pyav"
    assert frames.stats.fell_back_to == ""


def test_what_nvdec_refuses_is_decoded_on_the_cpu_and_says_why(corpus, pool, nvdec):
    reader = SiliconReader(pool, nvdec)
    (frames,) = read(reader, corpus / "h264_hi10.mp4")
    assert frames.stats.backend == "pyav"
    assert "H.264" in frames.stats.refusals["pynvvideocodec"]
    assert reader.load.refused == 1


def test_insisting_on_nvdec_is_refused_with_the_reason(corpus, pool, nvdec):
    reader = SiliconReader(pool, nvdec)
    (error,) = read(reader, corpus / "h264_hi10.mp4", options=DecodeOptions(num_frames=8, backend="pynvvideocodec"))
    assert isinstance(error, SourceUnsupported)
    assert "H.264" in str(error)


def test_a_gpu_without_sessions_costs_no_clip(corpus, pool, nvdec, device):
    device.fail_open = 1000
    reader = SiliconReader(pool, nvdec)
    (frames,) = read(reader, corpus / "base.mp4")
    assert frames.stats.backend == frames.stats.fell_back_to == "pyav"
    assert "no session" in frames.stats.refusals["pynvvideocodec"]
    assert reader.load.fell_back == 1


def test_damaged_clips_are_errors_of_the_clip(corpus, pool, nvdec):
    reader = SiliconReader(pool, nvdec)
    errors = read(reader, corpus / "zero_bytes.mp4", corpus / "html_404.mp4")
    assert all(isinstance(error, framefleet.errors.SourceError) for error in errors), errors


def test_without_nvdec_it_is_the_pool(corpus, pool):
    reader = SiliconReader(pool)
    (frames,) = read(reader, corpus / "base.mp4")
    assert frames.stats.backend == "pyav"
    assert frames.stats.refusals == {}


def test_a_hung_gpu_is_left_behind_and_not_asked_again(corpus, pool, nvdec, monkeypatch):
    hanging = threading.Event()

    class Hangs:
        name = nvdec.name
        refuse, num_lanes = nvdec.refuse, nvdec.num_lanes

        def decode_parcel(self, parcel, options):
            hanging.wait(30)
            raise DecodeError("too late")

    monkeypatch.setattr("framefleet.decode.silicon._GRACE_S", -600.0)  # less the wait for a decoder
    reader = SiliconReader(pool, Hangs())
    options = DecodeOptions(num_frames=8, timeout_s=1.0)
    frames = read(reader, *[corpus / "base.mp4"] * 2, options=options)
    hanging.set()
    assert [f.stats.backend for f in frames] == ["pyav", "pyav"]
    assert reader.load.hung >= 1


def test_frames_count_as_in_flight_until_they_are_dropped(corpus, pool, nvdec):
    reader = SiliconReader(pool, nvdec)
    (frames,) = read(reader, corpus / "base.mp4", options=DecodeOptions(num_frames=8, backend="pynvvideocodec"))
    view = frames.data[2:]
    assert reader._room.held_bytes == frames.data.nbytes
    del frames
    gc.collect()
    assert reader._room.held_bytes > 0
    del view
    gc.collect()
    assert reader._room.held_bytes == 0


def test_a_nicer_pool_decodes_what_nvdec_does_not(corpus, pool, nvdec):
    with leftover_pool(pool) as cpu_pool:
        reader = SiliconReader(pool, nvdec, cpu_pool)
        reader.gpu.note("h264", 1.0, 1.0)
        (frames,) = read(reader, corpus / "base.mp4")
        worker = cpu_pool._attendants[0].worker or cpu_pool._attendants[1].worker
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10
        assert cpu_pool.load.jobs_done == 1
    assert frames.stats.backend == "pyav"
