"""`framefleet serve`: the fleet, the proxy in front of it, and the socket by which it is commanded, in one process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from framefleet.errors import ReplicaError
from framefleet.serve.control import Control, Note
from framefleet.serve.fleet import Fleet
from framefleet.serve.fleet_plan import FleetPlan
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.memory_use import gpu_bytes, host_bytes
from framefleet.serve.proxy import Proxy, Signals, serve_proxy
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.recent import figures_of
from framefleet.serve.revisions import Revision, Revisions, digest_of, settings_of
from framefleet.serve.rollout import Rollout
from framefleet.serve.run_folder import RunFolder

_log = logging.getLogger(__name__)


class FleetServer:
    """When `await FleetServer(...).serve(...)` returns, nothing of it is left running."""

    def __init__(
        self, settings: FleetSettings, plan: FleetPlan, proxy: ProxySettings, folder: RunFolder, *, origin: str
    ) -> None:
        self.revisions = Revisions(folder.revisions)
        self._first = self._first_revision(settings, origin)
        self.fleet = Fleet(settings, plan, folder, revision=self._first.number)
        self.proxy = Proxy(self.fleet, proxy)
        self.rollout = Rollout(self.fleet, self.revisions, api_key=proxy.upstream_api_key)
        self.address = ""
        self._started_at = time.time()
        self.fleet.on_change = self._wake

    async def serve(self, at: socket.socket, signals: Signals, announce: Callable[[], None]) -> None:
        """Answer at a listening socket until a signal comes. `announce` is called once commands are taken.

        Raises ReplicaError when no replica will ever be ready.
        """
        host, port = at.getsockname()[:2]
        self.address = f"http://{host}:{port}"
        commands = {
            "status": self._status, "drain": self._drain, "undrain": self._undrain, "restart": self._restart,
            "apply": self._apply, "rollback": self._rollback, "revisions": self._revisions, "keep": self._keep,
            "figures": self._figures, "settings": self._settings,
        }  # fmt: skip
        async with self.fleet, Control(self.fleet.folder.control, commands):
            serving = asyncio.create_task(serve_proxy(self.proxy, at, signals))
            failing = asyncio.create_task(self.fleet.failed())
            announce()
            try:
                await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
                if failing.done() and not serving.done():
                    raise ReplicaError("no replica can be started", given=failing.result(), remedy=_HINT)
                await serving
            finally:
                for task in (serving, failing):
                    task.cancel()
                await asyncio.gather(serving, failing, return_exceptions=True)

    def standing(self) -> dict[str, Any]:
        """What `framefleet fleet status` shows."""
        current, seen = self.revisions.current() or self._first, self.proxy.standing()
        of_proxy = {one["name"]: one for one in seen.pop("replicas")}
        replicas = []
        for name, member in self.fleet.members.items():
            kept, child = member.kept, member.kept.child if member.kept else None
            replicas.append(
                of_proxy.get(name, {})
                | {
                    "name": name, "pid": child.pid if child else None, "since": member.since_s,
                    "revision": member.revision, "gpu": member.plan.environ.get("CUDA_VISIBLE_DEVICES"),
                    "is_kept_out": member.is_kept_out, "has_given_up": member.has_given_up,
                    "restarts": kept.num_restarts if kept else 0, "last_end": kept.last_end if kept else "",
                    "log": kept.log if kept else "",
                }
            )  # fmt: skip
        services = [
            {
                "name": plan.name, "pid": kept.child.pid if kept.child else None, "is_ready": kept.ready.is_set(),
                "restarts": kept.num_restarts, "last_end": kept.last_end, "log": kept.log,
            }
            for plan, kept in self.fleet.services.running
        ]  # fmt: skip
        return {
            "address": self.address, "pid": os.getpid(), "started_at": self._started_at,
            "folder": str(self.fleet.folder.path), "model": self.fleet.settings.model, "engine": self.fleet.plan.engine,
            "revision": current.number, "is_changing": self.fleet.changing.locked(),
            "replicas": replicas, "services": services, **seen,
        }  # fmt: skip

    def _first_revision(self, settings: FleetSettings, origin: str) -> Revision:
        """What it starts with is a revision too, unless it is the one it ended with."""
        current = self.revisions.current()
        if current is None or current.digest != digest_of(settings):
            return self.revisions.begin(settings, origin)
        return current

    def _wake(self) -> None:
        """A replica that is ready anew owes nothing to its failures of before; the first says that settings work."""
        if self._first.outcome == "applying":
            self._first = self.revisions.write(
                msgspec.structs.replace(self._first, outcome="applied", is_confirmed=True)
            )
        for replica in self.fleet.replicas():
            if replica.takes_work:
                self.proxy.dispatch.circuits[replica.name].succeeded()
        self.proxy.admission.wake()

    # --- commands

    async def _status(self, _: dict[str, Any], __: Note) -> Any:
        return self.standing()

    async def _drain(self, asked: dict[str, Any], _: Note) -> Any:
        self.fleet.drain(str(asked.get("name")))
        return self.standing()

    async def _undrain(self, asked: dict[str, Any], _: Note) -> Any:
        self.fleet.undrain(str(asked.get("name")))
        return self.standing()

    async def _restart(self, asked: dict[str, Any], note: Note) -> Any:
        await self.rollout.restart([str(name) for name in asked.get("names") or []], note)
        return self.standing()

    async def _apply(self, asked: dict[str, Any], note: Note) -> Any:
        settings = settings_of(asked.get("settings") or {})
        return await self.rollout.apply(
            settings, str(asked.get("origin", "apply")), note, is_judged=bool(asked.get("is_judged", True))
        )

    async def _rollback(self, asked: dict[str, Any], note: Note) -> Any:
        number = asked.get("number")
        return await self.rollout.rollback(None if number is None else int(number), note)

    async def _revisions(self, _: dict[str, Any], __: Note) -> Any:
        return self.revisions.all()

    async def _settings(self, _: dict[str, Any], __: Note) -> Any:
        return self.fleet.settings

    async def _keep(self, asked: dict[str, Any], _: Note) -> Any:
        revision = self.revisions.numbered(int(asked.get("number") or 0))
        return self.revisions.write(msgspec.structs.replace(revision, is_confirmed=True))

    async def _figures(self, asked: dict[str, Any], _: Note) -> Any:
        """Of the requests that ended between `since` and `until` (seconds since the epoch), and of memory now."""
        until = float(asked.get("until") or time.time())
        since = float(asked.get("since") or self._started_at)
        figures = figures_of(self.proxy.metrics.recent.between(since, until), until - since)
        kept = [*(m.kept for m in self.fleet.members.values()), *(kept for _, kept in self.fleet.services.running)]
        groups = [one.child.pid for one in kept if one and one.child]
        memory = {"host_bytes": await asyncio.to_thread(host_bytes, groups), "gpu_bytes": await gpu_bytes()}
        return msgspec.to_builtins(figures) | memory


_HINT = "mend what the log says; every replica's log lies in the fleet's folder under logs/"
