"""Gauges: real processes of this machine, and NVML by a fake with its functions."""

import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from framefleet.bench.gauges import (
    NvmlGauge,
    ProcessGauge,
    Series,
    Watch,
    environment_of,
    listening_pid,
    role_of,
    usable_cores,
)
from framefleet.errors import MissingLibrary


class Nvml:
    """pynvml's functions, with two GPUs; the second cannot tell its PCIe throughput."""

    NVMLError = RuntimeError
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, has_driver=True):
        self.has_driver, self.is_open = has_driver, False

    def nvmlInit(self):  # noqa: N802
        if not self.has_driver:
            raise self.NVMLError("no driver")
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number):  # noqa: N802
        return number

    def nvmlDeviceGetUtilizationRates(self, device):  # noqa: N802
        return SimpleNamespace(gpu=[90, 50][device])

    def nvmlDeviceGetDecoderUtilization(self, device):  # noqa: N802
        return [20, 40][device], 1000

    def nvmlDeviceGetMemoryInfo(self, device):  # noqa: N802
        return SimpleNamespace(used=[5, 7][device] * 2**30)

    def nvmlDeviceGetPcieThroughput(self, device, way):  # noqa: N802
        if device == 1:
            raise self.NVMLError("not supported")
        return [1_000_000, 2_000_000][way]

    def nvmlDeviceGetCurrPcieLinkWidth(self, device):  # noqa: N802
        return 16

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device):  # noqa: N802
        return 5


def test_nvdec_is_told_apart_from_the_gpu_and_what_a_gpu_cannot_tell_is_left_out():
    nvml = Nvml()
    gauge = NvmlGauge(nvml=nvml)
    read = gauge.read()
    gauge.close()
    assert (read["gpu/busy"], read["gpu/nvdec"]) == (pytest.approx(0.7), pytest.approx(0.3))
    assert read["gpu/memory_bytes"] == 7 * 2**30
    assert read["gpu/pcie"] == pytest.approx(2.048e9 / (16 * 250e6 * 16))
    assert not nvml.is_open


def test_only_the_gpus_asked_for_count():
    assert NvmlGauge([1], nvml=Nvml()).read()["gpu/busy"] == 0.5


def test_without_a_driver_it_says_so():
    with pytest.raises(MissingLibrary, match="NVML finds no driver"):
        NvmlGauge(nvml=Nvml(has_driver=False))


def spinning(seconds):
    code = f"import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\ntime.sleep(60)"
    return subprocess.Popen([sys.executable, "-c", code])


def test_cpu_of_processes_by_role_and_those_that_ended_stay_in_the_sum():
    process = spinning(0.5)
    gauge = ProcessGauge({process.pid: "engine", os.getpid(): "client"})
    try:
        until_s = time.monotonic() + 60
        while gauge.read()["cpu/engine_s"] < 0.5 and time.monotonic() < until_s:
            time.sleep(0.05)
        seen = gauge.read()
    finally:
        process.kill()
        process.wait()
    assert seen["cpu/engine_s"] >= 0.5
    assert seen["cpu/client_s"] > 0
    assert seen["rss/engine"] > 1e6
    assert gauge.read()["cpu/engine_s"] >= 0.5


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["VLLM::EngineCore"], "engine"),
        (["VLLM::Worker_TP0"], "engine"),
        (["VLLM::APIServer_1"], "api_server"),
        (["python", "-m", "framefleet.engine.embedded.worker", "7"], "engine"),
        (["python", "-P", "-m", "framefleet.decode.worker", "7"], "decode_worker"),
        (["python", "-m", "framefleet.decode.service", "--socket", "x"], "decode_worker"),
        (["bash"], None),
    ],
)
def test_roles_by_command_line(words, role):
    assert role_of(words) == role


def test_who_listens_here():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listening_pid(f"http://127.0.0.1:{listener.getsockname()[1]}") == os.getpid()
    assert listening_pid("http://example.com") is None


def test_the_environment_of_a_process():
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "FRAMEFLEET_TEST_MARK": "/s"}
    )
    try:
        limit_s = time.monotonic() + 20
        while not environment_of([child.pid], "FRAMEFLEET_TEST_MARK") and time.monotonic() < limit_s:
            time.sleep(0.01)  # the kernel shows none until the new program is set up
        assert environment_of([child.pid, 2**22 + 1], "FRAMEFLEET_TEST_MARK") == ["/s"]
    finally:
        child.kill()
        child.wait()


def test_cores_are_no_more_than_the_affinity():
    assert 0 < usable_cores() <= len(os.sched_getaffinity(0))


class Counting:
    def __init__(self):
        self.count = 0

    def read(self):
        self.count += 1
        late = {"late": 1.0} if self.count > 1 else {}
        return {"cpu/x_s": 0.5 * self.count, "level": float(self.count), **late}


def test_a_watch_reads_at_both_ends_and_names_that_came_late_are_left_out():
    with Watch([Counting()], period_s=0.02) as watch:
        time.sleep(0.1)
    series = watch.series()
    assert len(series.times_s) >= 3
    assert set(series.values) == {"cpu/x_s", "level"}


def test_series_as_rates_means_and_peaks():
    series = Series((0.0, 1.0, 3.0), {"cpu/x_s": (0.0, 1.0, 2.0), "level": (1.0, 5.0, 3.0)})
    assert series.rate("cpu/x_s") == pytest.approx(2 / 3)
    assert (series.mean("level"), series.peak("level")) == (3.0, 5.0)
    assert series.share_above("level", 2.0) == pytest.approx(2 / 3)
    assert series.shown() == {"cpu/x": (1.0, 0.5), "level": (5.0, 3.0)}
    assert series.mean("nothing") is series.rate("nothing") is None
