"""Where GStreamer is looked for, and what is told to whoever lacks it."""

import json
import platform
import sys
import sysconfig

import pytest

from framefleet.cli.app import run
from framefleet.decode.deepstream import bundle
from framefleet.decode.deepstream.debian import package_candidates
from framefleet.decode.deepstream.gstreamer import (
    BUNDLE_VARIABLE,
    find_gstreamer,
    how_to_install,
    missing_packages,
    package_name,
)
from framefleet.decode.deepstream.pygobject import Python
from framefleet.doctor.gstreamer import gstreamer_finding
from framefleet.errors import ConfigError, MissingLibrary

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
RELEASES = {
    "debian12": 'ID=debian\nVERSION_ID="12"\n',
    "debian13": 'ID=debian\nVERSION_ID="13"\n',
    "ubuntu22": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\n',
    "ubuntu24": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n',
    "rocky9": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n',
    "unheard": "ID=unheard\n",
}


@pytest.fixture
def machine(tmp_path):
    """A root folder of a distribution, with the files named."""

    def made(release, *files):
        for file in ("etc/os-release", *files):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(RELEASES[release])
        return tmp_path

    return made


LIBRARIES = f"usr/lib/{platform.machine()}-linux-gnu"
ALL = [
    f"usr/lib/python3/dist-packages/gi/_gi{SUFFIX}",
    f"{LIBRARIES}/girepository-1.0/Gst-1.0.typelib",
    *(f"{LIBRARIES}/gstreamer-1.0/libgst{name}.so" for name in ("app", "matroska", "videoparsersbad")),
    f"{LIBRARIES}/libv4lconvert.so.0",
]


@pytest.mark.parametrize(("release", "v4l"), [("debian12", "libv4lconvert0"), ("ubuntu24", "libv4lconvert0t64")])
def test_an_empty_system_is_told_every_package(machine, release, v4l):
    with pytest.raises(MissingLibrary) as error:
        find_gstreamer({}, machine(release))
    for name in ("python3-gi", "gir1.2-gstreamer-1.0", "gstreamer1.0-plugins-bad", v4l):
        assert name in error.value.remedy.split("; ")[0].split()
    assert BUNDLE_VARIABLE in error.value.remedy


def test_only_what_is_missing_is_named(machine):
    root = machine("debian12", *[file for file in ALL if "matroska" not in file])
    assert missing_packages(root) == ["gstreamer1.0-plugins-good"]


def test_a_complete_system_is_taken(machine):
    root = machine("debian12", *ALL)
    found = find_gstreamer({}, root)
    assert found.kind == "system"
    assert found.python_path == (str(root / "usr/lib/python3/dist-packages"),)
    assert not found.bundle


def test_another_pythons_bindings_do_not_count(machine):
    root = machine("ubuntu24", *ALL[1:], "usr/lib/python3/dist-packages/gi/_gi.cpython-39-x86_64-linux-gnu.so")
    assert missing_packages(root) == ["python3-gi"]
    assert "bundle" in how_to_install(root).split(";")[0]


@pytest.mark.parametrize(("release", "words"), [("rocky9", "dnf install"), ("unheard", "framefleet deepstream bundle")])
def test_other_distributions(machine, release, words):
    assert how_to_install(machine(release)).startswith(words)


@pytest.mark.parametrize(
    ("release", "name"),
    [("debian12", "libv4lconvert0"), ("debian13", "libv4lconvert0t64"), ("ubuntu22", "libv4lconvert0")],
)
def test_the_64_bit_time_change_renamed_a_library(machine, release, name):
    assert package_name("libv4lconvert0", machine(release)) == name


def test_a_wrong_bundle_is_told(tmp_path):
    with pytest.raises(ConfigError, match="names no GStreamer bundle"):
        find_gstreamer({BUNDLE_VARIABLE: str(tmp_path)})
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libgstreamer-1.0.so.0").touch()
    with pytest.raises(ConfigError, match="another Python"):
        find_gstreamer({BUNDLE_VARIABLE: str(tmp_path)})


def test_doctor_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv(BUNDLE_VARIABLE, str(tmp_path))
    assert gstreamer_finding().level == "warning"


@pytest.mark.parametrize(
    ("soname", "package"),
    [
        ("libpcre2-8.so.0", "libpcre2-8-0"), ("liborc-0.4.so.0", "liborc-0.4-0"), ("libffi.so.8", "libffi8"),
        ("libgirepository-1.0.so.1", "libgirepository-1.0-1"), ("libz.so.1", "zlib1g"), ("libdw.so.1", "libdw1"),
        ("libjpeg.so.62", "libjpeg62-turbo"), ("libgio-2.0.so.0", "libglib2.0-0t64"), ("libzstd.so.1", "libzstd1"),
    ],
)  # fmt: skip
def test_packages_are_known_by_their_library(soname, package):
    assert package in package_candidates(soname)


def test_what_is_no_version_is_refused():
    assert Python.of().executable == sys.executable
    with pytest.raises(ConfigError, match="no version"):
        Python.of("three")


def test_a_folder_in_use_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").touch()
    assert run(["deepstream", "bundle", "--output", str(tmp_path)]) != 0
    assert "not empty" in capsys.readouterr().err


def test_a_bundle_that_cannot_be_made_leaves_no_half_of_it(tmp_path, monkeypatch):
    """So that the same command can be given again."""

    class Packages:
        def __init__(self, _):
            pass

        def update(self):
            pass

        def fetch(self, *_):
            return {}

    def placed(_, folder):
        (folder / "lib").mkdir(parents=True)

    def lacks(*_):
        raise MissingLibrary("no PyGObject")

    monkeypatch.setattr(bundle, "Apt", Packages)
    monkeypatch.setattr(bundle, "Patchelf", object)
    monkeypatch.setattr(bundle, "_known", lambda *_: ())
    monkeypatch.setattr(bundle, "_place_parts", placed)
    monkeypatch.setattr(bundle, "_place_pygobject", lacks)
    with pytest.raises(MissingLibrary):
        bundle.build_bundle(tmp_path / "bundle", Python.of())
    assert not (tmp_path / "bundle").exists()


@pytest.mark.slow
def test_a_bundle_works_wherever_it_lies(tmp_path, capsys):
    """Fetches 10 MB of packages. The trial runs within the build, and again after the folder was moved."""
    assert run(["deepstream", "bundle", "--output", str(tmp_path / "made"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_tried"]
    moved = (tmp_path / "made").rename(tmp_path / "moved")
    from framefleet.decode.deepstream.bundle import try_bundle

    assert try_bundle(moved, Python.of())
    manifest = json.loads((moved / "manifest.json").read_text())
    assert "gstreamer1.0-plugins-bad" in manifest["packages"]
    assert find_gstreamer({BUNDLE_VARIABLE: str(moved)}).bundle == str(moved)
