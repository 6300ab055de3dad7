"""GPUs: which there are, whether NVDEC can be reached, what it takes, and who else holds them (MPS, compute mode)."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framefleet.decode.nvdec.caps import CODECS, query_caps
from framefleet.doctor.finding import Finding, Level

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_VIDEO_REMEDY = f"in a container: {_CAPABILITIES}=all (it must hold `video`); else the driver's own video package"
_PROFILES = ((8, "4:2:0"), (10, "4:2:0"), (8, "4:4:4"), (10, "4:4:4"))
DEFAULT_PIPES = Path("/tmp/nvidia-mps")  # noqa: S108 - CUDA's own default


@dataclass(frozen=True, slots=True)
class MpsProcess:
    """A daemon or server of CUDA MPS."""

    pid: int
    uid: int
    name: str


def gpu_findings(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """All about GPUs; one line where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        without = "none is needed to try things; for speed, --endpoint URL of a server that has one"
        return [_finding("NVIDIA GPU", "info", "none (no nvidia-smi)", without)]
    rows = _ask(tool)
    if isinstance(rows, str):
        return [_finding("NVIDIA GPU", "warning", f"nvidia-smi fails: {rows}", "look at nvidia-smi; reload the driver")]
    cards = [_finding(f"GPU {row[0]}", "ok", ", ".join(row[1:4])) for row in rows]
    hidden = _hidden(rows, environ.get("CUDA_VISIBLE_DEVICES"))
    video = video_finding(environ)
    caps = nvdec_findings([int(row[0]) for row in rows]) if video.level == "ok" else []
    return [*cards, *hidden, video, *caps, *mode_findings(rows), mps_finding(mps_processes(), os.getuid(), environ)]


def _ask(tool: str) -> list[list[str]] | str:
    """Rows of index, name, memory, driver, compute mode; or what went wrong."""
    query = [tool, "--query-gpu=index,name,memory.total,driver_version,compute_mode", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return [[*line.split(", "), "", "", ""][:5] for line in answer.stdout.strip().splitlines()]


def _hidden(rows: list[list[str]], visible: str | None) -> list[Finding]:
    if visible is None or (visible.count(",") + 1 >= len(rows) > 0 and visible):
        return []
    found = f"CUDA_VISIBLE_DEVICES={visible!r} shows {visible.count(',') + 1 if visible else 0} of {len(rows)} GPUs"
    return [_finding("visible GPUs", "info", found, "unset it to use all of them")]


def video_finding(environ: Mapping[str, str], load: Callable[[str], Any] = ctypes.CDLL) -> Finding:
    """Whether NVDEC's library is here; in containers it is left out unless `video` is asked for."""
    capabilities = environ.get(_CAPABILITIES, "")
    lacks = bool(capabilities) and not {"all", "video"} & set(capabilities.replace(" ", "").split(","))
    said = f"; {_CAPABILITIES}={capabilities} lacks `video`" if lacks else ""
    try:
        load("libnvcuvid.so.1")
    except OSError:
        return _finding("NVDEC library", "warning", f"libnvcuvid.so.1 not found{said}", _VIDEO_REMEDY)
    return _finding("NVDEC library", "ok", "libnvcuvid.so.1")


def nvdec_findings(gpus: list[int]) -> list[Finding]:
    """Engines of each GPU, and codec x profile as its driver says. Needs PyNvVideoCodec."""
    try:
        import PyNvVideoCodec as nvc  # noqa: N813
    except ImportError:
        return [_finding("NVDEC", "info", "PyNvVideoCodec is not installed", "pip install 'framefleet[nvdec]'")]
    return [caps_finding(gpu, nvc) for gpu in gpus]


def caps_finding(gpu: int, nvc: Any) -> Finding:
    """Of one GPU."""
    engines = 0
    able: list[str] = []
    unable: list[str] = []
    for codec in CODECS:
        try:
            answers = {profile: query_caps(nvc, gpu, codec, profile[1], profile[0]) for profile in _PROFILES}
        except Exception as error:  # noqa: BLE001 - the library raises what it likes
            return _finding(f"NVDEC of GPU {gpu}", "warning", f"cannot be asked: {error}", _VIDEO_REMEDY)
        held = [f"{bits}-bit {chroma}" for (bits, chroma), caps in answers.items() if caps.is_supported]
        engines = max(engines, *(caps.num_engines for caps in answers.values()))
        (able if held else unable).append(f"{codec} ({', '.join(held)})" if held else codec)
    if not able:
        return _finding(f"NVDEC of GPU {gpu}", "warning", "takes no codec", "decode on the CPU, or another GPU")
    missing = f"; not {', '.join(unable)}, which the CPU decodes" if unable else ""
    return _finding(f"NVDEC of GPU {gpu}", "ok", f"{engines} engines: {', '.join(able)}{missing}")


def mode_findings(rows: list[list[str]]) -> list[Finding]:
    """A GPU that takes one process only: a replica and a decode service are two."""
    found = []
    for row in rows:
        if row[4] == "Prohibited":
            found.append(_finding(f"GPU {row[0]} mode", "error", row[4], f"nvidia-smi -i {row[0]} -c DEFAULT (root)"))
        elif row[4].startswith("Exclusive"):
            remedy = f'fleet.mps = "on", or nvidia-smi -i {row[0]} -c DEFAULT (root)'
            found.append(_finding(f"GPU {row[0]} mode", "warning", f"{row[4]}: one process only, or MPS", remedy))
    return found


def mps_processes(proc: Path = Path("/proc")) -> list[MpsProcess]:
    """Those that run here, of any user."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name = (entry / "comm").read_text().strip()
            if name.startswith("nvidia-cuda-mps"):
                found.append(MpsProcess(int(entry.name), entry.stat().st_uid, name))
        except OSError:  # gone meanwhile
            continue
    return found


def mps_finding(processes: list[MpsProcess], uid: int, environ: Mapping[str, str]) -> Finding:
    """Who runs MPS. A server takes clients of one user only; those of others wait, or are told that the GPU is busy."""
    others = [one for one in processes if one.uid != uid]
    if others:
        found = ", ".join(f"{one.name} {one.pid} of user {one.uid}" for one in others)
        remedy = "have its owner end it (echo quit | nvidia-cuda-mps-control), or use GPUs that it does not hold"
        return _finding("MPS", "warning", f"another user's: {found}", remedy)
    if processes:
        found = ", ".join(f"{one.name} {one.pid}" for one in processes)
        return _finding("MPS", "info", f"yours, not started by a fleet: {found}", "a fleet starts its own, beside it")
    pipes = environ.get("CUDA_MPS_PIPE_DIRECTORY")
    if pipes and not Path(pipes, "control").exists():
        remedy = "unset it; CUDA looks for a daemon there"
        return _finding("MPS", "warning", f"CUDA_MPS_PIPE_DIRECTORY={pipes}, where no daemon is", remedy)
    can = shutil.which("nvidia-cuda-mps-control") is not None
    return _finding("MPS", "ok" if can else "info", "none runs; a fleet can start it" if can else "not installed")


def _finding(name: str, level: Level, found: str, remedy: str = "") -> Finding:
    return Finding(area="gpu", name=name, level=level, found=found, remedy=remedy)
