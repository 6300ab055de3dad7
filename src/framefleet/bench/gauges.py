"""What a machine shows while a load runs: CPU per role of process, GPU, NVDEC apart from the GPU, VRAM, PCIe.

A gauge is read every half second from a thread of its own. Names that end in `_s` are CPU seconds so far (their
increase is a share of a core); all others are levels.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self
from urllib.parse import urlsplit

import msgspec

from framefleet.errors import MissingLibrary

Role = Literal["client", "proxy", "api_server", "decode_worker", "engine"]
PERIOD_S = 0.5
_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


class Gauge(Protocol):
    """Something to be read again and again."""

    def read(self) -> dict[str, float]:
        """Name -> value now. Called from another thread; must not raise."""
        ...


class Series(msgspec.Struct, frozen=True):
    """Readings over time."""

    times_s: tuple[float, ...]
    values: dict[str, tuple[float, ...]]
    """As long as `times_s`; NaN is never among them: a name that was once missing is left out."""

    def rate(self, name: str) -> float | None:
        """Increase per second over the whole stretch."""
        values, times_s = self.values.get(name), self.times_s
        if values is None or len(values) < 2 or times_s[-1] <= times_s[0]:
            return None
        return (values[-1] - values[0]) / (times_s[-1] - times_s[0])

    def mean(self, name: str) -> float | None:
        """Of a level."""
        values = self.values.get(name)
        return sum(values) / len(values) if values else None

    def peak(self, name: str) -> float | None:
        """Of a level."""
        values = self.values.get(name)
        return max(values) if values else None

    def share_above(self, name: str, least: float) -> float | None:
        """Share of the readings above `least`."""
        values = self.values.get(name)
        return sum(value > least for value in values) / len(values) if values else None

    def shown(self) -> dict[str, tuple[float, ...]]:
        """For plots: levels as they are, CPU seconds as cores in use since the reading before (the first is left
        out of all)."""
        found = {}
        for name, values in self.values.items():
            if not name.endswith("_s"):
                found[name] = values[1:]
                continue
            steps = zip(values, values[1:], self.times_s, self.times_s[1:], strict=False)
            found[name.removesuffix("_s")] = tuple((b - a) / max(t - s, 1e-9) for a, b, s, t in steps)
        return found


class Watch:
    """`with Watch(gauges) as watch: ...; watch.series()`."""

    def __init__(self, gauges: Sequence[Gauge], period_s: float = PERIOD_S) -> None:
        self._gauges, self._period_s = gauges, period_s
        self._rows: list[tuple[float, dict[str, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)

    def __enter__(self) -> Self:
        self._began_s = time.perf_counter()
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._read()

    def series(self) -> Series:
        """What was read so far."""
        names = set.intersection(*(set(row) for _, row in self._rows)) if self._rows else set()
        return Series(
            tuple(round(at, 3) for at, _ in self._rows),
            {name: tuple(row[name] for _, row in self._rows) for name in sorted(names)},
        )

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            self._read()

    def _read(self) -> None:
        row: dict[str, float] = {}
        for gauge in self._gauges:
            row |= gauge.read()
        self._rows.append((time.perf_counter() - self._began_s, row))


class ProcessGauge:
    """CPU seconds and resident bytes of processes on this machine, by role. Children that come later are found too."""

    def __init__(self, roots: Mapping[int, Role]) -> None:
        """`roots`: process id -> role; a child whose command line tells its role has that one, else its parent's."""
        self._psutil = psutil = _psutil()
        self._gone = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)
        self._roots = [(psutil.Process(pid), role) for pid, role in roots.items() if psutil.pid_exists(pid)]
        self._seen_s: dict[tuple[int, float], tuple[Role, float]] = {}

    def read(self) -> dict[str, float]:
        """`cpu/ROLE_s`, `rss/ROLE`, `cpu/all_s` (the whole machine). What a process that has ended took stays in."""
        resident: defaultdict[str, float] = defaultdict(float)
        for process, role in self._processes():
            with contextlib.suppress(*self._gone):
                cpu = process.cpu_times()
                self._seen_s[process.pid, process.create_time()] = (role, cpu.user + cpu.system)
                resident[f"rss/{role}"] += process.memory_info().rss
        spent_s: defaultdict[str, float] = defaultdict(float)
        for role, seconds in self._seen_s.values():
            spent_s[f"cpu/{role}_s"] += seconds
        whole = self._psutil.cpu_times()
        spent_s["cpu/all_s"] = whole.user + whole.system + whole.nice
        return {**spent_s, **resident}

    def num_processes(self, role: Role) -> int:
        """Running now."""
        return sum(1 for _, found in self._processes() if found == role)

    def num_marked(self, mark: str) -> int:
        """Processes whose command line has `mark`."""
        count = 0
        for process, _ in self._processes():
            with contextlib.suppress(*self._gone):
                count += mark in " ".join(process.cmdline())
        return count

    def _processes(self) -> list[tuple[Any, Role]]:
        found: dict[int, tuple[Any, Role]] = {}
        for root, role in self._roots:
            found[root.pid] = (root, role)
            with contextlib.suppress(*self._gone):
                for child in root.children(recursive=True) if role != "client" else ():
                    with contextlib.suppress(*self._gone):
                        found.setdefault(child.pid, (child, role_of(child.cmdline()) or role))
        return list(found.values())


def role_of(command_line: Sequence[str]) -> Role | None:
    """What a child process does, by its command line (vLLM names its processes `VLLM::EngineCore` and so on)."""
    words = " ".join(command_line)
    marks: tuple[tuple[str, Role], ...] = (
        ("VLLM::EngineCore", "engine"), ("VLLM::Worker", "engine"), ("VLLM::APIServer", "api_server"),
        ("framefleet.engine.embedded.worker", "engine"), ("framefleet.decode.", "decode_worker"),
        ("framefleet.serve.openai_app", "api_server"),
    )  # fmt: skip
    return next((role for mark, role in marks if mark in words), None)


def listening_pid(url: str) -> int | None:
    """The process of this machine that listens at a loopback URL; None for others, or one that may not be seen.

    Of vLLM's API servers, which share a port, and its engine the process that all of them come from.
    """
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1", "0.0.0.0"):  # noqa: S104 - compared, not bound
        return None
    psutil = _psutil()
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == (parts.port or 80):
                return _origin(connection.pid)
    return None


def _origin(pid: int | None) -> int | None:
    psutil = _psutil()
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid) if pid else None
        while process is not None and "VLLM::" in " ".join(process.cmdline()):
            process = process.parent()
        return process.pid if process is not None else pid
    return pid


def environment_of(pids: Iterable[int], variable: str) -> list[str]:
    """The values of an environment variable in these processes, each once; those that may not be seen have none."""
    psutil, found = _psutil(), []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found.append(psutil.Process(pid).environ().get(variable, ""))
    return list(dict.fromkeys(value for value in found if value))


def usable_cores(pids: Iterable[int] = (0,)) -> float:
    """Cores that these processes may use together (0: this one): their affinity, and what its control group allows."""
    allowed: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            allowed |= os.sched_getaffinity(pid)
    cores = float(len(allowed or os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError):
        quota, period = _CGROUP_CPU.read_text().split()
        cores = min(cores, float(quota) / float(period))
    return cores


class NvmlGauge:
    """GPUs by NVML. A GPU that cannot tell something is left out of that figure. Close it after use."""

    def __init__(self, gpus: Iterable[int] | None = None, nvml: Any = None) -> None:
        """`gpus`: their numbers, all when None. `nvml`: pynvml, or a fake with the same functions.

        Raises MissingLibrary without pynvml or a driver.
        """
        self._nvml = nvml or _pynvml()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise MissingLibrary("NVML finds no driver", given=str(error), remedy="an NVIDIA driver") from error
        chosen = range(self._nvml.nvmlDeviceGetCount()) if gpus is None else gpus
        self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(number) for number in chosen]

    def read(self) -> dict[str, float]:
        """`gpu/busy` and `gpu/nvdec` (0 to 1, mean over GPUs), `gpu/memory_bytes` (of the fullest), `gpu/pcie` (share
        of what the links carry, both ways, of the busiest)."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for device in self._devices:
            for name, read in self._readings(device).items():
                with contextlib.suppress(self._nvml.NVMLError):
                    found[name].append(read())
        whole = {"gpu/memory_bytes": max, "gpu/pcie": max}
        return {n: float(whole[n](v)) if n in whole else sum(v) / len(v) for n, v in found.items() if v}

    def close(self) -> None:
        """Let go of NVML."""
        self._nvml.nvmlShutdown()

    def _readings(self, device: Any) -> dict[str, Any]:
        nvml = self._nvml
        return {
            "gpu/busy": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
            "gpu/nvdec": lambda: nvml.nvmlDeviceGetDecoderUtilization(device)[0] / 100,
            "gpu/memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used,
            "gpu/pcie": lambda: self._pcie_share(device),
        }

    def _pcie_share(self, device: Any) -> float:
        nvml = self._nvml
        busiest = max(
            nvml.nvmlDeviceGetPcieThroughput(device, way)  # KiB/s over the last 20 ms
            for way in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        )
        lanes = nvml.nvmlDeviceGetCurrPcieLinkWidth(device)
        lane_bytes_per_s = 250e6 * 2 ** (nvml.nvmlDeviceGetCurrPcieLinkGeneration(device) - 1)
        return float(busiest * 1024 / (lanes * lane_bytes_per_s))


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise MissingLibrary("reading processes needs psutil", given=str(error), remedy="framefleet[bench]") from error
    return psutil


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise MissingLibrary("reading GPUs needs pynvml", given=str(error), remedy="framefleet[bench]") from error
    return pynvml
