"""The committed reference is what the code says."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def load_generator():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()


@pytest.mark.parametrize("name", generator.PAGES)
def test_the_reference_is_current(name):
    committed = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert committed == generator.PAGES[name](), "run: make docs"


def test_every_setting_says_what_it_does():
    silent = [
        line for line in generator.settings_page().splitlines() if line.startswith("| `") and line.endswith("|  |")
    ]
    assert silent == []
