"""Where clips are decoded: the service, this process while it is away if that is wanted, or the reserved GPU."""

import threading
from pathlib import Path

import numpy as np
import pytest

import framefleet
from framefleet.decode.backends import pynvvideocodec
from framefleet.decode.nvdec.fake import FakeNvdecDevice
from framefleet.decode.nvdec.lanes import LaneKind
from framefleet.decode.options import DecodeOptions
from framefleet.decode.service.process import DecodeServiceProcess, ServiceSettings
from framefleet.decode.session import decode, decode_scanned, scan_timed
from framefleet.errors import BudgetTooLarge, ConfigError, DeviceError, ServiceUnreachable
from framefleet.media.source import VideoSource
from framefleet.units import MIB
from framefleet.vllm_plugin import loader, register
from framefleet.vllm_plugin.decoding import DecodingSettings
from framefleet.vllm_plugin.gpu_decoding import ReservedDevice, reserved_backend

CLIP = (Path(framefleet.__file__).parent / "scenes" / "samples" / "scene_00_480p_h264.mp4").read_bytes()
FEW = DecodeOptions(num_frames=2)
START = {"video_backend": "framefleet", "model": "dashcam_tiny"}


@pytest.fixture
def vllm(make_vllm, monkeypatch):
    for name in ("SOCKET", "FALLBACK", "GRACE_S"):
        monkeypatch.delenv(f"FRAMEFLEET_DECODE_{name}", raising=False)
    made = make_vllm("0.26.0")
    register()
    return made


@pytest.fixture
def here(vllm):
    """The frames as this process decodes them."""
    frames, _ = vllm.fetch(CLIP, START)
    return frames


def renewed(monkeypatch, **variables):
    loader._decoding.cache_clear()
    for name, value in variables.items():
        monkeypatch.setenv(f"FRAMEFLEET_DECODE_{name}", str(value))


def test_without_a_service_it_decodes_here_and_says_so_once(vllm, caplog):
    for _ in range(2):
        vllm.fetch(CLIP, START)
    assert caplog.messages == ["framefleet: clips are decoded in this API server: FRAMEFLEET_DECODE_SOCKET is unset"]


def test_the_service_gives_the_same_frames_and_the_clients_faults_stay_400(vllm, here, monkeypatch, tmp_path, corpus):
    renewed(monkeypatch, SOCKET=tmp_path / "s")
    with DecodeServiceProcess(ServiceSettings(socket=tmp_path / "s", cpu_workers=1), log=tmp_path / "log"):
        frames, metadata = vllm.fetch(CLIP, START)
        assert np.array_equal(frames, here)
        assert metadata["video_backend"] == "framefleet_pyav"
        frames, _ = vllm.fetch(CLIP, {**START, "backend": "pynvvideocodec"})  # the GPU is the service's
        assert np.array_equal(frames, here)
        with pytest.raises(ConfigError, match="deepstream"):
            vllm.fetch(CLIP, {**START, "backend": "deepstream"})
        with pytest.raises(ValueError, match="cannot be opened"):
            vllm.fetch((corpus / "html_404.mp4").read_bytes(), START)


def test_a_service_that_stays_away_is_an_error_unless_this_process_may_do(vllm, here, monkeypatch, tmp_path, caplog):
    renewed(monkeypatch, SOCKET=tmp_path / "s", GRACE_S=0.1)
    with pytest.raises(ServiceUnreachable, match="does not answer"):
        vllm.fetch(CLIP, START)
    renewed(monkeypatch, FALLBACK="in_process")
    caplog.clear()
    for _ in range(2):
        assert np.array_equal(vllm.fetch(CLIP, START)[0], here)
    with DecodeServiceProcess(ServiceSettings(socket=tmp_path / "s", cpu_workers=1), log=tmp_path / "log") as service:
        service.wait_ready()
        assert np.array_equal(vllm.fetch(CLIP, START)[0], here)
    _, away, back = caplog.messages
    assert "in this API server, on the CPU, until it is back" in away
    assert back.endswith("again")


@pytest.mark.parametrize("name", ["pynvvideocodec", "deepstream"])
def test_nothing_unreserved_decodes_on_the_gpu_also_not_from_the_environment(vllm, monkeypatch, name):
    monkeypatch.setenv("FRAMEFLEET_BACKEND", name)
    with pytest.raises(ConfigError, match="reserved memory"):
        vllm.fetch(CLIP, START)


@pytest.mark.parametrize("given", [{"FRAMEFLEET_DECODE_FALLBACK": "maybe"}, {"FRAMEFLEET_DECODE_GRACE_S": "-1"}])
def test_wrong_settings_are_refused(given):
    with pytest.raises(ConfigError, match="FRAMEFLEET_DECODE_FALLBACK"):
        DecodingSettings.of(given)


class Pool:
    """As vLLM's `MultiModalGPUMemoryPool`."""

    def __init__(self, total_bytes):
        self.total_bytes, self.held, self.peak = total_bytes, 0, 0
        self._changing = threading.Lock()

    def acquire(self, nbytes):
        assert nbytes <= self.total_bytes
        with self._changing:
            self.held += nbytes
            self.peak = max(self.peak, self.held)
        pool = self

        class Lease:
            def release(self):
                with pool._changing:
                    pool.held -= nbytes

        return Lease()


def test_the_reserved_gpu_is_used_where_the_start_names_it(vllm, here, monkeypatch):
    device = FakeNvdecDevice()
    monkeypatch.setattr(pynvvideocodec, "visible_gpu", lambda: device)
    vllm.gpu_pool = Pool(512 * MIB)
    frames, metadata = vllm.fetch(CLIP, {**START, "backend": "pynvvideocodec", "hw_decoders": 2})
    assert metadata["video_backend"] == "framefleet_pynvvideocodec"
    assert np.abs(frames.astype(int) - here).mean() < 2
    assert vllm.fetch(CLIP, START, {"backend": "pynvvideocodec"})[1]["video_backend"] == "framefleet_pyav"


def test_what_decoders_take_beyond_their_share_is_acquired_while_they_are_kept(corpus):
    device, pool, path = FakeNvdecDevice(), Pool(512 * MIB), str(corpus / "base.mp4")
    backend = reserved_backend(lambda: device, pool, decoders=1, reserved_bytes=MIB)
    clip, _ = scan_timed(VideoSource.of(path), FEW)
    frames = decode_scanned(clip, FEW, own={"pynvvideocodec": backend})
    assert frames.stats.backend == "pynvvideocodec"
    assert np.abs(frames.data.astype(int) - decode(path, FEW).data).mean() < 2
    assert pool.held == pool.peak == LaneKind.of(clip.info).lane_bytes() - MIB
    backend.close()
    assert (pool.held, device.num_open) == (0, 0)


@pytest.mark.parametrize("pool", [None, Pool(MIB)])
def test_a_picture_beyond_what_was_reserved_is_refused_without_waiting(pool):
    device = ReservedDevice(FakeNvdecDevice(), pool, reserved_bytes=16 * MIB)
    with pytest.raises(BudgetTooLarge, match="mm-ipc-gpu-memory-gb"):
        device.open_decoder(LaneKind("h264", "4:2:0", 8, 1920, 1080))


def test_a_decoder_that_does_not_open_keeps_no_lease():
    pool = Pool(512 * MIB)
    device = ReservedDevice(FakeNvdecDevice(fail_open=1), pool, reserved_bytes=MIB)
    with pytest.raises(DeviceError):
        device.open_decoder(LaneKind("h264", "4:2:0", 8, 1920, 1080))
    assert (pool.held, pool.peak > 0) == (0, True)
