"""The `framefleet` command: its list of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer

from framefleet._version import __version__
from framefleet.cli.bench import bench
from framefleet.cli.caption import caption
from framefleet.cli.decode import decode
from framefleet.cli.deepstream import deepstream
from framefleet.cli.demo import demo
from framefleet.cli.diagnose import diagnose
from framefleet.cli.doctor import doctor
from framefleet.cli.exits import ExitCode, exit_code_of
from framefleet.cli.export import export
from framefleet.cli.fleet import fleet
from framefleet.cli.probe import probe
from framefleet.cli.proxy import proxy
from framefleet.cli.render import note, show, show_json, speak_any_encoding
from framefleet.cli.search import search
from framefleet.cli.serve import serve
from framefleet.cli.tune import tune
from framefleet.errors import FramefleetError

app = typer.Typer(
    name="framefleet",
    help="Caption every clip of a large video collection, and find clips by what is in them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
for command in (demo, probe, decode, caption, search, export, serve, proxy, diagnose, tune, doctor):
    app.command()(command)
app.add_typer(fleet)
app.add_typer(bench)
app.add_typer(deepstream)


def _show_version(asked: bool) -> None:
    if asked:
        show(__version__)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_show_version)
]


@app.callback()
def root(version: Version = False) -> None:
    """What holds for every command."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; console entry point."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run the command line and give its exit code. Every error ends here, on one line, with its remedy."""
    speak_any_encoding()
    try:
        return int(app(arguments, prog_name="framefleet", standalone_mode=False) or 0)
    except Exception as error:  # noqa: BLE001  # the last place: whatever it is becomes one line and a code
        return _tell(error, as_json="--json" in arguments)


def _tell(error: Exception, *, as_json: bool) -> int:
    if os.environ.get("FRAMEFLEET_DEBUG") == "1":
        traceback.print_exception(error)
    code, facts = _explain(error)
    if as_json:
        show_json({"error": facts, "exit_code": int(code)})
    if facts["message"]:  # without arguments the help page says it all
        note(f"framefleet: {facts['message']}")
    return int(code)


def _explain(error: Exception) -> tuple[ExitCode, dict[str, Any]]:
    """The exit code, and what a program may want to know (stable keys)."""
    kind = type(error).__name__
    if isinstance(error, FramefleetError):
        facts = {"given": error.given, "allowed": error.allowed, "remedy": error.remedy}
        facts |= {"blame": error.blame, "retry": error.retry}
        return exit_code_of(error), {"kind": kind, "message": str(error), **facts}
    if explain := getattr(error, "format_message", None):  # what typer raises for a wrong command line
        what = explain().rstrip(".")
        return ExitCode.USAGE, {"kind": "UsageError", "message": f"{what}; {_usage_hint(error)}" if what else ""}
    if isinstance(error, typer.Abort):
        return ExitCode.INTERRUPTED, {"kind": "Interrupted", "message": "interrupted"}
    what = f"{kind}: {error}".replace("\n", " ")
    hint = "a fault in framefleet, try: FRAMEFLEET_DEBUG=1 for the traceback, and please report it"
    return ExitCode.BUG, {"kind": kind, "message": f"{what}; {hint}"}


def _usage_hint(error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "framefleet")
    return f"try: {path} --help (put -- before names that begin with a dash)"
