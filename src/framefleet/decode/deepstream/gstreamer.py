"""Where GStreamer comes from: a bundle of ours, the Python environment (conda's too), or the system; else what to do.

PyPI has GStreamer for Windows and macOS only, so on Linux pip alone cannot bring it.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from framefleet.errors import ConfigError, MissingLibrary

BUNDLE_VARIABLE = "FRAMEFLEET_GST_BUNDLE"
_DIST_PACKAGES = Path("/usr/lib/python3/dist-packages")
_ROOT = Path("/")

_PIECES = {
    "gir1.2-gstreamer-1.0": "girepository-1.0/Gst-1.0.typelib",
    "gstreamer1.0-plugins-base": "gstreamer-1.0/libgstapp.so",
    "gstreamer1.0-plugins-good": "gstreamer-1.0/libgstmatroska.so",
    "gstreamer1.0-plugins-bad": "gstreamer-1.0/libgstvideoparsersbad.so",
    "libv4lconvert0": "libv4lconvert.so.0",
}
"""Debian's package -> a file of it, under the folder of libraries."""

_INSTALL = {
    "fedora": "dnf install python3-gobject gstreamer1-plugins-base gstreamer1-plugins-good gstreamer1-plugins-bad-free"
    " libv4l",
    "arch": "pacman -S python-gobject gst-plugins-base gst-plugins-good gst-plugins-bad v4l-utils",
    "suse": "zypper install python3-gobject typelib-1_0-Gst-1_0 gstreamer-plugins-base gstreamer-plugins-good"
    " gstreamer-plugins-bad libv4lconvert0",
    "conda": "conda install -c conda-forge pygobject gstreamer gst-plugins-base gst-plugins-good gst-plugins-bad"
    " libv4l",
}
"""Tried on none of these; Debian's are."""


@dataclass(frozen=True, slots=True)
class GStreamer:
    """One that was found."""

    kind: Literal["bundle", "conda", "python", "system"]
    place: str
    """Folder of the bundle, prefix of the environment, or folder of the system's Python packages."""

    @property
    def bundle(self) -> str:
        """The bundle's folder, or empty."""
        return self.place if self.kind == "bundle" else ""

    @property
    def python_path(self) -> tuple[str, ...]:
        """Where PyGObject is, when it is not on this Python's path."""
        return (self.place,) if self.kind == "system" else ()


def find_gstreamer(environ: Mapping[str, str] = os.environ, root: Path = _ROOT) -> GStreamer:
    """The first of: the bundle named in `FRAMEFLEET_GST_BUNDLE`, this Python's own `gi`, the system's.

    Raises ConfigError for a bundle that is none or is for another Python, MissingLibrary naming what to install.
    """
    if named := environ.get(BUNDLE_VARIABLE):
        return _checked_bundle(Path(named))
    lacking = missing_packages(root)
    if (Path(sys.prefix) / "conda-meta").is_dir():
        if find_spec("gi"):
            return GStreamer("conda", sys.prefix)
    elif not lacking:
        return GStreamer("python", sys.prefix) if find_spec("gi") else GStreamer("system", str(_dist_packages(root)))
    raise MissingLibrary(
        "GStreamer with Python bindings is not installed",
        given=f"without {', '.join(lacking)}" if is_debian(root) else "",
        remedy=how_to_install(root),
    )


def missing_packages(root: Path = _ROOT) -> list[str]:
    """Debian's names of the packages that are not there, PyGObject for this Python included."""
    libraries = root / "usr/lib" / f"{platform.machine()}-linux-gnu"
    folders = (libraries, root / "usr/lib64", root / "usr/lib", root / "lib" / libraries.name)
    lacking = [name for name, file in _PIECES.items() if not any((folder / file).exists() for folder in folders)]
    has_gi = find_spec("gi") or _is_for_this_python(_dist_packages(root))
    names = lacking if has_gi else ["python3-gi", *lacking]
    return [package_name(name, root) for name in names]


def how_to_install(root: Path = _ROOT) -> str:
    """The command for the distribution at hand, and the way for those who may not install."""
    own = f"framefleet deepstream bundle, then {BUNDLE_VARIABLE}=DIR"
    if (Path(sys.prefix) / "conda-meta").is_dir():
        return f"{_INSTALL['conda']}; or {own}"
    if not is_debian(root):
        family = next((name for name in _INSTALL if name in _families(root)), None)
        return f"{_INSTALL[family]}; or {own}" if family else own
    lacking = missing_packages(root)
    if "python3-gi" in lacking and _dist_packages(root).joinpath("gi").is_dir():  # another Python's
        return f"{own} (the system's PyGObject is not for Python {sys.version_info[0]}.{sys.version_info[1]})"
    return f"apt install --no-install-recommends {shlex.join(lacking)}; or {own}"


def package_name(name: str, root: Path = _ROOT) -> str:
    """Debian's name for a library as this release has it: since Debian 13 and Ubuntu 24.04 some end in `t64`."""
    facts = os_release(root)
    first = {"debian": 13.0, "ubuntu": 24.04}.get(facts.get("ID", ""), float("inf"))
    try:
        is_new = float(facts.get("VERSION_ID", "0")) >= first
    except ValueError:
        is_new = False
    return f"{name}t64" if is_new and name == "libv4lconvert0" else name


def is_debian(root: Path = _ROOT) -> bool:
    """Debian or what is made of it."""
    return bool({"debian", "ubuntu"} & set(_families(root)))


def os_release(root: Path = _ROOT) -> dict[str, str]:
    """What the distribution says of itself; empty where it says nothing."""
    try:
        lines = (root / "etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name: value.strip("\"'") for name, _, value in pairs}


def _families(root: Path) -> list[str]:
    facts = os_release(root)
    return [facts.get("ID", ""), *facts.get("ID_LIKE", "").split()]


def _dist_packages(root: Path) -> Path:
    return root / _DIST_PACKAGES.relative_to("/")


def _is_for_this_python(folder: Path) -> bool:
    return (folder / "gi" / f"_gi{sysconfig.get_config_var('EXT_SUFFIX')}").exists()


def _checked_bundle(folder: Path) -> GStreamer:
    if not (folder / "lib/libgstreamer-1.0.so.0").exists():
        raise ConfigError(
            f"{BUNDLE_VARIABLE} names no GStreamer bundle",
            given=repr(str(folder)),
            remedy="framefleet deepstream bundle",
        )
    if not _is_for_this_python(folder / "py"):
        raise ConfigError(
            "the GStreamer bundle is for another Python",
            given=repr(str(folder)),
            allowed=f"one with py/gi/_gi{sysconfig.get_config_var('EXT_SUFFIX')}",
            remedy="framefleet deepstream bundle, run by this Python",
        )
    return GStreamer("bundle", str(folder))
