"""What a fleet would meet here: vLLM and its decoders, CPU cores for each GPU, the disk that models come to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from framefleet.config import resolve
from framefleet.doctor.finding import Finding, Level
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.host import Host, look_at_host
from framefleet.serve.run_folder import default_folder
from framefleet.units import GIB, format_bytes
from framefleet.vllm_plugin.compat import NEWEST_KNOWN, TABLE, parse_version

BACKENDS = (
    ((0, 23, 0), ("opencv", "pyav")),
    ((0, 25, 1), ("opencv", "pyav", "torchcodec", "pynvvideocodec")),
    ((0, 26, 0), ("opencv", "pyav", "torchcodec", "pynvvideocodec", "deepstream")),
    ((0, 33, 0), ("opencv", "torchcodec", "pynvvideocodec", "deepstream")),
)
"""vLLM's own video backends from a version on, read in its wheels."""
CORES_CPU, CORES_NVDEC = 48, 6
"""Cores that keep one H200 captioning 1080p clips with an 8B model (3.2 clips/s): 16 cores decode 2.7 to 4.5 clips/s,
beside which the API servers need some; with NVDEC decoding took 2 cores, and they 4."""
_MODEL_BYTES = 20 * GIB


def serving_findings(host: Host | None = None, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """For the fleet settings of the environment (FRAMEFLEET_CONFIG, FRAMEFLEET_FLEET_...)."""
    settings = resolve(FleetSettings, "fleet", environ=environ).value
    host = host or look_at_host(settings.python)
    return [vllm_finding(host.engine.vllm), *cores_findings(host), models_finding(environ), folder_finding()]


def vllm_finding(version: str) -> Finding:
    """Which of vLLM's decoders it has, and whether ours can be in it."""
    if not version:
        remedy = "pip install vllm, or FRAMEFLEET_FLEET_PYTHON = the interpreter that has it"
        return _finding("vLLM", "info", "not in the engine's environment; replicas run the embedded engine", remedy)
    parsed = parse_version(version)
    own = next((names for since, names in reversed(BACKENDS) if parsed >= since), ())
    said = f"{version}; its own decoders: {', '.join(own)}" if own else version
    oldest = ".".join(map(str, TABLE[0].since))
    newest = ".".join(map(str, NEWEST_KNOWN))
    if parsed == (0, 0, 0) or parsed[:2] > NEWEST_KNOWN:
        return _finding("vLLM", "warning", f"{said}; our decoder was read against {newest} at most", "try it first")
    if parsed < TABLE[0].since:
        return _finding("vLLM", "warning", f"{said}; too old for our decoder", f"vLLM {oldest} to {newest}")
    return _finding("vLLM", "ok", f"{said}; and ours")


def cores_findings(host: Host) -> list[Finding]:
    """Whether the CPU keeps up with the GPUs, by each way of decoding."""
    if not host.gpus:
        return []
    each = len(host.cores) / len(host.gpus)
    said = f"{each:.1f} for each of {len(host.gpus)} GPUs"
    if each < CORES_NVDEC:
        remedy = "fewer replicas (fleet.replicas), api_server_count = 2, or more cores"
        return [_finding("CPU cores", "warning", f"{said}: few even when NVDEC decodes ({CORES_NVDEC})", remedy)]
    if each < CORES_CPU:
        remedy = 'decode on NVDEC (fleet.decoder = "framefleet"); framefleet diagnose measures it'
        return [_finding("CPU cores", "info", f"{said}: enough with NVDEC, not to decode 1080p on the CPU", remedy)]
    return [_finding("CPU cores", "ok", f"{said}: enough to decode on the CPU, too")]


def models_finding(environ: Mapping[str, str]) -> Finding:
    """Room where models are downloaded to."""
    home = environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return _room(
        "model cache", Path(environ.get("HF_HUB_CACHE") or home), _MODEL_BYTES, "free some space, or set HF_HOME"
    )


def folder_finding() -> Finding:
    """Room for a fleet's logs."""
    return _room("fleet folder", default_folder(), GIB // 4, "free some space, or set FRAMEFLEET_FOLDER")


def _room(name: str, place: Path, needed_bytes: int, remedy: str) -> Finding:
    there = next(folder for folder in (place, *place.absolute().parents) if folder.exists())
    free_bytes = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return _finding(name, "warning", f"{place} cannot be written", remedy)
    level: Level = "ok" if free_bytes >= needed_bytes else "warning"
    return _finding(name, level, f"{format_bytes(free_bytes)} free for {place}", remedy if level != "ok" else "")


def _finding(name: str, level: Level, found: str, remedy: str = "") -> Finding:
    return Finding(area="serving", name=name, level=level, found=found, remedy=remedy)
