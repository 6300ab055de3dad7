from pathlib import Path

import pytest

from framefleet.doctor import decoding, libraries, machine

BASE = Path(__file__).parent.parent / "corpus" / "files" / "base.mp4"


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_backends_are_judged_by_decoding():
    found = by_name(decoding.decoding_findings(str(BASE)))
    assert found["backend pyav"].level == "ok"
    assert found["backend pyav"].found == "gave 2 frames of a sample clip"
    assert "backend fake" not in found
    assert "h264" in found["codecs"].found


def test_a_backend_that_fails_is_told_with_its_remedy(monkeypatch):
    from framefleet.decode.backends.pyav import PyAvBackend
    from framefleet.errors import MissingLibrary

    def fail(*_):
        raise MissingLibrary("PyAV is not installed", remedy="pip install av")

    monkeypatch.setattr(PyAvBackend, "decode", fail)
    found = by_name(decoding.decoding_findings(str(BASE)))["backend pyav"]
    assert (found.level, found.found, found.remedy) == ("info", "PyAV is not installed", "pip install av")


def test_a_backend_that_refuses_has_its_remedy_beside_the_reason(monkeypatch):
    from framefleet.decode.backends.pyav import PyAvBackend

    monkeypatch.setattr(PyAvBackend, "refuse", lambda *_: "it is not installed; try: pip install it")
    found = by_name(decoding.decoding_findings(str(BASE)))["backend pyav"]
    assert (found.level, found.found, found.remedy) == ("info", "refuses: it is not installed", "pip install it")


def test_a_missing_codec_is_named(monkeypatch):
    monkeypatch.setattr(decoding, "_CODECS", ("h264", "nope"))
    found = by_name(decoding.decoding_findings(str(BASE)))["codecs"]
    assert found.level == "warning"
    assert found.found.endswith("not nope")


def test_versions_and_missing_extras(monkeypatch):
    monkeypatch.setattr(libraries, "_EXTRAS", {"nvdec": ("no-such-distribution",)})
    found = by_name(libraries.library_findings())
    assert found["numpy"].level == "ok"
    assert found["no-such-distribution"].remedy == "pip install 'framefleet[nvdec]'"


@pytest.mark.parametrize(
    ("installed", "warns"),
    [({"opencv-python"}, False), ({"opencv-python", "opencv-python-headless"}, True), (set(), False)],
)
def test_two_builds_of_opencv_are_told(monkeypatch, installed, warns):
    monkeypatch.setattr(libraries, "installed_version", lambda name: "5.0" if name in installed else None)
    assert ("opencv" in by_name(libraries.library_findings())) is warns


def test_a_full_disk_and_a_read_only_place_are_told(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1})())
    found = by_name(machine.machine_findings())
    assert (found["disk here"].level, found["disk here"].remedy != "") == ("warning", True)
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert by_name(machine.machine_findings())["disk here"].level == "error"
