"""`framefleet serve` and `fleet` up to where processes begin; the rest is in tests/e2e/test_fleet.py."""

import pytest

from framefleet.serve import host
from framefleet.serve.fleet_settings import FleetSettings
from framefleet.serve.revisions import Revisions

HOST = host.Host(
    gpus=(host.Gpu("0"), host.Gpu("1")), cores=(0, 1), engine=host.EngineEnvironment(vllm="0.32.0", framefleet="1")
)


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "look_at_host", lambda _="": HOST)
    monkeypatch.setenv("FRAMEFLEET_FOLDER", str(tmp_path / "fleet"))
    return tmp_path


def test_a_plan_is_printed_and_nothing_started(framefleet, place):
    answer = framefleet("serve", "Qwen/Q", "--plan", "--replicas", "2")
    assert answer.code == 0
    names = [line.split(":")[0] for line in answer.out.splitlines()]
    assert names == ["decode0", "decode1", "r0", "r1", "the decode service takes 5.8 GiB of each GPU, beside vLLM"]
    assert not (place / "fleet").exists()


def test_a_plan_as_json_is_exact(framefleet):
    plan = framefleet("serve", "Qwen/Q", "--plan", "--json").json
    assert (plan["engine"], len(plan["processes"])) == ("vllm", 4)
    assert plan["processes"][3]["environ"]["CUDA_VISIBLE_DEVICES"] == "1"


def test_it_goes_on_with_what_it_last_had(framefleet, place):
    assert "which model?" in framefleet("serve", "--plan").err
    (place / "fleet" / "revisions").mkdir(parents=True)
    revisions = Revisions(place / "fleet" / "revisions")
    begun = revisions.begin(FleetSettings(model="Org/Last", engine="embedded"), "a test")
    revisions.write(
        type(begun)(**{name: getattr(begun, name) for name in begun.__struct_fields__} | {"outcome": "applied"})
    )
    answer = framefleet("serve", "--plan")
    assert "--model Org/Last" in answer.out
    assert "revision 1 of" in answer.err
    assert framefleet("fleet", "revisions", "--json").json["revisions"][0]["origin"] == "a test"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["serve", "Qwen/Q", "--replicas", "many"], 2, "wrong value for replicas"),
        (["serve", "Qwen/Q", "--engine", "vlm"], 2, "wrong value for engine"),
        (["serve", "--config", "/nosuch.toml"], 2, "cannot read the settings file"),
        (["fleet", "status"], 5, "no fleet runs from this folder"),
        (["fleet", "drain"], 2, "Missing argument"),
        (["fleet"], 2, ""),
    ],
)
def test_what_cannot_work_is_said_at_once(framefleet, words, code, said):
    answer = framefleet(*words)
    assert (answer.code, said in answer.err) == (code, True)
