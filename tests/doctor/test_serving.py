"""What a fleet would meet: vLLM's version, cores, disk."""

import pytest

from framefleet.doctor import serving
from framefleet.doctor.serving import cores_findings, vllm_finding
from framefleet.serve.host import EngineEnvironment, Gpu, Host


@pytest.mark.parametrize(
    ("version", "level", "said"),
    [
        ("", "info", "not in the engine's environment"),
        ("0.24.0", "warning", "its own decoders: opencv, pyav; too old for our decoder"),
        ("0.26.0", "ok", "opencv, pyav, torchcodec, pynvvideocodec, deepstream; and ours"),
        ("0.33.1", "ok", "its own decoders: opencv, torchcodec, pynvvideocodec, deepstream; and ours"),
        ("0.41.0", "warning", "was read against 0.33 at most"),
        ("unknown", "warning", "was read against 0.33 at most"),
    ],
)
def test_vllm_by_version(version, level, said):
    finding = vllm_finding(version)
    assert (finding.level, said in finding.found) == (level, True)


@pytest.mark.parametrize(("cores", "level"), [(8, "warning"), (32, "info"), (128, "ok")])
def test_cores_for_each_gpu(cores, level):
    (finding,) = cores_findings(Host(gpus=(Gpu("0"), Gpu("1")), cores=tuple(range(cores))))
    assert finding.level == level
    assert finding.found.startswith(f"{cores / 2:.1f} for each of 2 GPUs")


def test_places(monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMEFLEET_FOLDER", str(tmp_path / "not" / "yet"))
    host = Host(engine=EngineEnvironment(vllm="0.32.0"))
    found = {one.name: one for one in serving.serving_findings(host, {"HF_HOME": str(tmp_path)})}
    assert found["fleet folder"].level == "ok"
    monkeypatch.setattr(serving.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1})())
    found = {one.name: one for one in serving.serving_findings(host, {"HF_HOME": str(tmp_path)})}
    assert (found["model cache"].level, "HF_HOME" in found["model cache"].remedy) == ("warning", True)
