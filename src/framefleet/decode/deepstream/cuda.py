"""What of CUDA DeepStream's libraries ask for by name, and where pip or a CUDA installation has put it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

from framefleet.errors import MissingLibrary

LIBRARIES = ("libcudart.so.13", "libnppc.so.13", "libnppig.so.13", "libnppidei.so.13")
_RUNTIME_AS_ASKED_FOR = "libcudart.so"
"""The wheel opens this name, which only a CUDA toolkit installs; without it every decode fails."""


def has_gpu() -> bool:
    """Whether the driver counts a GPU. Takes no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    number = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(number)) == 0 and number.value > 0


def link_libraries(scratch: Path) -> None:
    """Links to the CUDA libraries in `scratch`, under the names they are asked for by.

    Raises MissingLibrary for what is nowhere.
    """
    for name in LIBRARIES:
        found = find_library(name)
        (scratch / name).symlink_to(found)
        if name.startswith(_RUNTIME_AS_ASKED_FOR):
            (scratch / _RUNTIME_AS_ASKED_FOR).symlink_to(found)


def find_library(name: str) -> Path:
    """A CUDA library by its soname: pip's, a toolkit's or the system's. Raises MissingLibrary."""
    for folder in _folders():
        if (folder / name).exists():
            return folder / name
    raise MissingLibrary(
        "a CUDA 13 library that DeepStream needs is not there",
        given=name,
        remedy="pip install nvidia-cuda-runtime nvidia-npp (or a CUDA 13 toolkit)",
    )


def _folders() -> Iterator[Path]:
    for place in sys.path:
        yield from sorted(Path(place or ".").glob("nvidia/*/lib"))
    for pattern in ("cuda*/lib64", "cuda*/targets/*/lib"):
        yield from sorted(Path("/usr/local").glob(pattern), reverse=True)
    yield from sorted(Path("/usr/lib").glob("*-linux-gnu"))
    yield Path("/usr/lib64")
