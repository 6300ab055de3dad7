"""What README, CONTRIBUTING and docs tell people to type is what the code takes."""

import ast
import asyncio
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from framefleet.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
CORPUS = ROOT / "tests" / "corpus" / "files"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Every `framefleet ...` of a page that is meant to be typed: lines of code blocks and inline code."""
    text = page.read_text()
    lines = [line.removeprefix("$ ") for block in blocks(text, r"\w*") for line in block.splitlines()]
    inline = re.findall(r"`(framefleet [^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    typed = [one.strip() for one in (*lines, *inline)]
    return [one for one in typed if re.match(r"framefleet [a-z]", one) and "..." not in one]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_are_taken(page):
    root = typer.main.get_command(app)
    for line in commands(page):
        name, *arguments = shlex.split(line, comments=True)[1:]
        assert name in root.commands, line
        command = root.commands[name]
        while arguments and hasattr(command, "commands"):
            name, *arguments = arguments
            assert name in command.commands, line
            command = command.commands[name]
        if arguments:
            command.make_context(name, arguments)  # raises for an unknown option or a wrong value


def test_the_pages_hold_commands_at_all():
    assert len(commands(ROOT / "docs" / "guides" / "caption-a-collection.md")) >= 2


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_make_verbs_exist(page):
    verbs = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for block in (*blocks(page.read_text(), r"\w*"), *re.findall(r"`(make [^`\n]+)`", page.read_text())):
        for verb in re.findall(r"^(?:\$ )?make ([\w-]+)", block, flags=re.MULTILINE):
            assert verb in verbs, verb


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_examples_run(page, tmp_path, monkeypatch):
    examples = blocks(page.read_text(), "python")
    if not examples:
        return
    (tmp_path / "clips").mkdir()
    for copy in ("clip.mp4", "clips/clip.mp4"):
        shutil.copy(CORPUS / "base.mp4", tmp_path / copy)
    monkeypatch.chdir(tmp_path)
    for example in examples:
        code = compile(example, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, {})
        if waiting is not None:
            asyncio.run(waiting)
