"""Debian packages without root: lists and archives of our own, unpacked into a folder, nothing installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from framefleet.errors import ConfigError, SourceUnavailable

_TIMEOUT_S = 600
_ODD_NAMES = {
    "libz.so.1": "zlib1g",
    "libjpeg.so.62": "libjpeg62-turbo",
    "libjpeg.so.8": "libjpeg-turbo8",
    "libbz2.so.1.0": "libbz2-1.0",
    **dict.fromkeys(("libgio-2.0.so.0", "libgobject-2.0.so.0", "libgmodule-2.0.so.0"), "libglib2.0-0"),
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgstreamer-1.0.so.0": "libgstreamer1.0-0",
}
"""Libraries whose package is not named for their soname."""


def package_candidates(soname: str) -> tuple[str, ...]:
    """Names of the package that brings a library, likeliest first (Debian policy 8.1, then the 64-bit time change)."""
    stem, _, version = soname.partition(".so.")
    named = _ODD_NAMES.get(soname) or f"{stem}{'-' if stem[-1:].isdigit() else ''}{version}".lower().replace("_", "-")
    return (named, f"{named}t64")


class Apt:
    """apt-get with its own lists, in `folder`. The distribution's sources and keys are used as they are.

    Raises ConfigError where there is no apt-get or dpkg-deb.
    """

    def __init__(self, folder: Path) -> None:
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise ConfigError(
                "a GStreamer bundle is made of Debian's or Ubuntu's packages",
                given="a system without apt-get",
                remedy="build it on Debian or Ubuntu (a container will do) and copy the folder",
            )
        self._archives = folder / "archives"
        for name in ("lists/partial", "cache/archives/partial", "archives"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._settings = [f"-oDir::State::Lists={folder / 'lists'}", f"-oDir::Cache={folder / 'cache'}"]
        self._settings += ["-oAPT::Sandbox::User=", "-oDir::Etc::SourceParts=/etc/apt/sources.list.d"]

    def update(self) -> None:
        """Fetch the lists. Raises SourceUnavailable."""
        self._run("apt-get", "-qq", "update")

    def first_known(self, names: Iterable[str]) -> str | None:
        """The first of `names` that there is a package of, or None."""
        return next((name for name in names if self._show(name)), None)

    def fetch(self, names: Sequence[str], root: Path) -> dict[str, str]:
        """Unpack packages under `root`; package -> version. Raises SourceUnavailable."""
        before = set(self._archives.iterdir())
        self._run("apt-get", "-qq", "download", *names, cwd=self._archives)
        fetched = {}
        for archive in sorted(set(self._archives.iterdir()) - before):
            self._run("dpkg-deb", "--extract", str(archive), str(root))
            name, version = self._run("dpkg-deb", "--show", str(archive)).split()
            fetched[name] = version
        return fetched

    def _show(self, name: str) -> bool:
        return bool(self._run("apt-cache", "--quiet=2", "policy", name).strip())

    def _run(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        settings = self._settings if tool.startswith("apt") else []
        try:
            done = subprocess.run(  # noqa: S603 - the system's own tools, named in full by PATH
                [tool, *settings, *arguments], cwd=cwd, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S
            )
        except subprocess.CalledProcessError as error:
            raise SourceUnavailable(
                f"{tool} failed", given=(error.stderr.strip().splitlines() or ["without a word"])[-1]
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceUnavailable(f"{tool} failed", given=str(error)) from error
        return done.stdout
