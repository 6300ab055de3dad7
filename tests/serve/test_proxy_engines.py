"""The proxy in front of our own engine servers, as processes: one dies, and no request is lost."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
from stub_replicas import QUICK, until

from framefleet.serve.proxy import Proxy, listener, serve_proxy
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import StaticFleet

CORPUS = Path(__file__).parents[1] / "corpus" / "files"
CLIPS = ["base.mp4", "three_frames.mp4", "rot90.mp4", "one_frame.mp4"]
BROKEN = ["html_404.mp4", "zero_bytes.mp4"]


def engine(port):
    flags = [
        "--engine",
        "fake",
        "--port",
        str(port),
        "--decode-workers",
        "1",
        "--allowed-local-media-path",
        str(CORPUS),
    ]
    return subprocess.Popen([sys.executable, "-m", "framefleet.serve.openai_app", *flags], stderr=subprocess.DEVNULL)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def question(clip):
    content = [
        {"type": "text", "text": "Describe."},
        {"type": "video_url", "video_url": {"url": f"file://{CORPUS / clip}"}},
    ]
    return {"messages": [{"role": "user", "content": content}], "media_io_kwargs": {"video": {"num_frames": 2}}}


async def through_the_proxy(ports, engines):
    settings = ProxySettings(**{**QUICK, "probe_s": 1, "queue_timeout_s": 60})
    proxy = Proxy(StaticFleet.of_urls(f"http://127.0.0.1:{port}" for port in ports), settings)
    with listener("127.0.0.1", 0) as at:
        serving = asyncio.create_task(serve_proxy(proxy, at))
        base_url = f"http://127.0.0.1:{at.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base_url, timeout=90) as client:
            await until(lambda: all(r.state == "ready" for r in proxy.fleet.replicas()), 120)
            answers = await ask_while_one_dies(client, engines[0])
            broken = [await client.post("/v1/chat/completions", json=question(clip)) for clip in BROKEN]
            await until(lambda: proxy.fleet.replicas()[0].state == "lost")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    return answers, broken


async def ask_while_one_dies(client, victim):
    gate, answers = asyncio.Semaphore(6), []

    async def ask(clip):
        async with gate:
            answers.append((clip, await client.post("/v1/chat/completions", json=question(clip))))
            if sum(answer.headers["x-framefleet-replica"] == "r0" for _, answer in answers) == 2:
                victim.send_signal(signal.SIGKILL)

    await asyncio.gather(*(ask(clip) for clip in CLIPS * 10))
    return answers


def test_no_request_is_lost_when_a_replica_dies():
    ports = [free_port(), free_port()]
    engines = [engine(port) for port in ports]
    try:
        answers, broken = asyncio.run(through_the_proxy(ports, engines))
    finally:
        for process in engines:
            process.terminate()
            process.wait(60)
    assert [answer.status_code for _, answer in answers] == [200] * 40
    assert {answer.headers["x-framefleet-replica"] for _, answer in answers} == {"r0", "r1"}
    texts = {(clip, answer.json()["choices"][0]["message"]["content"]) for clip, answer in answers}
    assert len(texts) == len(CLIPS)  # whoever answered
    assert [answer.status_code for answer in broken] == [400, 400]
