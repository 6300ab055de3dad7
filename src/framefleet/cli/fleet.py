"""`framefleet fleet ...`: look at a running fleet and change it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Folder, Json
from framefleet.cli.render import note, show, show_json, show_table

fleet = typer.Typer(
    name="fleet", help="Look at the fleet that `framefleet serve` runs, and change it.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(metavar="REPLICA", help="As status names it, r0 for one.", show_default=False)]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[REPLICA...]", help="Which; none: all.", show_default=False)
]
File = Annotated[Path, typer.Argument(metavar="fleet.toml", help="Settings: its section fleet.", show_default=False)]
Number = Annotated[
    int | None, typer.Argument(metavar="[N]", help="A revision; none: the one before.", show_default=False)
]
NoJudge = Annotated[
    bool, typer.Option("--no-canary", help="The first replica must only become ready, not answer as the old ones do.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Until nothing is in flight there.")]


@fleet.command()
def status(folder: Folder = None, as_json: Json = False) -> ExitCode:
    """Every replica: its state, GPU, requests, process, restarts and revision; and what they share."""
    _show_standing(_ask(folder, "status"), as_json=as_json)
    return ExitCode.OK


@fleet.command()
def drain(name: Name, wait: Wait = False, folder: Folder = None, as_json: Json = False) -> ExitCode:
    """Give a replica no new work; what is in flight there ends. It stays so until undrain, also through a restart."""
    standing = _ask(folder, "drain", name=name)
    while wait and _state(standing, name) == "draining":
        time.sleep(0.2)
        standing = _ask(folder, "status")
    _show_standing(standing, as_json=as_json)
    return ExitCode.OK


@fleet.command()
def undrain(name: Name, folder: Folder = None, as_json: Json = False) -> ExitCode:
    """Give a replica work again."""
    _show_standing(_ask(folder, "undrain", name=name), as_json=as_json)
    return ExitCode.OK


@fleet.command()
def restart(names: Names = None, folder: Folder = None, as_json: Json = False) -> ExitCode:
    """Start replicas anew, one after the other, each drained first: no request is lost."""
    _show_standing(_ask(folder, "restart", names=names or []), as_json=as_json)
    return ExitCode.OK


@fleet.command()
def apply(file: File, no_canary: NoJudge = False, folder: Folder = None, as_json: Json = False) -> ExitCode:
    """Put settings into effect, replica by replica. The first must answer as well as the old ones, or all goes back.

    The exit code is 6 when it was rolled back. Section proxy takes effect at the next `framefleet serve`.
    """
    import msgspec

    from framefleet.config import resolve
    from framefleet.serve.fleet_settings import FleetSettings

    settings = resolve(FleetSettings, "fleet", file=file).value
    tree = msgspec.to_builtins(settings)
    revision = _ask(folder, "apply", settings=tree, origin=str(file), is_judged=not no_canary)
    return _show_outcome(revision, as_json=as_json)


@fleet.command()
def rollback(number: Number = None, folder: Folder = None, as_json: Json = False) -> ExitCode:
    """Go back to the settings of an earlier revision, replica by replica."""
    return _show_outcome(_ask(folder, "rollback", number=number), as_json=as_json)


@fleet.command()
def revisions(folder: Folder = None, as_json: Json = False) -> ExitCode:
    """Every setting that was put into effect, with its time; also of a fleet that does not run."""
    from framefleet.serve.revisions import Revisions
    from framefleet.serve.run_folder import default_folder

    known = Revisions((folder or default_folder()) / "revisions").all()
    if as_json:
        show_json({"revisions": known})
        return ExitCode.OK
    rows = [[str(r.number), r.at, r.outcome, r.settings.model, r.origin, _first_line(r.reasons)] for r in known]
    show_table(["", "at", "outcome", "model", "by", "why"], rows)
    return ExitCode.OK


def _ask(folder: Path | None, command: str, **arguments: Any) -> Any:
    from framefleet.serve.control import ask_fleet
    from framefleet.serve.run_folder import default_folder

    def on_note(text: str) -> None:
        for line in text.split("\n"):
            note(line)

    return ask_fleet(folder or default_folder(), command, on_note=on_note, **arguments)


def _state(standing: dict[str, Any], name: str) -> str:
    return next((str(one["state"]) for one in standing["replicas"] if one["name"] == name), "")


def _show_standing(standing: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(standing)
        return
    show(
        f"{standing['model']} on {standing['address']}/v1, engine {standing['engine']}, revision {standing['revision']}"
    )
    columns = ["replica", "state", "gpu", "in flight", "pid", "restarts", "revision", "last end"]
    rows = [
        [
            one["name"], one["state"] + (", given up" if one["has_given_up"] else ""), one["gpu"] or "-",
            str(one["in_flight"]), str(one["pid"] or "-"), str(one["restarts"]), str(one["revision"]),
            one["last_end"].split("\n")[0],
        ]
        for one in standing["replicas"]
    ]  # fmt: skip
    for one in standing["services"]:
        state, ended = "ready" if one["is_ready"] else "not ready", one["last_end"].split("\n")[0]
        rows.append([one["name"], state, "", "", str(one["pid"] or "-"), str(one["restarts"]), "", ended])
    show_table(columns, rows)


def _first_line(reasons: tuple[str, ...]) -> str:
    return "; ".join(reasons).split("\n")[0]


def _show_outcome(revision: dict[str, Any], *, as_json: bool) -> ExitCode:
    if as_json:
        show_json(revision)
    else:
        show(f"revision {revision['number']}: {revision['outcome']}")
        for reason in revision["reasons"]:
            show(f"  {reason}")
    return ExitCode.OK if revision["outcome"] == "applied" else ExitCode.CHECK_FAILED
