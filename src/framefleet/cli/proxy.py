"""`framefleet proxy`: one address in front of many replicas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json, Port, Quiet, log_requests
from framefleet.cli.render import note, show, show_json

Upstream = Annotated[
    list[str] | None,
    typer.Option("--upstream", metavar="URL", help="A replica's address; once per replica.", show_default=False),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Policy = Annotated[
    str | None, typer.Option(help="least_work, round_robin, random, or a plugin's.", show_default="least_work")
]
MaxInFlight = Annotated[int | None, typer.Option(min=1, help="Requests at one replica at a time.", show_default="64")]
KeysFile = Annotated[
    Path | None,
    typer.Option("--api-keys", metavar="FILE.toml", help="Those who may ask; else anybody.", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="Settings: its section proxy.", show_default=False),
]


def proxy(
    upstream: Upstream = None,
    host: Host = None,
    port: Port = None,
    policy: Policy = None,
    max_in_flight: MaxInFlight = None,
    api_keys: KeysFile = None,
    config: Config = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Stand in front of OpenAI-compatible servers and share the requests by what each costs. Ctrl-C ends it.

    All settings: section proxy of the settings' reference. /metrics is for Prometheus, /fleet shows the replicas.
    """
    from framefleet.config import resolve
    from framefleet.serve.proxy_settings import ProxySettings

    flags: dict[str, Any] = {
        "upstreams": upstream or None,
        "host": host,
        "port": port,
        "policy": policy,
        "max_in_flight": max_in_flight,
        "api_keys_file": str(api_keys) if api_keys else None,
    }
    settings = resolve(ProxySettings, "proxy", file=config, flags=flags).value
    log_requests(is_quiet=quiet)
    _run(settings, as_json=as_json)
    return ExitCode.OK


def _run(settings: Any, *, as_json: bool) -> None:
    from framefleet.errors import MissingLibrary
    from framefleet.serve.replica import StaticFleet

    fleet = StaticFleet.of_urls(settings.upstreams)
    try:
        from framefleet.serve.proxy import Proxy, listener, run_proxy
    except ImportError as error:
        raise MissingLibrary("the proxy needs a library", given=str(error), remedy="framefleet[serve]") from error
    served = Proxy(fleet, settings)
    with listener(settings.host, settings.port) as at:
        address = f"http://{settings.host}:{at.getsockname()[1]}"
        if as_json:
            show_json({"address": address, "replicas": {r.name: r.base_url for r in fleet.replicas()}})
        else:
            show(f"proxy on {address}/v1 for {', '.join(f'{r.name} {r.base_url}' for r in fleet.replicas())}")
        sys.stdout.flush()
        if not served.keys.are_required and settings.host not in ("127.0.0.1", "::1", "localhost"):
            note("anybody who reaches this address may ask; try: --api-keys FILE.toml")
        run_proxy(served, at)
