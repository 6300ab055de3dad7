"""How commands speak: tables and lines for people, JSON for programs. Names with odd characters print safely."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


def printable(text: str) -> str:
    """`text` with control, direction and undecodable characters escaped, so that no name can drive the terminal.

    >>> printable("a\\nb\\x1b[31m")
    'a\\\\nb\\\\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def speak_any_encoding() -> None:
    """Let the standard streams print every name: what the terminal's encoding lacks is escaped, not fatal."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


def show(text: str = "") -> None:
    """A line for people on stdout; each line of `text` is made printable."""
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")) + "\n")


def note(text: str) -> None:
    """A line for people on stderr."""
    sys.stderr.write(f"{printable(text)}\n")


def end_line() -> None:
    """Clear what a progress line left in the terminal."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def show_json(value: Any) -> None:
    """One JSON object on one line (ASCII, so that any pipe carries it; stable keys come from the caller)."""
    sys.stdout.write(json.dumps(msgspec.to_builtins(value, enc_hook=_encode_rest)) + "\n")
    sys.stdout.flush()


def builtins_of(value: Any) -> dict[str, Any]:
    """A struct as a dict of plain values."""
    built: dict[str, Any] = msgspec.to_builtins(value)
    return built


def _encode_rest(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return value.tolist()
    return str(value)


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A ruled table in a terminal; elsewhere aligned columns, one row a line, nothing cut off."""
    safe = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, safe, title)
    else:
        show("\n".join(aligned([columns, *safe])))


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in names are no markup
    Console().print(table)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def show_facts(facts: Mapping[str, str]) -> None:
    """Names and values, one pair a line."""
    show("\n".join(aligned([[f"{name}:", value] for name, value in facts.items()])))
