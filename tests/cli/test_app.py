import json

import pytest
import typer
from rich.text import Text

from framefleet import errors
from framefleet._version import __version__
from framefleet.cli import app


def test_version(framefleet):
    assert framefleet("--version").out == f"{__version__}\n"


def test_without_a_command_the_help_page_and_no_more(framefleet):
    answer = framefleet()
    assert answer.code == 2
    assert "probe" in answer.out + answer.err
    assert "Error" not in answer.err


@pytest.mark.parametrize(
    "wrong", [["--nope"], ["nope"], ["decode"], ["decode", "x.mp4", "--num-frames", "0"], ["probe", "--json"]]
)
def test_a_wrong_command_line_is_one_line_with_a_remedy(framefleet, wrong):
    answer = framefleet(*wrong)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert "try: framefleet" in answer.err


def test_an_error_is_one_line_with_the_remedy(framefleet, monkeypatch):
    def fail(*_, **__):
        raise errors.EngineLost("the engine\ndied", given="pid 7", remedy="more memory")

    monkeypatch.setattr("framefleet.media.scan.scan", fail)
    answer = framefleet("probe", "x.mp4")
    assert answer.code == 5
    assert answer.err == "framefleet: the engine\\ndied; got pid 7; try: more memory\n"


def test_an_error_in_json_has_stable_keys(framefleet):
    answer = framefleet("decode", "no-such-file.mp4", "--json")
    assert answer.code == 4
    assert answer.json["exit_code"] == 4
    error = answer.json["error"]
    assert set(error) == {"kind", "message", "given", "allowed", "remedy", "blame", "retry"}
    assert (error["kind"], error["blame"]) == ("SourceNotFound", "input")


def test_our_own_fault_says_so_without_a_traceback(framefleet, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("framefleet.media.scan.scan", fail)
    answer = framefleet("probe", "x.mp4")
    assert answer.code == 1
    assert len(answer.err.splitlines()) == 1
    assert "FRAMEFLEET_DEBUG=1" in answer.err
    monkeypatch.setenv("FRAMEFLEET_DEBUG", "1")
    assert app.run(["probe", "x.mp4"]) == 1


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("FRAMEFLEET_DEBUG", "1")
    assert app.run(["decode", "no-such-file.mp4"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_interrupted(framefleet, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("framefleet.media.scan.scan", interrupt)
    assert framefleet("probe", "x.mp4").code == 130


def test_every_command_takes_json():
    import typer

    def leaves(group):
        for command in group.commands.values():
            yield from leaves(command) if hasattr(command, "commands") else [command]

    commands = list(leaves(typer.main.get_command(app.app)))
    without = [command.name for command in commands if not any("--json" in p.opts for p in command.params)]
    assert len(commands) > 12
    assert without == []


def test_completion_script_is_there(framefleet, monkeypatch):
    monkeypatch.setenv("_FRAMEFLEET_COMPLETE", "source_bash")
    with pytest.raises(SystemExit):
        app.run([])


def test_usage_errors_in_json_too(framefleet):
    answer = framefleet("decode", "--json")
    assert answer.code == 2
    assert json.loads(answer.out)["error"]["kind"] == "UsageError"


def helps(command, name="framefleet"):
    """Name -> help text of every command, option and argument."""
    yield name, command.help or ""
    yield from ((f"{name} {one.name}", getattr(one, "help", None) or "") for one in command.params)
    for below, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {below}")


def test_no_word_of_a_help_text_is_lost_as_markup():
    found = list(helps(typer.main.get_command(app.app)))
    assert len(found) > 100
    assert [name for name, text in found if Text.from_markup(text).plain != text] == []
