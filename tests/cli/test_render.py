import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.cli import render


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("clip.mp4", "clip.mp4"),
        ("ひまわり 100% #1?&é.mp4", "ひまわり 100% #1?&é.mp4"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("moc.4pm\u202egpj", r"moc.4pm\u202egpj"),
        (b"\xff.mp4".decode(errors="surrogateescape"), r"\udcff.mp4"),
    ],
)
def test_names_print_safely(name, shown):
    assert render.printable(name) == shown


@given(st.text())
def test_nothing_printed_drives_the_terminal(text):
    assert render.printable(text).isprintable()


@given(st.text(alphabet=st.characters()))
def test_json_is_one_ascii_line_that_reads_back(text):
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        render.show_json({"name": text, "pts_s": np.array([0.5]), "n": np.int64(3)})
    line = out.getvalue()
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line) == {"name": text, "pts_s": [0.5], "n": 3}


def test_a_table_away_from_a_terminal_is_aligned_and_whole(capsys):
    long = "x" * 300
    render.show_table(["name", "n"], [["a", "1"], [long, "22"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == f"{long}  22"
    assert lines[1] == "a" + " " * 301 + "1"


def test_a_table_in_a_terminal_takes_brackets_literally(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    render.show_table(["name"], [["[red]clip[/red]"]])
    assert "[red]clip[/red]" in capsys.readouterr().out
