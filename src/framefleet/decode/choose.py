"""Which backend: who takes the clip, why each other one refuses, and whether what came back can be believed. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from framefleet.config import PREFIX
from framefleet.decode.backends import AUTO_ORDER, BACKENDS
from framefleet.decode.decoder import DecodeBackend, DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan
from framefleet.errors import ConfigError
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import ScanLimits
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.units import NS_PER_S

Scan = Callable[[VideoSource, ScanLimits], ScannedClip]
BACKEND_VARIABLE = PREFIX + "BACKEND"
AUTO = "auto"
NVDEC = "pynvvideocodec"
"""The backend on NVDEC that `auto` takes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The backends to try, in order, and why each other candidate was passed over."""

    order: tuple[str, ...]
    refusals: Mapping[str, str]


def candidates(options: DecodeOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names to consider: the backend named in the options, else in `FRAMEFLEET_BACKEND`, else those of `auto`."""
    name = options.backend
    if name == AUTO:
        name = environ.get(BACKEND_VARIABLE, "") or AUTO
    if name == AUTO:
        return AUTO_ORDER
    return (name,)


def candidates_here(options: DecodeOptions, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """As `candidates`, with NVDEC before the CPU where `auto` may choose and this machine has it.

    For a process that may own a GPU; decode workers, of which there are many, keep to `candidates`.
    """
    names = candidates(options, environ)
    return (NVDEC, *names) if names == AUTO_ORDER and nvdec_is_here() else names


def nvdec_is_here() -> bool:
    """Whether the NVIDIA driver's device and PyNvVideoCodec are present. Loads neither."""
    return Path("/dev/nvidiactl").exists() and find_spec("PyNvVideoCodec") is not None


def load_backends(names: Sequence[str]) -> dict[str, DecodeBackend]:
    """The backends by name, in this order. Decode libraries are imported by their first `decode`, not here.

    Raises ConfigError for an unknown name.
    """
    return {name: BACKENDS.load(name)() for name in names}


def scanner(options: DecodeOptions, environ: Mapping[str, str] = os.environ) -> Scan:
    """What scans clips for these options: `media.scan`, unless the one backend named brings a `scan` of its own."""
    names = candidates(options, environ)
    own: Scan | None = getattr(load_backends(names)[names[0]], "scan", None) if len(names) == 1 else None
    return own or scan


def choose(
    info: StreamInfo, index: FrameIndex, options: DecodeOptions, backends: Mapping[str, DecodeBackend]
) -> Choice:
    """Ask each of `backends` in turn. Nothing is opened."""
    order, refusals = [], {}
    for name, backend in backends.items():
        if reason := _refuse_device(backend, options.device) or backend.refuse(info, index):
            refusals[name] = reason
        else:
            order.append(name)
    return Choice(tuple(order), refusals)


def _refuse_device(backend: DecodeBackend, device: str) -> str | None:
    """A backend that can leave frames on a GPU says so in a `devices` attribute; without one it is `cpu` alone."""
    if device not in ("cpu", "cuda"):
        raise ConfigError("no such device", given=repr(device), allowed="cpu, cuda")
    devices: tuple[str, ...] = getattr(backend, "devices", ("cpu",))
    return None if device in devices else f"cannot leave frames on {device}"


def sees_damage(backend: DecodeBackend) -> bool:
    """Whether it knows each damaged picture (it sets `sees_damage`). What such a backend left out, none of the others
    may fill in: they would give the damaged picture.
    """
    return bool(getattr(backend, "sees_damage", False))


def verify(frames: DecodedFrames, plan: DecodePlan, index: FrameIndex) -> str | None:
    """Why these frames are not simply what was asked for; None when they are: first a lie, then a shortfall."""
    return disbelieve(frames, plan, index) or shortfall(frames)


def disbelieve(frames: DecodedFrames, plan: DecodePlan, index: FrameIndex) -> str | None:
    """Why the result contradicts itself, the plan or the index. Such frames must not be used."""
    shape, wanted = tuple(frames.data.shape), plan.targets.rows
    if shape[1:] != (plan.height, plan.width, 3) or not str(frames.data.dtype).endswith("uint8"):
        return f"gave {frames.data.dtype} {shape}, not uint8 [T, {plan.height}, {plan.width}, 3]"
    if len(frames) + frames.stats.num_missing != len(wanted):
        return f"gave {len(frames)} of {len(wanted)} frames and says {frames.stats.num_missing} are missing"
    if not len(frames):
        return "gave no frame"
    if np.any(np.diff(frames.indices) < 0) or not _is_part_of(frames, wanted):
        return f"gave rows {_few(frames.indices)} where {_few(wanted)} were asked for"
    if np.any(np.rint(frames.pts_s * NS_PER_S).astype(np.int64) != index.pts_ns[frames.indices]):
        return "gave times that are not those of the clip's index"
    return None


def shortfall(frames: DecodedFrames) -> str | None:
    """What the backend itself says is lacking; honest, and kept when no other backend does better."""
    stats = frames.stats
    if stats.num_missing:
        return f"{stats.num_missing} of {stats.num_missing + len(frames)} frames missing"
    if stats.recovered_rows:
        return f"{len(stats.recovered_rows)} frames replaced by a neighbour"
    if stats.num_corrupt:
        return f"{stats.num_corrupt} pictures flagged as damaged"
    return None


def _is_part_of(frames: DecodedFrames, wanted: np.ndarray) -> bool:
    """Whether no row came that was not asked for, nor more often; stand-ins for `recovered_rows` may be any row."""
    rows, counts = np.unique(frames.indices, return_counts=True)
    asked = np.searchsorted(wanted, rows, side="right") - np.searchsorted(wanted, rows, side="left")
    return bool(np.maximum(counts - asked, 0).sum() <= len(frames.stats.recovered_rows))


def _few(rows: np.ndarray) -> str:
    shown = ", ".join(str(row) for row in rows[:6])
    return f"[{shown}{', ...' if len(rows) > 6 else ''}]"
