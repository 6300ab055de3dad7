"""Two real vLLM servers behind the proxy, our decoder in both. In this order: the last test kills one of them."""

import base64
import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from corpus_truth import all_truths
from vllm_servers import BUNDLED, captioned, states, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
BROKEN = [truth.path for truth in all_truths() if truth.must_fail]


def ask(url: str, clip: Path) -> tuple[int, str]:
    """Status and body of the answer to one clip."""
    video = {"url": "data:video/mp4;base64," + base64.b64encode(clip.read_bytes()).decode()}
    content = [{"type": "video_url", "video_url": video}, {"type": "text", "text": "Describe."}]
    body = {"model": BUNDLED, "messages": [{"role": "user", "content": content}], "max_tokens": 8}
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def at(proxy) -> tuple[str, ...]:
    """Flags of `framefleet caption`; without a model it would ask for the list of them, which counts as a request."""
    return "--endpoint", proxy.url, "--model", BUNDLED


def command(proxy, name: str, what: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{proxy.url}/fleet/{name}/{what}", method="POST"), timeout=10)


def served(proxy) -> dict[str, int]:
    """Requests answered well by each replica, as the proxy counts them."""
    metrics = urllib.request.urlopen(proxy.url + "/metrics", timeout=10).read().decode()
    counts = re.findall(r"^framefleet_proxy_requests_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    labelled = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(count)) for labels, count in counts]
    names = {labels["replica"] for labels, _ in labelled}
    return {
        name: int(sum(n for labels, n in labelled if (labels["replica"], labels["status"]) == (name, "200")))
        for name in names
    }


@pytest.mark.parametrize("clip", BROKEN, ids=lambda path: path.name)
def test_a_broken_clip_is_the_clients_fault(replicas, proxy, clip):
    for url in [*(server.url for server in replicas), proxy.url]:
        status, body = ask(url, clip)
        assert status == 400, body
        assert len(json.loads(body)["error"]["message"]) > 20


def test_a_drained_replica_is_given_nothing(proxy, scenes, tmp_path):
    command(proxy, "r0", "drain")
    until("r0 drained", lambda: states(proxy) == ["drained", "ready"])
    before = served(proxy)
    captioned(scenes[:6], tmp_path / "captions.jsonl", *at(proxy))
    after = served(proxy)
    assert after.get("r0") == before.get("r0")
    assert after["r1"] - before.get("r1", 0) == 6
    command(proxy, "r0", "undrain")
    until("r0 ready", lambda: states(proxy) == ["ready", "ready"])


def test_no_request_is_lost_when_a_replica_is_killed(replicas, proxy, clips, expected, tmp_path):
    before = served(proxy)

    def kill_midway():
        until("a third captioned", lambda: sum(served(proxy).values()) - sum(before.values()) >= len(clips) / 3, 300)
        replicas[0].kill()

    killing = threading.Thread(target=kill_midway)
    killing.start()
    records = captioned(clips, tmp_path / "captions.jsonl", *at(proxy), "--concurrency", "16")
    killing.join()
    shares = {name: count - before.get(name, 0) for name, count in served(proxy).items()}
    assert len(records) == len(clips) == sum(shares.values())
    assert min(shares["r0"], shares["r1"]) > len(clips) / 10
    assert {record["attempts"] for record in records} == {1}  # the proxy tried again, the client never had to
    for number, record in enumerate(records):
        truth = expected[number % len(expected)]
        assert record["status"] == "ok", record
        assert (record["text"], record["prompt_tokens"]) == (truth["text"], truth["prompt_tokens"])
    assert states(proxy)[0] == "lost"
    assert replicas[0].group() == []
