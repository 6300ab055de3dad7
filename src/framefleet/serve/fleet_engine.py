"""A fleet of one's own as an engine: `framefleet serve` for the length of a run, in a process of its own.

The fleet's process has a keeper like every other, so that it ends with its replicas whatever becomes of this one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from framefleet.config import FILE_VARIABLE, PREFIX, resolve
from framefleet.engine.openai_http import OpenAiHttpEngine, OpenAiHttpSettings, base_url
from framefleet.errors import ReplicaError
from framefleet.serve.child import Child, tail_of
from framefleet.serve.control import ask_fleet
from framefleet.serve.fleet_plan import ProcessPlan, choose_engine
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.host import Host, look_at_host

_END_S = 90.0
"""For requests in flight and replicas to end."""
_POLL_S = 0.2
_NOWHERE = "http://127.0.0.1:9"
_log = logging.getLogger(__name__)


class FleetEngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, and whose settings beside it."""

    model: str = "dashcam_tiny"
    """`dashcam_tiny` (bundled), a local folder, or a hub id."""
    config: str = ""
    """A `fleet.toml` for everything else; empty: defaults and the environment (FRAMEFLEET_FLEET_...)."""
    keep_folder: Annotated[str, Meta(max_length=4096)] = ""
    """Where its logs go and stay; empty: a temporary folder, which stays only when it does not start."""


def open_fleet(**settings: Any) -> FleetEngine:
    """A fleet of one's own (see FleetEngineSettings). Raises ConfigError."""
    return FleetEngine(resolve(FleetEngineSettings, "fleet_engine", flags=settings).value)


def fleet_settings(model: str, config: str) -> FleetSettings:
    """Of the fleet that such an engine starts."""
    return resolve(FleetSettings, "fleet", file=config or None, flags={"model": model}).value


def suits(model: str, config: str, host: Host | None = None) -> bool:
    """Whether a fleet is the way to run this model here: there is a vLLM for it, or there are several GPUs."""
    settings = fleet_settings(model, config)
    host = host or look_at_host(settings.python)
    return choose_engine(settings, host) == "vllm" or len(host.gpus) > 1


class FleetEngine(OpenAiHttpEngine):
    """The fleet starts with the engine, and is gone when it is closed."""

    name = "fleet"

    def __init__(self, settings: FleetEngineSettings) -> None:
        wanted = fleet_settings(settings.model, settings.config)
        served = wanted.served_model_name or wanted.model
        http = resolve(OpenAiHttpSettings, "openai_http", flags={"endpoint": _NOWHERE, "model": served}).value
        super().__init__(http)
        self._of_fleet, self._wanted = settings, wanted
        self._child: Child | None = None
        self._folder: Path | None = None

    async def start(self) -> None:
        """Start the fleet and wait until a replica answers. Raises ReplicaError with the end of its log."""
        self._folder = Path(self._of_fleet.keep_folder or tempfile.mkdtemp(prefix="framefleet-fleet-"))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._folder / "serve.log"
        self._child = await Child.start(self._plan(), log=log, environ={}, grace_s=_END_S)
        _log.info("a fleet of %s is started; its logs: %s", self._wanted.model, self._folder)
        self._base_url = base_url(await self._address(self._child, log))
        await super().start()

    async def aclose(self) -> None:
        """End the fleet, and wait until nothing of it is left."""
        await super().aclose()
        if self._child is not None:
            await self._child.stop()
            self._child = None
            if self._folder is not None and not self._of_fleet.keep_folder:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _plan(self) -> ProcessPlan:
        assert self._folder is not None
        flags = ["--folder", str(self._folder), "--port", "0", "--quiet"]
        config = self._of_fleet.config or os.environ.get(FILE_VARIABLE)
        flags += ["--config", config] if config else []
        args = list(self._wanted.args)
        if choose_engine(self._wanted, look_at_host(self._wanted.python)) == "vllm":
            args.append("--trust-request-mm-kwargs")  # windows are sent as frames; nobody else can ask this fleet
        return ProcessPlan(
            name="serve",
            command=(sys.executable, "-m", "framefleet", "serve", self._wanted.model, *flags),
            environ={PREFIX + "FLEET_ARGS": msgspec.json.encode(args).decode()},
        )

    async def _address(self, child: Child, log: Path) -> str:
        """Once a replica is ready."""
        folder = log.parent
        ended = asyncio.create_task(child.ended())
        try:
            while not ended.done():
                with suppress(ReplicaError):  # it does not listen yet
                    standing = await asyncio.to_thread(ask_fleet, folder, "status")
                    if any(one["state"] == "ready" for one in standing["replicas"]):
                        return str(standing["address"])
                await asyncio.wait({ended}, timeout=_POLL_S)
        finally:
            ended.cancel()
        self._child = None  # and the folder stays, for its logs
        raise ReplicaError("the fleet did not start", given=tail_of(log, 4), remedy=f"look into {folder}/logs")
