"""`framefleet serve`: replicas of a model on this host, and one address in front of them."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Folder, Json, Port, Quiet, log_requests
from framefleet.cli.render import note, show, show_json
from framefleet.errors import ConfigError, MissingLibrary

if TYPE_CHECKING:
    from framefleet.serve.fleet_plan import FleetPlan
    from framefleet.serve.fleet_settings import FleetSettings

Model = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="Folder, hub id, or dashcam_tiny (bundled).", show_default=False),
]
Replicas = Annotated[str | None, typer.Option(metavar="N", help="In all; auto: one per GPU.", show_default="auto")]
Engine = Annotated[str | None, typer.Option(help="vllm, embedded, or auto.", show_default="auto")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="fleet.toml", help="Settings: its sections fleet and proxy.", show_default=False),
]
Plan = Annotated[bool, typer.Option("--plan", help="Only print the command of every process.")]


def serve(
    model: Model = None,
    replicas: Replicas = None,
    engine: Engine = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
    folder: Folder = None,
    plan: Plan = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Run a model on every GPU of this host behind one OpenAI-compatible address. Ctrl-C ends all of it.

    Without MODEL and settings it goes on with those it last had. Steer it with `framefleet fleet`.
    """
    from framefleet.config import resolve
    from framefleet.serve.proxy_settings import ProxySettings
    from framefleet.serve.run_folder import default_folder

    count = int(replicas) if replicas and replicas.isdecimal() else replicas
    flags = {"model": model, "engine": engine, "replicas": count}
    place = folder or default_folder()
    settings, origin = _settings(flags, config, place)
    proxy = resolve(ProxySettings, "proxy", file=config, flags={"host": host, "port": port}).value
    if plan:
        return _show_plan(settings, place, as_json=as_json)
    log_requests(is_quiet=quiet)
    _run(settings, proxy, place, origin=origin, as_json=as_json)
    return ExitCode.OK


def _settings(flags: dict[str, Any], config: Path | None, folder: Path) -> tuple[FleetSettings, str]:
    """The settings, and what they are from."""
    from framefleet.config import resolve
    from framefleet.serve.fleet_settings import FleetSettings
    from framefleet.serve.revisions import Revisions

    resolved = resolve(FleetSettings, "fleet", file=config, flags=flags)
    if not resolved.origins and (last := Revisions(folder / "revisions").current()):
        note(f"revision {last.number} of {folder}")
        return last.settings, last.origin
    if "model" not in resolved.origins:
        raise ConfigError(
            "which model?", allowed="a folder, a hub id, or dashcam_tiny", remedy="framefleet serve MODEL"
        )
    return resolved.value, str(config) if config else "serve"


def _show_plan(settings: FleetSettings, folder: Path, *, as_json: bool) -> ExitCode:
    from framefleet.serve.fleet_plan import plan_fleet
    from framefleet.serve.host import look_at_host

    plan = plan_fleet(settings, look_at_host(settings.python), folder / "sockets")
    if as_json:
        show_json(plan_facts(plan))
    else:
        show("\n".join([*(f"{one.name}: {one}" for one in plan.processes), *_reserved(plan)]))
    return ExitCode.OK


def _reserved(plan: FleetPlan) -> list[str]:
    """What decoding takes of each GPU before vLLM has a byte of it, where a service decodes there."""
    from framefleet.units import format_bytes, parse_bytes
    from framefleet.vllm_plugin.reservation import service_reservation

    words = next((one.command for one in plan.decode_services if "--gpu" in one.command), None)
    if words is None:
        return []
    given = [value for flag, value in pairwise(words) if flag == "--gpu-budget"]
    taken = service_reservation(*[parse_bytes(size) for size in given[-1:]])
    share = "what gpu_memory_utilization leaves must hold it"
    return [f"the decode service takes {format_bytes(taken.total_bytes)} of each GPU, beside vLLM: {share}"]


def plan_facts(plan: FleetPlan) -> dict[str, Any]:
    """What `--plan --json` prints."""
    processes = [
        {"name": one.name, "command": one.command, "environ": dict(one.environ), "cores": one.cores}
        for one in plan.processes
    ]
    return {"engine": plan.engine, "processes": processes}


def _run(settings: FleetSettings, proxy: Any, place: Path, *, origin: str, as_json: bool) -> None:
    from framefleet.serve.fleet_plan import plan_fleet
    from framefleet.serve.host import look_at_host
    from framefleet.serve.run_folder import RunFolder

    try:
        from framefleet.serve.fleet_server import FleetServer
        from framefleet.serve.proxy import listener, run_serving
    except ImportError as error:
        raise MissingLibrary("serving needs a library", given=str(error), remedy="framefleet[serve]") from error
    with RunFolder(place) as folder, listener(proxy.host, proxy.port) as at:
        if folder.swept:
            note(f"ended {len(folder.swept)} processes that an earlier fleet had left")
        plan = plan_fleet(settings, look_at_host(settings.python), folder.sockets)
        server = FleetServer(settings, plan, proxy, folder, origin=origin)
        announce = partial(
            _announce, settings, plan, f"http://{proxy.host}:{at.getsockname()[1]}", folder.path, as_json
        )
        run_serving(lambda signals: server.serve(at, signals, announce))


def _announce(settings: FleetSettings, plan: FleetPlan, address: str, folder: Path, as_json: bool) -> None:
    if as_json:
        show_json({"address": address, "folder": str(folder), **plan_facts(plan)})
    else:
        names = ", ".join(one.name for one in plan.processes)
        show(f"{settings.model} on {address}/v1 ({plan.engine}: {names}; logs in {folder / 'logs'})")
        for line in _reserved(plan):
            note(line)
    sys.stdout.flush()
