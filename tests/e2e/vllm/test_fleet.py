"""`framefleet serve` over two real vLLM servers, our decoder in both, in the order of a fleet's life."""

import json
import os
import re
import signal
import threading
import urllib.request
from pathlib import Path

import pytest
from corpus_truth import all_truths
from vllm_servers import BUNDLED, ask, captioned, until

from framefleet.decode.service.client import ServiceClient

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
BROKEN = [truth.path for truth in all_truths() if truth.must_fail]
READY = ["ready", "ready"]
FLAG = "--max-num-seqs"


def at(fleet) -> tuple[str, ...]:
    """Flags of `framefleet caption`; without a model it would ask for the list of them, which counts as a request."""
    return "--endpoint", fleet.url, "--model", BUNDLED


def served(fleet) -> dict[str, int]:
    """Requests answered well by each replica, as the proxy counts them."""
    metrics = urllib.request.urlopen(fleet.url + "/metrics", timeout=10).read().decode()
    counts = re.findall(r"^framefleet_proxy_requests_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    labelled = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(count)) for labels, count in counts]
    found = {"r0": 0, "r1": 0}
    for labels, count in labelled:
        if labels["status"] == "200":
            found[labels["replica"]] += int(count)
    return found


@pytest.mark.parametrize("clip", BROKEN, ids=lambda path: path.name)
def test_a_broken_clip_is_the_clients_fault(fleet, clip):
    status, body = ask(fleet.url, clip)
    assert status == 400, body
    assert len(json.loads(body)["error"]["message"]) > 20


def test_a_drained_replica_is_given_nothing(fleet, scenes, tmp_path):
    fleet.tell("drain", "r0", "--wait")
    assert fleet.states() == ["drained", "ready"]
    before = served(fleet)
    captioned(scenes[:6], tmp_path / "captions.jsonl", *at(fleet))
    assert served(fleet) == {"r0": before["r0"], "r1": before["r1"] + 6}
    fleet.tell("undrain", "r0")
    until("r0 ready", lambda: fleet.states() == READY)


def test_no_request_is_lost_when_a_replica_is_killed(fleet, clips, expected, tmp_path):
    before = served(fleet)
    victim = fleet.replicas()[0]["pid"]

    def kill_midway():
        until("a third captioned", lambda: sum(served(fleet).values()) - sum(before.values()) >= len(clips) / 3, 300)
        os.killpg(victim, signal.SIGKILL)

    killing = threading.Thread(target=kill_midway)
    killing.start()
    records = captioned(clips, tmp_path / "captions.jsonl", *at(fleet), "--concurrency", "16")
    killing.join()
    shares = {name: count - before[name] for name, count in served(fleet).items()}
    assert len(records) == len(clips) == sum(shares.values())
    assert min(shares.values()) > len(clips) / 10
    assert {record["attempts"] for record in records} == {1}  # the proxy tried again, the client never had to
    for number, record in enumerate(records):
        truth = expected[number % len(expected)]
        assert record["status"] == "ok", record
        assert (record["text"], record["prompt_tokens"]) == (truth["text"], truth["prompt_tokens"])


def test_the_killed_replica_is_started_again(fleet):
    until("r0 is back", lambda: fleet.states() == READY, 300)
    assert [replica["restarts"] for replica in fleet.replicas()] == [1, 0]


def test_its_clips_are_decoded_by_the_service(fleet, clips):
    commands = [command for command in fleet.commands() if "framefleet.decode.service" in command]
    sockets = {command[command.index("--socket") + 1] for command in commands}
    assert len(sockets) == 1  # one service for both replicas, which no replica's death has taken along
    assert ServiceClient(Path(sockets.pop())).stats().done >= len(clips)


def test_a_setting_is_rolled_out_and_back(fleet, settings, scenes, expected, tmp_path):
    changed = tmp_path / "fleet.toml"
    changed.write_text(settings.read_text().replace("max_num_seqs = 8", "max_num_seqs = 4"))
    assert fleet.tell("apply", str(changed))["outcome"] == "applied"
    assert {replica["revision"] for replica in fleet.replicas()} == {2}
    assert fleet.tell("rollback")["outcome"] == "applied"
    assert fleet.states() == READY
    words = [command[command.index(FLAG) + 1] for command in fleet.commands() if FLAG in command]
    assert set(words) == {"8"}
    records = captioned(scenes[:4], tmp_path / "captions.jsonl", *at(fleet))
    assert [record["text"] for record in records] == [record["text"] for record in expected[:4]]
