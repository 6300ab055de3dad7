"""`framefleet export`: captions as Parquet, JSON lines, WebDataset shards or a Hugging Face dataset."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from framefleet.cli.exits import ExitCode
from framefleet.cli.options import Json, Store
from framefleet.cli.render import end_line, note, show, show_json
from framefleet.units import format_bytes

To = Annotated[str, typer.Option("--to", metavar="FORMAT", help="parquet, jsonl, webdataset, hf.", show_default=False)]
Output = Annotated[Path, typer.Option(metavar="PATH", help="A file, or a folder for webdataset and hf.")]
Clip = Annotated[str | None, typer.Option(metavar="GLOB", help="Only clips of this name.", show_default=False)]
Status = Annotated[
    list[str] | None,
    typer.Option(help="Only records of this status: ok, truncated, rejected, failed; repeatable.", show_default=False),
]
_MOST_NAMED = 20


def export(
    to: To,
    output: Output,
    store: Store = "captions.lance",
    clip: Clip = None,
    status: Status = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    as_json: Json = False,
) -> ExitCode:
    """Write the captions of a store elsewhere, in the order of clips. The output appears whole or not at all."""
    import msgspec

    from framefleet.store.export import export as write
    from framefleet.store.sink import open_store
    from framefleet.store.where import Where

    where = msgspec.convert({"clip": clip, "status": known_statuses(status)}, Where)
    with open_store(store) as opened:
        report = write(opened, to, output, where=where, force=force, on_progress=None if as_json else _tell)
    if as_json:
        show_json(report)
        return ExitCode.PARTIAL if report.left_out else ExitCode.OK
    end_line()
    size = f"{report.num_files} file{'s' * (report.num_files != 1)}, {format_bytes(report.num_bytes)}"
    show(f"{report.num_records} records in {report.output} ({report.to}; {size})")
    for one in report.left_out[:_MOST_NAMED]:
        note(f"left out: {one.clip}: {one.reason}")
    if len(report.left_out) > _MOST_NAMED:
        note(f"and {len(report.left_out) - _MOST_NAMED} more (--json names all)")
    return ExitCode.PARTIAL if report.left_out else ExitCode.OK


def known_statuses(names: list[str] | None) -> list[str]:
    """The names, all of them statuses. Raises ConfigError."""
    from typing import get_args

    from framefleet.config import unknown
    from framefleet.engine.captioner import Status as Known

    allowed = list(get_args(Known))
    for name in names or []:
        if name not in allowed:
            raise unknown("status", name, allowed)
    return names or []


def _tell(num_records: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{num_records} records\x1b[K")
