"""GPUs, NVDEC and MPS as doctor sees them: nvidia-smi is a script on PATH, the driver's library a fake."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from framefleet.doctor import gpus
from framefleet.doctor.gpus import MpsProcess, caps_finding, mode_findings, mps_finding, mps_processes, video_finding

ROW = "{}, NVIDIA H200, 143771 MiB, 580.1, {}"


def by_name(findings):
    return {finding.name: finding for finding in findings}


@pytest.fixture
def smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*modes, code=0):
        lines = "\n".join(ROW.format(i, mode) for i, mode in enumerate(modes))
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{lines}'\nexit {code}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return install


def test_a_machine_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (only,) = gpus.gpu_findings({})
    assert (only.name, only.level) == ("NVIDIA GPU", "info")


def test_gpus_are_listed_and_hidden_ones_told(smi):
    smi("Default", "Default")
    found = by_name(gpus.gpu_findings({"CUDA_VISIBLE_DEVICES": "1"}))
    assert found["GPU 1"].found == "NVIDIA H200, 143771 MiB, 580.1"
    assert found["visible GPUs"].found == "CUDA_VISIBLE_DEVICES='1' shows 1 of 2 GPUs"
    assert "visible GPUs" not in by_name(gpus.gpu_findings({"CUDA_VISIBLE_DEVICES": "1,0"}))
    assert "shows 0 of 2" in by_name(gpus.gpu_findings({"CUDA_VISIBLE_DEVICES": ""}))["visible GPUs"].found


def test_a_driver_that_does_not_answer(smi):
    smi("Default", code=9)
    assert by_name(gpus.gpu_findings({}))["NVIDIA GPU"].level == "warning"


def no_library(_):
    raise OSError("libnvcuvid.so.1: cannot open shared object file")


def test_a_container_without_the_video_capability():
    finding = video_finding({"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}, no_library)
    assert finding.level == "warning"
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility lacks `video`" in finding.found
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in finding.remedy
    assert "lacks" not in video_finding({"NVIDIA_DRIVER_CAPABILITIES": "compute, video"}, no_library).found
    assert video_finding({}, lambda _: None).level == "ok"


def driver(supported):
    """PyNvVideoCodec's part that tells capabilities; `supported`: (codec, chroma, bits)."""
    chroma = SimpleNamespace(__members__={"_420": "420", "_444": "444"})
    sizes = {"width_min": 1, "height_min": 1, "width_max": 8192, "height_max": 8192, "mb_num_max": 10**6}

    def get_caps(gpu, codec, chroma_format, bits):
        return {"supported": (codec, chroma_format, bits) in supported, "num_decoder_engines": 7, **sizes}

    codecs = SimpleNamespace(**{name: name for name in ("H264", "HEVC", "AV1", "VP9", "VP8", "MPEG2")})
    return SimpleNamespace(cudaVideoChromaFormat=chroma, cudaVideoCodec=codecs, GetDecoderCaps=get_caps)


def test_what_nvdec_takes_is_told_by_codec_and_profile():
    finding = caps_finding(0, driver({("H264", "420", 8), ("HEVC", "420", 8), ("HEVC", "444", 10)}))
    assert finding.level == "ok"
    assert finding.found.startswith("7 engines: h264 (8-bit 4:2:0), hevc (8-bit 4:2:0, 10-bit 4:4:4)")
    nothing = caps_finding(0, driver(set()))
    assert (nothing.level, nothing.found) == ("warning", "takes no codec")


def test_a_driver_without_video_cannot_be_asked():
    def fail(*_):
        raise RuntimeError("no libnvcuvid")

    nvc = driver(set())
    nvc.GetDecoderCaps = fail
    finding = caps_finding(3, nvc)
    assert (finding.level, finding.found) == ("warning", "cannot be asked: no libnvcuvid")


@pytest.mark.parametrize(("mode", "level"), [("Exclusive_Process", "warning"), ("Prohibited", "error")])
def test_a_gpu_for_one_process_only(mode, level):
    (finding,) = mode_findings([["0", "H200", "", "", mode], ["1", "H200", "", "", "Default"]])
    assert (finding.name, finding.level) == ("GPU 0 mode", level)


def test_mps_of_another_user_is_told():
    theirs = MpsProcess(17, 1001, "nvidia-cuda-mps-server")
    finding = mps_finding([theirs], 1000, {})
    assert finding.level == "warning"
    assert finding.found == "another user's: nvidia-cuda-mps-server 17 of user 1001"
    assert mps_finding([theirs], 1001, {}).level == "info"
    assert mps_finding([], 1000, {"CUDA_MPS_PIPE_DIRECTORY": "/nosuch"}).level == "warning"


def test_mps_is_found_among_processes(tmp_path):
    for pid, name in [("17", "nvidia-cuda-mps-control"), ("18", "sh"), ("self", "nvidia-cuda-mps")]:
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{name}\n")
    (found,) = mps_processes(Path(tmp_path))
    assert (found.pid, found.uid) == (17, os.getuid())
