"""`framefleet proxy` as a process, and what it refuses to start with."""

import asyncio
import json
import signal
import sys

import httpx
import pytest
from stub_replicas import StubReplica, chat


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "upstreams must be given"),
        (["--upstream", "localhost:8000"], "not the address of a server"),
        (["--upstream", "http://a:1", "--policy", "least-work"], "did you mean 'least_work'"),
        (["--upstream", "http://a:1", "--api-keys", "missing.toml"], "cannot read the settings file"),
        (["--upstream", "http://a:1", "--host", "192.0.2.1"], "cannot listen there"),
    ],
)
def test_what_cannot_work_is_said_at_once(framefleet, arguments, said):
    answer = framefleet("proxy", *arguments)
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_told_to_stop(number):
    async def story():
        stub = StubReplica("r0")
        await stub.start()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from framefleet.cli.app import main; main()",
            *("proxy", "--upstream", stub.url, "--port", "0", "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            started = json.loads(await process.stdout.readline())
            async with httpx.AsyncClient(base_url=started["address"], timeout=30) as client:
                answer = await client.post("/v1/chat/completions", json=chat())
                assert answer.json()["by"] == "r0"
            process.send_signal(number)
            _, errors = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
            await stub.stop()
        assert process.returncode == 0, errors.decode()
        assert '"end":"answered"' in errors.decode()
        assert "Traceback" not in errors.decode()

    asyncio.run(story())
