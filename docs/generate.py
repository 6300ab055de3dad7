"""Writes docs/reference from the code: command line, settings, records, errors. `make docs` runs it.

`tests/test_docs.py` fails when a committed page is not what this writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from framefleet import config, errors
from framefleet.cli.app import app
from framefleet.cli.exits import MEANINGS, exit_code_of
from framefleet.engine.captioner import CaptionRecord

REFERENCE = Path(__file__).parent / "reference"
SETTINGS = {
    "framefleet.caption.settings:CaptionSettings": "caption",
    "framefleet.engine.embedded.engine:EmbeddedSettings": "embedded",
    "framefleet.engine.openai_http:OpenAiHttpSettings": "openai_http",
    "framefleet.decode.options:DecodeOptions": "",
    "framefleet.decode.pool_settings:PoolSettings": "",
    "framefleet.serve.openai_app:ServeEngineSettings": "serve_engine",
    "framefleet.serve.proxy_settings:ProxySettings": "proxy",
    "framefleet.serve.fleet_settings:FleetSettings": "fleet",
    "framefleet.bench.diagnosis:DiagnoseSettings": "diagnose",
    "framefleet.bench.tune:TuneSettings": "tune",
    "framefleet.bench.contest:ContestSettings": "bench",
    "framefleet.bench.plan:PlanSettings": "plan",
}
"""Struct -> its section in settings files and environment variables; empty where it has none of its own."""


def cli_page() -> str:
    """Every command with its arguments and options, then the exit codes."""
    root = typer.main.get_command(app)
    intro = "`--help` behind every command says the same, and `--json` works with each of them."
    parts = ["# Command line", intro]
    for name, command in _commands(root):
        parts.append(f"## framefleet {name}\n\n{inspect.cleandoc(command.help or '')}")
        parts.append(table(["", "", "default"], [_parameter(p) for p in command.params]))
    codes = [[f"`{int(code)}`", meaning] for code, meaning in MEANINGS.items()]
    parts.append("## Exit codes\n\n" + table(["code", "meaning"], codes))
    return page(parts)


def settings_page() -> str:
    """Every struct of settings, field by field."""
    intro = "Defaults < file (`FRAMEFLEET_CONFIG=file.toml`) < environment < flags; unknown names are errors."
    parts = ["# Settings", intro]
    for target, section in SETTINGS.items():
        module, _, name = target.partition(":")
        kind = getattr(import_module(module), name)
        parts.append(f"## {name}\n\n{inspect.cleandoc(kind.__doc__ or '')}")
        if section:
            parts.append(f"Section `[{section}]`; environment `{config.PREFIX}{section.upper()}_...`.")
        parts.append(table(["setting", "type", "default", "what it does"], [_setting(f) for f in config.fields(kind)]))
    return page(parts)


def record_page() -> str:
    """What a store keeps of each window."""
    rows = [[f"`{f.name}`", _type(f.type), f.help.replace("\n", " ")] for f in config.fields(CaptionRecord)]
    return page(
        ["# Caption records", inspect.cleandoc(CaptionRecord.__doc__ or ""), table(["field", "type", ""], rows)]
    )


def errors_page() -> str:
    """The tree, and what each error means."""
    rows = [
        [f"`{kind.__name__}`", inspect.cleandoc(kind.__doc__ or ""), kind.blame, kind.retry, str(int(_code(kind)))]
        for kind in _walk(errors.FramefleetError)
    ]
    what, _, rest = inspect.cleandoc(errors.__doc__ or "").partition("\n\n")
    tree, _, rules = rest.partition("\n\n")
    parts = ["# Errors", what, f"```\n{inspect.cleandoc(tree)}\n```", rules]
    return page([*parts, table(["error", "meaning", "blame", "retry", "exit code"], rows)])


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "settings.md": settings_page,
    "records.md": record_page,
    "errors.md": errors_page,
}


def page(parts: list[str]) -> str:
    """Parts of Markdown as one page."""
    return "\n\n".join(["<!-- written by docs/generate.py; do not edit -->", *parts]) + "\n"


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; bars and line ends in cells are kept from breaking it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def _commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its words, those of groups after their group."""
    for name, command in group.commands.items():
        yield above + name, command
        yield from _commands(command, f"{above}{name} ") if hasattr(command, "commands") else ()


def _parameter(parameter: Any) -> list[str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    is_option = parameter.param_type_name == "option"
    shown = ", ".join(f"`{name}`" for name in names) if is_option else f"`{parameter.name.upper()}`"
    metavar = parameter.metavar or ""
    said = (parameter.help or "") + (
        f" Environment: `{parameter.envvar}`." if getattr(parameter, "envvar", None) else ""
    )
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    plain = default is None or default is False or callable(default) or not is_option
    return [f"{shown} {metavar}".strip(), said, "" if plain else f"`{default}`"]


def _setting(field: config.Field) -> list[str]:
    return [f"`{field.name}`", _type(field.type), f"`{field.default!r}`", field.help]


def _type(annotation: Any) -> str:
    text = (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )
    return f"`{text.replace('typing.', '').replace('framefleet.units.', '')}`"


def _walk(kind: type[errors.FramefleetError]) -> Iterator[type[errors.FramefleetError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _walk(child)


def _code(kind: type[errors.FramefleetError]) -> int:
    return exit_code_of(kind(""))


def main() -> None:
    """Write every page."""
    REFERENCE.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (REFERENCE / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
