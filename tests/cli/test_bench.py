"""`framefleet bench` by the command line, on servers of known speeds."""

import json
from pathlib import Path

import pytest
from chat_server import ChatServer
from http_server import serving

from framefleet.cli.app import run
from framefleet.cli.tune import parse_ladder
from framefleet.errors import ConfigError

CLIP = str(Path(__file__).parents[1] / "corpus" / "files" / "base.mp4")
QUICK = ("--trial", "0.2s", "--time", "3s", "--max-tokens", "2", "--concurrency", "4", "--json")


@pytest.fixture
def servers():
    """A quick one and a slow one."""
    with serving(ChatServer(first_s=0.02).app()) as quick, serving(ChatServer(first_s=0.08).app()) as slow:
        yield quick, slow


def test_servers_against_each_other_and_their_recording(servers, tmp_path, capsys):
    quick, slow = servers
    folder = str(tmp_path / "b")
    arms = ("--arm", f"quick={quick}", "--arm", f"slow={slow}")
    code = run(["bench", "run", CLIP, *arms, *QUICK, "--report", folder, "--fail-if-slower", "5%"])
    found = json.loads(capsys.readouterr().out)
    assert code == 6
    assert found["compared"][0]["comparison"]["claim"] == "worse"
    assert (tmp_path / "b" / "report.html").read_text().count("<svg") >= 2
    assert run(["bench", "compare", found["log"], f"{found['log']}:slow", "--fail-if-slower", "5%"]) == 6
    assert run(["bench", "compare", f"{found['log']}:slow", f"{found['log']}:quick", "--fail-if-slower", "5%"]) == 0
    assert "is better than" in capsys.readouterr().out


def test_several_numbers_in_flight_are_a_line_per_arm(servers, tmp_path, capsys):
    arms = ("--arm", f"quick={servers[0]}", "--arm", f"slow={servers[1]}")
    run(["bench", "run", CLIP, *arms, *QUICK, "--time", "1s", "--concurrency", "1,4", "--report", str(tmp_path / "b")])
    found = json.loads(capsys.readouterr().out)
    assert [one["second"].rsplit(":", 1)[1] for one in found["compared"]] == ["slow at 1", "slow at 4"]
    assert "against concurrency" in (tmp_path / "b" / "report.html").read_text()


def test_one_arm_is_nothing_to_compare_with(servers, tmp_path, capsys):
    assert run(["bench", "run", CLIP, "--arm", f"a={servers[0]}", *QUICK, "--report", str(tmp_path)]) == 2
    assert "nothing to compare with" in capsys.readouterr().err


def test_a_plan(capsys):
    assert run(["bench", "plan", "--clips", "1000000", "--rate", "12,11,13", "--machines", "4", "--price", "2"]) == 0
    shown = capsys.readouterr().out
    assert "4 machines (32 GPUs)" in shown
    assert "GPU-hours" in shown
    assert run(["bench", "plan", "--clips", "10", "--rate", "12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 10


def test_wrong_rates(capsys):
    assert run(["bench", "plan", "--clips", "10", "--rate", "a,b"]) == 2
    assert "not a rate" in capsys.readouterr().err


def test_ladders_as_words():
    ladder = parse_ladder("vllm.api_server_count=1,2,4")
    assert (ladder.rungs, ladder.costs, ladder.restarts) == ((1, 2, 4), True, True)
    assert not parse_ladder("mps=off,on").costs
    assert not parse_ladder("concurrency=4,8").restarts
    assert parse_ladder("decode_args.--budget=512 MiB,1 GiB").costs
    for wrong in ("mps", "=1", "mps=1,1"):
        with pytest.raises(ConfigError):
            parse_ladder(wrong)


def test_diagnose_without_a_server(tmp_path, capsys):
    assert run(["diagnose", CLIP, "--endpoint", "http://127.0.0.1:9", "--report", str(tmp_path)]) == 5
    assert "nothing answers there" in capsys.readouterr().err


def test_tune_without_a_fleet(tmp_path, capsys):
    assert run(["tune", CLIP, "--folder", str(tmp_path), "--report", str(tmp_path / "t")]) == 5
    assert "fleet" in capsys.readouterr().err


def test_a_file_of_settings_holds_where_nothing_is_said(tmp_path, monkeypatch, capsys):
    file = tmp_path / "s.toml"
    file.write_text("[plan]\ngpus_per_machine = 2\ntokens = 10\n")
    monkeypatch.setenv("FRAMEFLEET_CONFIG", str(file))
    assert run(["bench", "plan", "--clips", "10", "--rate", "1", "--tokens", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plans"][0]["gpus"] == 2
    assert found["store_bytes"] == 10 * (1500 + 20 * 4.5)
