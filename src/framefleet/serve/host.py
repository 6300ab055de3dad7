"""What this host offers a fleet: GPUs, cores, and the engine's environment. Looked at before planning."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MPS_CONTROL = "nvidia-cuda-mps-control"
_LOOK_S = 60
_PROBE = """
import json, importlib.metadata as m, importlib.util
def version(name):
    if importlib.util.find_spec(name) is None: return ""
    try: return m.version(name)
    except m.PackageNotFoundError: return "unknown"
print(json.dumps({"vllm": version("vllm"), "framefleet": version("framefleet")}))
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One that may be used."""

    device: str
    """As CUDA_VISIBLE_DEVICES names it: an index in PCI order, or a UUID."""
    name: str = ""
    numa_cores: tuple[int, ...] = ()
    """CPU cores near it; empty: unknown."""


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """What is installed where the engine will run; empty: not."""

    vllm: str = ""
    framefleet: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """The facts that a plan is made from."""

    gpus: tuple[Gpu, ...] = ()
    cores: tuple[int, ...] = (0,)
    engine: EngineEnvironment = EngineEnvironment()
    has_mps: bool = False
    """MPS can be started."""
    is_in_mps: bool = False
    """This process's environment names an MPS daemon, which somebody else runs."""


def look_at_host(python: str = "", environ: Mapping[str, str] = os.environ) -> Host:
    """The facts here and now; `python` is the engine's interpreter (empty: this one)."""
    return Host(
        gpus=visible_gpus(environ),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        engine=_environment_of(python or sys.executable),
        has_mps=shutil.which(MPS_CONTROL) is not None,
        is_in_mps="CUDA_MPS_PIPE_DIRECTORY" in environ,
    )


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """The GPUs of nvidia-smi that CUDA_VISIBLE_DEVICES lets through, in its order. None without a working driver."""
    return choose_gpus(_rows_of_nvidia_smi(), environ.get("CUDA_VISIBLE_DEVICES"))


def choose_gpus(rows: list[list[str]], visible: str | None) -> tuple[Gpu, ...]:
    """`rows`: index, UUID, name, PCI bus id. `visible` may name indices, UUIDs and beginnings of those. Pure but for
    the look at which cores are near."""
    if visible is None:
        return tuple(_gpu(row[0], row) for row in rows)
    chosen = []
    for device in (part.strip() for part in visible.split(",")):
        row = next((row for row in rows if device and (device == row[0] or row[1].startswith(device))), None)
        if row is None and not device.startswith("MIG-"):
            break  # CUDA, too, sees nothing from the first wrong name on
        chosen.append(_gpu(device, row))
    return tuple(chosen)


def parse_cores(text: str) -> tuple[int, ...]:
    """`0-3,8` to (0, 1, 2, 3, 8). Pure."""
    cores: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def _rows_of_nvidia_smi() -> list[list[str]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index,uuid,name,pci.bus_id", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_LOOK_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [row for row in rows if len(row) == 4]


def _gpu(device: str, row: list[str] | None) -> Gpu:
    return Gpu(device, row[2], _numa_cores(row[3])) if row else Gpu(device)


def _numa_cores(bus_id: str) -> tuple[int, ...]:
    """nvidia-smi says 00000000:1B:00.0 where the kernel says 0000:1b:00.0."""
    place = Path("/sys/bus/pci/devices") / bus_id.lower()[-12:] / "local_cpulist"
    try:
        return parse_cores(place.read_text())
    except OSError:
        return ()


def _environment_of(python: str) -> EngineEnvironment:
    try:
        answer = subprocess.run(  # noqa: S603 - the interpreter that the settings name
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=_LOOK_S, check=True
        )
        return EngineEnvironment(**json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return EngineEnvironment()
