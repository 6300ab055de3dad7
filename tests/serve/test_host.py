"""What is found of GPUs, cores and the engine's environment; the tools are fakes on PATH."""

import sys

import pytest

from framefleet.serve.host import Gpu, choose_gpus, look_at_host, parse_cores, visible_gpus

ROWS = [[str(i), f"GPU-{i}a{i}", "NVIDIA H200", f"00000000:{i}B:00.0"] for i in range(4)]


@pytest.fixture
def fake_smi(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    lines = "\n".join(", ".join(row) for row in ROWS)
    tool.write_text(f'#!/bin/sh\ncat <<"END"\n{lines}\nEND\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tool


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("2,0", ["2", "0"]),
        ("GPU-1a", ["GPU-1a"]),
        ("3, MIG-77", ["3", "MIG-77"]),
        ("1,9,2", ["1"]),
        ("-1", []),
    ],
)
def test_cuda_visible_devices_is_obeyed(visible, devices):
    assert [gpu.device for gpu in choose_gpus(ROWS, visible)] == devices


def test_gpus_of_nvidia_smi(fake_smi):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == (Gpu("1", "NVIDIA H200"),)
    fake_smi.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus({}) == ()


def test_cores_as_the_kernel_lists_them():
    assert parse_cores("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cores("") == ()


def test_the_engines_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    host = look_at_host(sys.executable, {"CUDA_MPS_PIPE_DIRECTORY": "/theirs"})
    assert host.engine.framefleet
    assert (host.gpus, host.has_mps, host.is_in_mps) == ((), False, True)
    assert look_at_host("/nosuch/python").engine.framefleet == ""
