"""Cores, memory, shared memory, disk and GPUs."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from framefleet.doctor.finding import Finding, Level
from framefleet.units import GIB, MIB, format_bytes

_NEEDED_DISK_BYTES = 2 * GIB
_NEEDED_SHM_BYTES = 256 * MIB


def machine_findings() -> list[Finding]:
    """What the hardware offers."""
    return [_cores(), _memory(), *_places(), *_gpus()]


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


def _gpus() -> list[Finding]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        without = "none is needed to try things; for speed, --endpoint URL of a server that has one"
        return [Finding(area="gpu", name="NVIDIA GPU", level="info", found="none (no nvidia-smi)", remedy=without)]
    query = [tool, "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "look at nvidia-smi; the driver may need to be loaded anew"
        return [
            Finding(area="gpu", name="NVIDIA GPU", level="warning", found=f"nvidia-smi fails: {error}", remedy=remedy)
        ]
    cards = [line.split(", ", 1) for line in answer.stdout.strip().splitlines()]
    return [
        *(Finding(area="gpu", name=f"GPU {number}", level="ok", found=facts) for number, facts in cards),
        _nvdec_library(),
    ]


def _nvdec_library() -> Finding:
    try:
        ctypes.CDLL("libnvcuvid.so.1")
    except OSError:
        remedy = "in a container: NVIDIA_DRIVER_CAPABILITIES=all (it lacks `video`); else the driver's video package"
        return Finding(
            area="gpu", name="NVDEC library", level="warning", found="libnvcuvid.so.1 not found", remedy=remedy
        )
    return Finding(area="gpu", name="NVDEC library", level="ok", found="libnvcuvid.so.1")
