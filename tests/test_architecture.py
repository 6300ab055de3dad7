"""What the design promises of the code as a whole."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from framefleet import errors

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_FILE_LINES = 400
MAX_COMMAND_LINES = 200
MAX_FUNCTION_LINES = 60
P90_FUNCTION_LINES = 40
MEDIAN_FUNCTION_LINES = 12
HEAVY = (
    "torch",
    "transformers",
    "vllm",
    "ray",
    "av",
    "cv2",
    "pyarrow",
    "lance",
    "torchcodec",
    "PIL",
    "rich",
    "typer",
    "httpx",
)


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_importing_the_package_is_free():
    assert loaded_by("import framefleet").isdisjoint({*HEAVY, "numpy", "msgspec"})


def test_the_command_line_starts_without_heavy_libraries():
    light = {"rich", "typer"}
    assert loaded_by("import framefleet.cli.app").isdisjoint(set(HEAVY) - light)


def test_layers_and_library_borders_hold():
    answer = subprocess.run(
        ["lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, env=_env()
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def _env() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_error_tree_drawn_is_the_tree_in_code():
    drawn = {}
    for line in (errors.__doc__ or "").splitlines():
        if match := re.fullmatch(r"    ([│├└─ ]*)(\w+) +(\w+) +(\w+)", line):
            bars, name, blame, retry = match.groups()
            drawn[name] = (len(bars) // 4, blame, retry)
    assert drawn.pop("FramefleetError") == (0, "blame", "retry")  # the headings stand in its line
    assert drawn == dict(tree(errors.FramefleetError, 1))


def tree(kind: type[errors.FramefleetError], depth: int):
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child.__name__, (depth, child.blame, child.retry)
            yield from tree(child, depth + 1)


def test_every_error_lives_in_the_tree():
    outside = [
        f"{path.name}: {node.name}"
        for path in SOURCES
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(getattr(base, "id", "").endswith(("Error", "Exception")) for base in node.bases)
    ]
    assert outside == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_files_and_functions_are_short(path: Path):
    text = path.read_text()
    limit = MAX_COMMAND_LINES if path.parent.name == "cli" else MAX_FILE_LINES
    assert len(text.splitlines()) <= limit
    assert {name: n for name, n in function_lines(text) if n > MAX_FUNCTION_LINES} == {}


def test_most_functions_are_short():
    lengths = sorted(n for path in SOURCES for _, n in function_lines(path.read_text()))
    assert lengths[len(lengths) // 2] <= MEDIAN_FUNCTION_LINES
    assert lengths[len(lengths) * 9 // 10] <= P90_FUNCTION_LINES


def function_lines(text: str):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or 0) - node.body[0].lineno + 1  # a long list of options is no body


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_names_say_what_a_thing_is(path: Path):
    assert not re.search(r"manager|helper|util|handler", path.stem)
