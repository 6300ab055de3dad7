"""From settings and a host to the exact command of every process. Pure: `framefleet serve --plan` prints it.

Of each replica only the port is open until it starts ({port}): a port that was free a moment ago may be taken now.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefleet.config import PREFIX
from framefleet.engine.embedded.checkpoint import BUNDLED, bundled_folder
from framefleet.errors import ConfigError
from framefleet.serve.fleet_settings import FleetSettings, VllmSettings
from framefleet.serve.host import MPS_CONTROL, Gpu, Host

PORT = "{port}"
ENGINE_SERVER = "framefleet.serve.openai_app"
DECODE_SERVICE = "framefleet.decode.service"
Engine = Literal["vllm", "embedded"]
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """One process to start."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    """Over the environment of the fleet's own process."""
    cores: tuple[int, ...] = ()
    """Those it may run on; empty: all."""

    def at(self, port: int) -> ProcessPlan:
        """With its port."""
        return replace(self, command=tuple(str(port) if word == PORT else word for word in self.command))

    def __str__(self) -> str:
        """A line that a shell takes, but for secrets, which are not shown."""
        pinned = ["taskset", "-c", ",".join(map(str, self.cores))] if self.cores else []
        words = [f"{name}={'***' if _SECRET.search(name) else value}" for name, value in sorted(self.environ.items())]
        return shlex.join([*(["env", *words] if words else []), *pinned, *self.command]).replace(f"'{PORT}'", PORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan(ProcessPlan):
    """A decode service."""

    socket: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsPlan(ProcessPlan):
    """An MPS daemon of the fleet's own."""

    pipe_folder: Path
    log_folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Everything that runs."""

    engine: Engine
    replicas: tuple[ProcessPlan, ...]
    decode_services: tuple[DecodePlan, ...] = ()
    mps: MpsPlan | None = None
    generation: int = 0
    """Of the decode services."""

    @property
    def services(self) -> tuple[MpsPlan | DecodePlan, ...]:
        """What replicas need, in the order in which it starts."""
        return (*([self.mps] if self.mps else []), *self.decode_services)

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """In the order in which they start."""
        return (*self.services, *self.replicas)


_Group = tuple[Gpu | None, tuple[int, ...]]
"""A GPU and its share of the cores."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one replica goes."""

    gpu: Gpu | None
    cores: tuple[int, ...]
    """Its share, whether or not it is kept to it."""
    num_on_gpu: int
    decode_socket: Path | None


def plan_fleet(settings: FleetSettings, host: Host, folder: Path, *, generation: int = 0) -> FleetPlan:
    """What to run; sockets and pipes go into `folder`, which need not be there yet. Decode services of two generations
    have different sockets, so that both can run while replicas go from one to the other.

    Raises ConfigError for an engine that is not there and for settings that exclude each other.
    """
    engine = choose_engine(settings, host)
    _check(settings, engine, host)
    num_replicas = count_replicas(settings, host)
    gpus = host.gpus[:num_replicas] or (None,) * num_replicas
    shares = share_cores([gpu.numa_cores if gpu else () for gpu in gpus], host.cores)
    mps = _mps(settings, engine, host, folder)
    mark = f"-{generation}" if generation else ""
    sockets = [folder / f"decode{i}{mark}.sock" for i in range(len(gpus))]
    decoders = _decoders(settings, engine, host, sockets, list(zip(gpus, shares, strict=True)))
    replicas = []
    for i in range(num_replicas):
        group = i % len(gpus)
        num_on_gpu = len(range(group, num_replicas, len(gpus)))
        socket = decoders[min(group, len(decoders) - 1)].socket if decoders else None
        place = _Place(gpus[group], shares[group], num_on_gpu, socket)
        replicas.append(_replica(f"r{i}", settings, engine, place))
    shared = mps.environ if mps else {}
    return FleetPlan(
        engine=engine,
        replicas=tuple(replace(plan, environ={**shared, **plan.environ}) for plan in replicas),
        decode_services=tuple(replace(plan, environ={**shared, **plan.environ}) for plan in decoders),
        mps=mps,
        generation=generation,
    )


def choose_engine(settings: FleetSettings, host: Host) -> Engine:
    """The engine that `auto` means here. Raises ConfigError for vLLM where there is none."""
    has_vllm = bool(settings.command or host.engine.vllm)
    if settings.engine == "auto":
        return "vllm" if has_vllm and settings.model != BUNDLED else "embedded"
    if settings.engine == "vllm" and not has_vllm:
        raise ConfigError(
            "there is no vLLM in the engine's environment",
            given=settings.python or sys.executable,
            remedy="fleet.python = an interpreter that has it, fleet.command, or --engine embedded",
        )
    return settings.engine


def count_replicas(settings: FleetSettings, host: Host) -> int:
    """In all."""
    if settings.replicas == "auto":
        return max(1, len(host.gpus)) * settings.replicas_per_gpu
    return settings.replicas


def share_cores(near: list[tuple[int, ...]], cores: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A share of `cores` for each group: an even part of those near it, or of all where none is near or too few.

    Groups that are near the same cores divide them; no core is given twice, unless there are fewer than groups.
    """
    pools = [tuple(core for core in cores if core in set(wanted)) or cores for wanted in near]
    if any(len(pool) < pools.count(pool) for pool in pools):
        pools = [cores] * len(near)
    if len(cores) < len(near):
        return pools
    shares = []
    for i, pool in enumerate(pools):
        parts, part = pools.count(pool), pools[:i].count(pool)
        shares.append(pool[len(pool) * part // parts : len(pool) * (part + 1) // parts])
    return shares


def _check(settings: FleetSettings, engine: Engine, host: Host) -> None:
    if settings.mps == "on" and not (host.has_mps and host.gpus):
        missing = f"no {MPS_CONTROL}" if host.gpus else "no GPU"
        raise ConfigError("MPS cannot be started here", given=missing, remedy='fleet.mps = "auto"')
    if engine == "embedded":
        if settings.command:
            raise ConfigError("fleet.command is for vLLM", given=shlex.join(settings.command), remedy="--engine vllm")
        return
    if settings.vllm.renderer_num_workers > 1 and settings.vllm.mm_processor_cache_gb:
        raise ConfigError(
            "vLLM's cache of prepared clips is not safe with several renderer workers",
            given=f"renderer_num_workers {settings.vllm.renderer_num_workers}",
            remedy="mm_processor_cache_gb = 0, or renderer_num_workers = 1",
        )
    if settings.decoder == "framefleet" and host.engine.vllm and not host.engine.framefleet:
        raise ConfigError(
            "vLLM's environment lacks framefleet, so our decoder cannot run in it",
            given=settings.python or sys.executable,
            remedy=f'{settings.python or "python"} -m pip install framefleet, or fleet.decoder = "vllm"',
        )


def _mps(settings: FleetSettings, engine: Engine, host: Host, folder: Path) -> MpsPlan | None:
    is_wanted = settings.mps == "on" or (settings.mps == "auto" and engine == "vllm" and not host.is_in_mps)
    if not (is_wanted and host.gpus and host.has_mps):
        return None
    pipes, logs = folder / "mps", folder / "mps-log"
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    command = ("env", "-u", "CUDA_VISIBLE_DEVICES", MPS_CONTROL, "-f")  # or it would number the GPUs anew for clients
    return MpsPlan(name="mps", command=command, environ=environ, pipe_folder=pipes, log_folder=logs)


def _decoders(
    settings: FleetSettings, engine: Engine, host: Host, sockets: list[Path], groups: list[_Group]
) -> list[DecodePlan]:
    """One per GPU; one for all where there is none."""
    can_use = engine == "vllm" and settings.decoder == "framefleet"
    if settings.decode_service == "on" and not can_use:
        raise ConfigError("only vLLM with our decoder uses a decode service", given=f"engine {engine}")
    if settings.decode_service == "off" or not can_use:
        return []
    plans = []
    for i, (gpu, cores) in enumerate(groups if groups[0][0] else [(None, host.cores)]):
        flags = ["--socket", str(sockets[i]), "--cpu-workers", str(len(cores)), *(["--gpu", gpu.device] if gpu else [])]
        plans.append(
            DecodePlan(
                name=f"decode{i}",
                command=(settings.python or sys.executable, "-m", DECODE_SERVICE, *flags, *settings.decode_args),
                environ={**_device(gpu), **settings.env},
                cores=cores if settings.cores == "split" else (),
                socket=sockets[i],
            )
        )
    return plans


def _replica(name: str, settings: FleetSettings, engine: Engine, place: _Place) -> ProcessPlan:
    words = _vllm_words(settings, place) if engine == "vllm" else _embedded_words(settings, place)
    ours = _plugin_environ(settings, place) if engine == "vllm" else {}
    return ProcessPlan(
        name=name,
        command=(*words, *settings.args),
        environ={**_device(place.gpu), **ours, **settings.env},
        cores=place.cores if settings.cores == "split" else (),
    )


def _vllm_words(settings: FleetSettings, place: _Place) -> list[str]:
    start = settings.command or (settings.python or sys.executable, "-m", "vllm.entrypoints.cli.main")
    words = [*start, "serve", model_place(settings.model), "--host", "127.0.0.1", "--port", PORT]
    words += ["--served-model-name", settings.served_model_name or settings.model]
    if settings.allowed_local_media_path:
        words += ["--allowed-local-media-path", settings.allowed_local_media_path]
    return words + vllm_flags(settings.vllm, place.num_on_gpu)


def vllm_flags(settings: VllmSettings, num_on_gpu: int) -> list[str]:
    """The recipe as flags. 0 and empty: not given, so vLLM's default holds; of the clip cache 0 means none."""
    flags = []
    for name, value in msgspec.to_builtins(settings).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags += [flag if value else flag.replace("--", "--no-", 1)]
        elif value or name == "mm_processor_cache_gb":
            if name == "gpu_memory_utilization":
                value = round(value / num_on_gpu, 4)  # noqa: PLW2901
            flags += [flag, _as_word(value)]
    return flags


def _as_word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value)


def _embedded_words(settings: FleetSettings, place: _Place) -> list[str]:
    share = max(1, len(place.cores) // place.num_on_gpu)
    flags = {
        "model": settings.model,
        "served-model-name": settings.served_model_name or settings.model,
        "port": PORT,
        "device": settings.embedded.device,
        "dtype": settings.embedded.dtype,
        "max-batch": settings.embedded.max_batch,
        "num-threads": settings.embedded.num_threads or share,
        "decode-workers": settings.embedded.decode_workers or share,
    }
    if settings.allowed_local_media_path:
        flags["allowed-local-media-path"] = settings.allowed_local_media_path
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [settings.python or sys.executable, "-m", ENGINE_SERVER, *words]


def _device(gpu: Gpu | None) -> dict[str, str]:
    """One thread for each of numpy's and torch's loops: many server processes share the cores beside a GPU."""
    if gpu is None:
        return {}
    return {"CUDA_VISIBLE_DEVICES": gpu.device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "1"}


def _plugin_environ(settings: FleetSettings, place: _Place) -> dict[str, str]:
    if settings.decoder == "vllm":
        return {}
    environ = {PREFIX + "TAKE_OVER": "1", PREFIX + "MODEL": model_place(settings.model)}
    if place.decode_socket:
        environ[PREFIX + "DECODE_SOCKET"] = str(place.decode_socket)
    return environ


def model_place(model: str) -> str:
    """Where vLLM finds it: the bundled model is a folder of the package."""
    return str(bundled_folder()) if model == BUNDLED else model
