"""Where a running fleet is: its endpoint, the engines behind it, their metrics, and their processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from framefleet.bench.exposition import Exposition, parse_exposition
from framefleet.bench.gauges import (
    Gauge,
    NvmlGauge,
    ProcessGauge,
    Role,
    environment_of,
    listening_pid,
    usable_cores,
)
from framefleet.decode.service.client import ServiceClient
from framefleet.errors import EngineLost, FramefleetError, MissingLibrary

SOCKET_VARIABLE = "FRAMEFLEET_DECODE_SOCKET"
_PROXY_MARK = "framefleet_proxy_"
_LEVELS = {
    "vllm:num_requests_running": "engine/running",
    "vllm:num_requests_waiting": "engine/waiting",
    "vllm:kv_cache_usage_perc": "engine/kv_use",
    "vllm:gpu_cache_usage_perc": "engine/kv_use",
    "framefleet:num_requests_reading": "engine/reading",
    "framefleet:vram_waiting": "engine/vram_waiting",
}
_LEVEL_LINE = re.compile(rf"^({'|'.join(map(re.escape, _LEVELS))})(?:{{[^}}]*}})? (\S+)$", re.MULTILINE)
_MEAN_OVER_ENGINES = frozenset({"engine/kv_use"})


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What stands where."""

    endpoint: str
    """Base URL without `/v1`."""
    engine_urls: tuple[str, ...]
    has_proxy: bool = False
    metrics_urls: tuple[str, ...] = ()
    """Those of the engines that have metrics."""
    model_root: str = ""
    """The model as the server was told it (a folder, a hub id); empty where it does not say."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Engines whose metrics cannot be read."""
        return tuple(url for url in self.engine_urls if url not in self.metrics_urls)


def find_site(endpoint: str, engines: Sequence[str] = ()) -> Site:
    """Look around. `engines`: where they are, when the proxy in front is not ours. Raises EngineLost."""
    base = endpoint.rstrip("/").removesuffix("/v1")
    page, models = _page(base + "/metrics"), _page(base + "/v1/models")
    if page is None and models is None and not _answers(base + "/v1/models"):
        raise EngineLost("nothing answers there", given=base, remedy="see that the server is up, and its --port")
    has_proxy = page is not None and _PROXY_MARK in page
    found = tuple(url.rstrip("/").removesuffix("/v1") for url in engines) or (_replicas(base) if has_proxy else (base,))
    return Site(
        endpoint=base,
        engine_urls=found,
        has_proxy=has_proxy,
        metrics_urls=tuple(url for url in found if _page(url + "/metrics") is not None),
        model_root=_model_root(models),
    )


def read_metrics(site: Site) -> Exposition:
    """Of all engines at once. One that does not answer now is left out."""
    return parse_exposition(page for url in site.metrics_urls if (page := _page(url + "/metrics")) is not None)


async def read_metrics_later(site: Site) -> Exposition:
    """As `read_metrics`, off the event loop."""
    return await asyncio.to_thread(read_metrics, site)


class EngineGauge:
    """How many requests run and wait in the engines, and how full their KV caches are."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def read(self) -> dict[str, float]:
        """Sums over the engines; `engine/kv_use` is their mean."""
        found: dict[str, list[float]] = {}
        for url in self._site.metrics_urls:
            for name, value in _LEVEL_LINE.findall(_page(url + "/metrics") or ""):
                found.setdefault(_LEVELS[name], []).append(float(value))
        return {n: sum(v) / (len(v) if n in _MEAN_OVER_ENGINES else 1) for n, v in found.items()}


class ServiceGauge:
    """Decode services on this machine: how busy their slots are, how many clips wait, and for the budget how long."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self._services = [ServiceClient(path, patience_s=1.0, grace_s=0.0) for path in sockets]

    def read(self) -> dict[str, float]:
        """`decode/KIND_s` (busy seconds of all slots so far) and `decode/KIND_slots` by kind of silicon, and
        `decode/queued`, `decode/budget_waited_s`, `decode/budget_held_bytes`. Sums."""
        found: defaultdict[str, float] = defaultdict(float)
        for service in self._services:
            with contextlib.suppress(FramefleetError):
                stats = service.stats()
                found["decode/queued"] += stats.queued
                found["decode/budget_waited_s"] += stats.budget_waited_s
                found["decode/budget_held_bytes"] += stats.budget_held_bytes
                for one in stats.silicon:
                    found[f"decode/{one.name}_s"] += one.busy_s_total
                    found[f"decode/{one.name}_slots"] += one.slots
        return dict(found)


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be read of a site, and what cannot."""

    gauges: tuple[Gauge, ...]
    unread: tuple[str, ...]
    """In words."""
    decode_workers: int
    """Decode processes of our own found behind the engines."""
    api_servers: int
    """API server processes of vLLM, one per engine where they cannot be told apart."""
    is_gpu: bool
    cores: float
    """That the engines may use, where they can be seen."""


def gauges_of(site: Site, gpus: Sequence[int] | None = None) -> Gauges:
    """The gauges that work here."""
    found: list[Gauge] = [EngineGauge(site)]
    unread = [f"no /metrics at {url}" for url in site.missing]
    decode_workers, api_servers, roots = 0, 0, {}
    try:
        roots = _roots(site, unread)
        processes = ProcessGauge(roots)
        decode_workers = processes.num_processes("decode_worker")
        api_servers = processes.num_marked("VLLM::APIServer")
        found.append(processes)
        if sockets := environment_of((pid for pid, role in roots.items() if role == "api_server"), SOCKET_VARIABLE):
            found.append(ServiceGauge(sockets))
    except MissingLibrary as error:
        unread.append(str(error))
    is_gpu = False
    try:
        found.append(NvmlGauge(gpus))
        is_gpu = True
    except FramefleetError as error:
        unread.append(str(error))
    return Gauges(
        gauges=tuple(found),
        unread=tuple(unread),
        decode_workers=decode_workers,
        api_servers=max(api_servers, len(site.engine_urls)),
        is_gpu=is_gpu,
        cores=usable_cores([pid for pid, role in roots.items() if role == "api_server"] or (0,)),
    )


def _roots(site: Site, unread: list[str]) -> dict[int, Role]:
    roots: dict[int, Role] = {os.getpid(): "client"}
    listeners: list[tuple[str, Role]] = [(url, "api_server") for url in site.engine_urls]
    if site.has_proxy:
        listeners.append((site.endpoint, "proxy"))
    for url, role in listeners:
        pid = listening_pid(url)
        if pid is None:
            unread.append(f"the processes of {url} cannot be seen from here")
        else:
            roots[pid] = role
    return roots


def _replicas(base: str) -> tuple[str, ...]:
    page = _page(base + "/fleet")
    replicas = msgspec.json.decode(page)["replicas"] if page else []
    return tuple(one["url"].rstrip("/") for one in replicas)


def _model_root(page: str | None) -> str:
    try:
        card = msgspec.json.decode(page or "")["data"][0]
        return str(card.get("root") or card["id"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return ""


def _answers(url: str) -> bool:
    """Also with an error: it may want a key."""
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False


def _page(url: str) -> str | None:
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
        return str(answer.read().decode("utf-8", "replace"))
    return None
