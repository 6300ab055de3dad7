"""PyGObject for a Python that the distribution has none for: built from PyPI's source against its own headers."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

from framefleet.decode.deepstream.debian import Apt
from framefleet.errors import ConfigError, MissingLibrary

_RELEASE = "pygobject==3.50.2"
"""The last that is content with girepository 1.0, which Debian 12 and Ubuntu 24.04 have."""
_HEADERS = (
    "libgirepository1.0-dev", "libglib2.0-dev", "libffi-dev", "libpcre2-dev", "zlib1g-dev", "libmount-dev",
    "libblkid-dev", "libselinux1-dev", "libsepol-dev", "libffi8",
)  # fmt: skip
_TOOLS = ("meson-python", "meson", "ninja", "pkgconf")
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Python:
    """The Python a bundle is for."""

    version: str
    """`3.12`"""
    suffix: str
    """Of its extension modules: `.cpython-312-x86_64-linux-gnu.so`"""
    executable: str
    """Empty where it is not on this machine."""

    @classmethod
    def of(cls, named: str = "") -> Python:
        """This Python, or the one of a version (`3.12`). Raises ConfigError for what is no version."""
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if named in ("", own):
            return cls(own, str(sysconfig.get_config_var("EXT_SUFFIX")), sys.executable)
        major, _, minor = named.partition(".")
        if major != "3" or not minor.isdigit():
            raise ConfigError("no version of Python", given=repr(named), allowed="3.11, 3.12, 3.13")
        suffix = f".cpython-3{minor}-{platform.machine()}-linux-gnu.so"
        return cls(named, suffix, _real_path(shutil.which(f"python{named}")))


def build_pygobject(apt: Apt, root: Path, to: Path, python: Python) -> dict[str, str]:
    """Build `gi` into the folder `to`; the packages whose headers were used.

    Raises MissingLibrary without that Python, a C compiler, or when the build fails, with its last line.
    """
    lacking = [name for name, found in (("cc", shutil.which("cc")), (f"python{python.version}", python.executable))
               if not found]  # fmt: skip
    if lacking:
        raise MissingLibrary(
            f"the distribution has no PyGObject for Python {python.version}, and building one takes a compiler and it",
            given=f"no {' and no '.join(lacking)} here",
            remedy="install them, or build the bundle for the distribution's own Python",
        )
    packages = apt.fetch(_HEADERS, root)
    scratch = root.parent / "pygobject"
    tools = scratch / "tools"
    _run(python, "-m", "pip", "install", "--quiet", "--target", str(tools), *_TOOLS)
    _run(
        python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary=:all:",
        "-Csetup-args=-Dpycairo=disabled", "-Csetup-args=-Dtests=false", "-w", str(scratch / "wheel"), _RELEASE,
        environment=_build_environment(root, tools, _headers_of(python)),
    )  # fmt: skip
    (wheel,) = (scratch / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to, [name for name in archive.namelist() if name.startswith("gi/")])
    return packages


def _real_path(command: str | None) -> str:
    """What a command of that name really is: it may be a script that chooses one."""
    try:
        return _say(command, "import sys; print(sys.executable)") if command else ""
    except (OSError, subprocess.SubprocessError):
        return ""


def _headers_of(python: Python) -> str:
    return _say(python.executable, "import sysconfig; print(sysconfig.get_path('include'))")


def _say(executable: str, code: str) -> str:
    done = subprocess.run([executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


def _build_environment(root: Path, tools: Path, python_headers: str) -> dict[str, str]:
    """Headers and libraries from `root`, build tools from `tools`. Python's own headers lie outside that root."""
    libraries = root / "usr/lib" / f"{platform.machine()}-linux-gnu"
    return {
        "PATH": os.pathsep.join([str(tools / "bin"), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(tools),
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        "PKG_CONFIG_LIBDIR": os.pathsep.join([str(libraries / "pkgconfig"), str(root / "usr/share/pkgconfig")]),
        "LIBRARY_PATH": str(libraries),
        "C_INCLUDE_PATH": python_headers,
    }


def _run(python: Python, *arguments: str, environment: dict[str, str] | None = None) -> None:
    try:
        subprocess.run(  # noqa: S603 - the interpreter that was asked for
            [python.executable, *arguments], env={**os.environ, **(environment or {})},
            check=True, capture_output=True, text=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        words = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise MissingLibrary(
            f"PyGObject could not be built for Python {python.version}",
            given=next((line.strip() for line in reversed(words) if "ERROR" in line), words[-1] if words else ""),
            remedy="build the bundle for the distribution's own Python",
        ) from error
