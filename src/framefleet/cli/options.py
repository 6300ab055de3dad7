"""Options that several commands share, declared once so that they read and mean the same everywhere."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from framefleet.errors import ConfigError
from framefleet.units import Span, parse_duration_ns

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Deadline of one clip.")]
Backend = Annotated[str, typer.Option(help="Decode library, or auto (FRAMEFLEET_BACKEND, if set).")]
NumFrames = Annotated[int | None, typer.Option(min=1, help="Frames per clip, evenly spread.", show_default="16")]
Fps = Annotated[float | None, typer.Option(min=0.001, help="Frames per second instead.", show_default=False)]
MaxPixels = Annotated[
    int | None, typer.Option(min=1, help="Pixels of one frame at most; the shape is kept.", show_default=False)
]
Store = Annotated[str, typer.Option("--store", metavar="STORE", help="A store of captions.")]
Sheet = Annotated[
    Path | None, typer.Option("--sheet", metavar="FILE.png", help="Draw a contact sheet.", show_default=False)
]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.", show_default="8080")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No line per request.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="The fleet's own: logs, revisions, sockets (FRAMEFLEET_FOLDER).",
        show_default="~/.local/state/framefleet/fleet",
    ),
]  # fmt: skip


def log_requests(*, is_quiet: bool) -> None:
    """Send the log to stderr, with a line per request unless quiet."""
    from framefleet.telemetry import set_up_logging

    set_up_logging("warning" if is_quiet else "info")
    logging.getLogger("framefleet.serve.requests").setLevel(logging.WARNING if is_quiet else logging.INFO)


def only_told(context: typer.Context, flags: dict[str, Any], **options: str) -> dict[str, Any]:
    """The flags whose options were given on the command line or in their own variable: all others may come from a
    file of settings. `options`: setting -> option, where the two have different names."""

    def is_told(setting: str) -> bool:
        source = context.get_parameter_source(options.get(setting, setting))
        return source is not None and source.name != "DEFAULT"

    return {setting: value for setting, value in flags.items() if is_told(setting)}


def parse_json(text: str) -> dict[str, Any]:
    """A JSON object. Raises ConfigError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError("not JSON", given=repr(text), allowed=str(error)) from error
    if not isinstance(found, dict):
        raise ConfigError("not a JSON object", given=repr(text), allowed='like {"name": 1}')
    return found


def parse_counts(text: str) -> tuple[int, ...]:
    """`16` or `8,16,32`. Raises ConfigError."""
    if not all(word.isdecimal() and int(word) for word in text.split(",")):
        raise ConfigError("not counts", given=repr(text), allowed="numbers above 0, like 16 or 8,16,32")
    return tuple(int(word) for word in text.split(","))


def parse_rates(text: str) -> tuple[float, float | None, float | None]:
    """`12` or `12,11,13`: an estimate and the ends of its interval, where they are told. Raises ConfigError."""
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 3):
        raise ConfigError("not a rate", given=repr(text), allowed="R or R,LOW,HIGH, in requests/s")
    return (values[0], None, None) if len(values) == 1 else (values[0], values[1], values[2])


def parse_size(text: str | None) -> tuple[int, int] | None:
    """`640x360` to (640, 360). Raises ConfigError."""
    if text is None:
        return None
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ConfigError("not a size", given=repr(text), allowed="WIDTHxHEIGHT, for example 640x360")
    return int(width), int(height)


def parse_span(text: str | None) -> Span | None:
    """`10s-20s`, `1m30s-2m` or `0-5` to a half-open span. Raises ConfigError."""
    if text is None:
        return None
    start, dash, end = text.partition("-")
    if not dash:
        raise ConfigError("not a span", given=repr(text), allowed="START-END, for example 10s-20s")
    return Span(parse_duration_ns(start), parse_duration_ns(end))
