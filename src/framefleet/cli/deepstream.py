"""`framefleet deepstream ...`: what the deepstream backend needs on a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json
from framefleet.cli.render import note, show, show_json

deepstream = typer.Typer(name="deepstream", help="What the deepstream backend needs.", no_args_is_help=True)


@deepstream.callback()
def _group() -> None:
    """A group even while it has one command."""


Output = Annotated[Path, typer.Option("--output", metavar="DIR", help="Where; must not exist, or be empty.")]
PythonVersion = Annotated[
    str, typer.Option("--python", metavar="3.X", help="Version the bundle is for.", show_default="this Python's")
]


@deepstream.command()
def bundle(output: Output = Path("gst-bundle"), python: PythonVersion = "", as_json: Json = False) -> ExitCode:
    """Make a folder with GStreamer and PyGObject that works wherever it is copied, for machines where nobody may
    install packages. Needs Debian or Ubuntu (no root), and their package servers; another Python than the
    distribution's also needs that Python and a C compiler.
    """
    from framefleet.decode.deepstream.bundle import build_bundle
    from framefleet.decode.deepstream.gstreamer import BUNDLE_VARIABLE
    from framefleet.decode.deepstream.pygobject import Python
    from framefleet.units import format_bytes

    built = build_bundle(output, Python.of(python), note)
    if as_json:
        show_json(built)
        return ExitCode.OK
    tried = "imported and run by it" if built.is_tried else "not tried: that Python is not here"
    show(f"GStreamer for Python {built.python}, {format_bytes(built.size_bytes)}, {tried}")
    show(f"use it: {BUNDLE_VARIABLE}={built.folder.resolve()}")
    return ExitCode.OK
