"""A GPU with CPU cores of its own, the servers that stand on it, and the trials of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from arms import Kind, ServedArm, Workload
from servers import Mps, Server, start, stop, until_up

from framefleet.bench.clips import LoadClip
from framefleet.bench.executor import trial_of
from framefleet.bench.experiment import Arm, Trial
from framefleet.bench.gauges import Gauge, NvmlGauge, ProcessGauge, Watch
from framefleet.bench.load import LoadSettings, run_load
from framefleet.bench.scheduler import Slot
from framefleet.bench.site import EngineGauge, Site, read_metrics_later
from framefleet.serve.fleet_plan import plan_fleet
from framefleet.serve.host import EngineEnvironment, Gpu, Host

PROMPT = "Describe this video in detail: the setting, the people and objects, what happens and in which order."


@dataclass
class Lane:
    """One GPU (none on the CPU) and its cores. `mps`: the daemon that its servers are clients of."""

    name: str
    gpu: str | None
    cores: tuple[int, ...]
    folder: Path
    mps: Mps | None = None
    servers: dict[str, Server] = field(default_factory=dict)
    """By kind."""
    services: dict[str, Server] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Kind -> why there is none."""

    def start(self, kinds: Sequence[Kind]) -> None:
        """Start everything; see `until_up`. Sockets have short names: a Unix socket's path has 108 bytes."""
        environ = self.mps.environ if self.mps else {}
        host = Host(
            gpus=(Gpu(self.gpu),) if self.gpu else (), cores=self.cores, engine=EngineEnvironment("here", "here")
        )
        for kind in kinds:
            sockets = self.folder / kind.name
            sockets.mkdir(parents=True)
            plan = plan_fleet(kind.settings, host, sockets)
            for service in plan.decode_services:
                self.services[kind.name] = start(f"{self.name}-{kind.name}-decode", service, self.folder, environ)
                self.commands[f"{kind.name} decode"] = str(service)
            self.servers[kind.name] = start(f"{self.name}-{kind.name}", plan.replicas[0], self.folder, environ)
            self.commands[kind.name] = str(plan.replicas[0])

    async def until_up(self, limit_s: float) -> None:
        """Wait for all; one that is not up in time is given up, the others go on."""
        names = list(self.servers)
        up = await asyncio.gather(*(until_up(self.servers[name], limit_s) for name in names))
        for name, is_up in zip(names, up, strict=True):
            if not is_up:
                server = self.servers.pop(name)
                self.failed[name] = "ended" if not server.is_alive else f"not up in {limit_s:.0f} s"
                print(f"{self.name} {name} {self.failed[name]}:\n{_tail(server.log)}", flush=True)
                await asyncio.to_thread(stop, [server])
        for name, service in self.services.items():
            if not service.is_alive:
                print(f"{self.name} {name}, its decode service ended:\n{_tail(service.log)}", flush=True)

    def roots(self, kind: str) -> dict[int, Any]:
        """Processes whose CPU seconds count for an arm."""
        service = self.services.get(kind)
        return {
            self.servers[kind].process.pid: "api_server",
            **({service.process.pid: "decode_worker"} if service else {}),
            os.getpid(): "client",
        }


class CoresGauge:
    """CPU seconds of some cores, whoever spent them."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores

    def read(self) -> dict[str, float]:
        """`cpu/lane_s`."""
        times = psutil.cpu_times(percpu=True)
        return {"cpu/lane_s": sum(sum(times[core]) - times[core].idle - times[core].iowait for core in self._cores)}


class OfOneGpu:
    """Use and NVDEC of a single GPU, under its name."""

    def __init__(self, gauge: NvmlGauge, name: str) -> None:
        self._gauge, self._name = gauge, name

    def read(self) -> dict[str, float]:
        """`NAME/busy` and `NAME/nvdec`."""
        seen = self._gauge.read()
        return {f"{self._name}/{what}": seen[f"gpu/{what}"] for what in ("busy", "nvdec") if f"gpu/{what}" in seen}


def load_of(workload: Workload, url: str, arm: ServedArm, **changes: Any) -> LoadSettings:
    """What an arm is asked."""
    return LoadSettings(
        endpoint=url,
        inputs=(),
        model="m",
        prompt=PROMPT,
        max_tokens=workload.max_tokens,
        concurrency=workload.in_flight,
        extra_body={"media_io_kwargs": {"video": arm.video}} if arm.video else {},
        **changes,
    )


async def run_trial(
    load: LoadSettings, clips: Sequence[LoadClip], gauges: Sequence[Gauge], *, arm: Arm, slot: Slot,
    engines: Sequence[str] = (),
) -> Trial:  # fmt: skip
    """One load, with everything read beside it. `engines`: those behind a proxy."""
    urls = tuple(engines) or (load.endpoint,)
    site = Site(endpoint=load.endpoint, engine_urls=urls, metrics_urls=urls)
    before = await read_metrics_later(site)
    with Watch([EngineGauge(site), *gauges]) as watch:
        result = await run_load(load, clips)
    counted = (await read_metrics_later(site)).since(before)
    return trial_of(arm, slot, result, counted, watch.series())


def gauges_of_lanes(lanes: Sequence[Lane], kind: str, proxy: Server | None = None) -> list[Gauge]:
    """CPU of the servers of a kind, of the proxy in front and of the lanes' cores; GPU and NVDEC, also GPU by GPU."""
    roots = {pid: role for lane in lanes for pid, role in lane.roots(kind).items()}
    roots |= {proxy.process.pid: "proxy"} if proxy else {}
    gauges: list[Gauge] = [ProcessGauge(roots), CoresGauge(sorted({core for lane in lanes for core in lane.cores}))]
    if all(lane.gpu for lane in lanes):
        gauges.append(NvmlGauge([int(lane.gpu or 0) for lane in lanes]))
        gauges += [OfOneGpu(NvmlGauge([int(lane.gpu or 0)]), lane.name) for lane in lanes if len(lanes) > 1]
    return gauges


def gpu_memory(lane: Lane) -> dict[str, int]:
    """Bytes on the GPU: `all`, `total`, and of each kind of server with its service, as far as the driver tells."""
    if lane.gpu is None:
        return {}
    import pynvml

    found: dict[str, int] = {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(int(lane.gpu))
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        found |= {"all": memory.used, "total": memory.total}
        used = {one.pid: one.usedGpuMemory or 0 for one in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
        for kind, server in lane.servers.items():
            groups = {one.group for one in (server, lane.services.get(kind)) if one}
            found[kind] = sum(size for pid, size in used.items() if _group_of(pid) in groups)
    return found


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Clock:
    """Seconds left of a limit, and lines with the time on them."""

    def __init__(self, limit_s: float) -> None:
        self._began_s = time.monotonic()
        self._limit_s = limit_s

    @property
    def left_s(self) -> float:
        return self._began_s + self._limit_s - time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began_s:5.0f} s] {text}", flush=True)
