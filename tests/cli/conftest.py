"""Commands run in this process, as the console entry point runs them."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from framefleet.cli.app import run

CORPUS = Path(__file__).parent.parent / "corpus" / "files"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def json_lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def framefleet(capsys, monkeypatch):
    """`framefleet("probe", clip)`: the exit code and what was printed."""
    monkeypatch.delenv("FRAMEFLEET_DEBUG", raising=False)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def base() -> Path:
    return CORPUS / "base.mp4"


@pytest.fixture
def corpus() -> Path:
    return CORPUS
