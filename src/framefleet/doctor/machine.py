"""Cores, memory, shared memory and disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from framefleet.doctor.finding import Finding, Level
from framefleet.units import GIB, MIB, format_bytes

_NEEDED_DISK_BYTES = 2 * GIB
_NEEDED_SHM_BYTES = 256 * MIB


def machine_findings() -> list[Finding]:
    """What the hardware offers."""
    return [_cores(), _memory(), *_places()]


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding(area="machine", name="cores", level="ok", found=f"{usable} usable of {os.cpu_count()}")


def _memory() -> Finding:
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    low = total_bytes < 4 * GIB
    return Finding(
        area="machine",
        name="memory",
        level="warning" if low else "ok",
        found=format_bytes(total_bytes),
        remedy="fewer decode workers, smaller max_pixels" if low else "",
    )


def _places() -> list[Finding]:
    places = [
        ("disk here", Path.cwd(), _NEEDED_DISK_BYTES, "free some space, or --output on another disk"),
        ("temporary folder", Path(tempfile.gettempdir()), _NEEDED_SHM_BYTES, "free some space, or set TMPDIR"),
    ]
    shared = Path("/dev/shm")  # noqa: S108 (where Linux keeps shared memory)
    if shared.is_dir():
        remedy = "a larger /dev/shm (Docker: --shm-size=2g or --ipc=host); frames are handed over through it"
        places.append(("shared memory", shared, _NEEDED_SHM_BYTES, remedy))
    return [_place(*place) for place in places]


def _place(name: str, path: Path, needed_bytes: int, remedy: str) -> Finding:
    free_bytes = shutil.disk_usage(path).free
    if not os.access(path, os.W_OK):
        return Finding(area="machine", name=name, level="error", found=f"{path} cannot be written", remedy=remedy)
    level: Level = "ok" if free_bytes >= needed_bytes else "warning"
    found = f"{format_bytes(free_bytes)} free in {path}"
    return Finding(area="machine", name=name, level=level, found=found, remedy="" if level == "ok" else remedy)
