"""What the proxy costs: milliseconds added to a request, and bytes of body per second of one core.

    python benchmarks/proxy/run.py [--rounds 7] [--requests 200] [--body-mb 200]

Client, proxy and stub upstream are three processes over the loopback. Arms are interleaved (direct, proxied, proxied,
direct). CPU seconds of the proxy's process come from /proc, so that neighbours on a shared machine do not count; wall
figures are given beside them. Writes raw.json after each round, then result.json; one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from framefleet.serve.cost import HEAD_BYTES
from framefleet.serve.simulate import SimulatedFleet, proxy_limit_per_s, simulate

HERE = Path(__file__).parent
SMALL = json.dumps({
    "model": "stub", "max_tokens": 150, "media_io_kwargs": {"video": {"num_frames": 16}},
    "messages": [{"role": "user", "content": [
        {"type": "text", "text": "Describe this video in one sentence."},
        {"type": "video_url", "video_url": {"url": "file:///data/clips/0001.mp4"}}]}],
}).encode()  # fmt: skip
HEAD = (
    b'{"model": "stub", "messages": [{"role": "user", "content": '
    b'[{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,'
)
TAIL = b'"}}]}], "max_tokens": 150}'
CAPTIONS_PER_S = 3.17
"""Of one H200, decode-free (vLLM 0.26.0, 8B shape)."""


class Connection:
    """A kept connection of a client that does nothing but HTTP."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, *parts: bytes | memoryview, num_bytes: int) -> float:
        """Seconds from the first byte sent to the last received."""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {num_bytes}\r\n\r\n".encode()
        started_s = time.perf_counter()
        self.socket.sendall(head + parts[0])
        for part in parts[1:]:
            self.socket.sendall(part)
        answer = b""
        while b"finish_reason" not in answer:
            received = self.socket.recv(65536)
            assert received, answer
            answer += received
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return time.perf_counter() - started_s


def cpu_s_of(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(stack: ExitStack, *command: str) -> tuple[int, str]:
    """A process that ends with the benchmark: its pid and the first line it prints."""
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    return process.pid, process.stdout.readline()


def latencies_ms(port: int, num_requests: int) -> list[float]:
    """Of small requests, one after another."""
    connection = Connection(port)
    return [round(connection.ask(SMALL, num_bytes=len(SMALL)) * 1000, 4) for _ in range(num_requests)]


def upload_s(port: int, num_bytes: int) -> float:
    """Of one large request."""
    connection = Connection(port)
    chunk, num_chunks = memoryview(b"A" * (1 << 20)), num_bytes >> 20
    total = len(HEAD) + len(TAIL) + num_chunks * len(chunk)
    return connection.ask(HEAD, *[chunk] * num_chunks, TAIL, num_bytes=total)


def one_round(ports: dict[str, int], pid: int, arguments: argparse.Namespace) -> dict:
    """Each arm twice, interleaved."""
    found = {"direct_ms": [], "proxied_ms": [], "direct_upload_s": [], "proxied_upload_s": []}
    cpu_s = cpu_s_of(pid)
    for arm in ("direct", "proxied", "proxied", "direct"):
        found[f"{arm}_ms"] += latencies_ms(ports[arm], arguments.requests)
    found["cpu_s_per_request"] = (cpu_s_of(pid) - cpu_s) / (2 * arguments.requests)
    cpu_s = cpu_s_of(pid)
    for arm in ("direct", "proxied", "proxied", "direct"):
        found[f"{arm}_upload_s"].append(upload_s(ports[arm], arguments.body_mb << 20))
    found["cpu_s_per_upload"] = (cpu_s_of(pid) - cpu_s) / 2
    return found


def summary(rounds: list[dict], body_bytes: int) -> dict[str, float]:
    """Medians over rounds."""
    middle = statistics.median
    added = [middle(r["proxied_ms"]) - middle(r["direct_ms"]) for r in rounds]
    return {
        "added_p50_ms": round(middle(added), 3),
        "added_p50_ms_worst_round": round(max(added), 3),
        "added_p50_ms_best_round": round(min(added), 3),
        "body_mb_s": round(middle(body_bytes / 1e6 / r["cpu_s_per_upload"] for r in rounds)),
        "body_mb_s_wall": round(middle(body_bytes / 1e6 / middle(r["proxied_upload_s"]) for r in rounds)),
        "body_mb_s_wall_best": round(max(body_bytes / 1e6 / min(r["proxied_upload_s"]) for r in rounds)),
        "direct_mb_s_wall": round(middle(body_bytes / 1e6 / middle(r["direct_upload_s"]) for r in rounds)),
        "cpu_ms_per_request": round(1000 * middle(r["cpu_s_per_request"] for r in rounds), 3),
    }


def scaling(figures: dict[str, float]) -> list[dict]:
    """Replicas behind one proxy with the measured costs, for requests that name a clip and for those that hold it."""
    rows = []
    for body_bytes in (500, 15_000_000):
        costs = {
            "proxy_request_s": figures["cpu_ms_per_request"] / 1000,
            "proxy_bytes_per_s": figures["body_mb_s"] * 1e6,
            "body_bytes": body_bytes,
        }
        for num_replicas in (1, 2, 4, 8, 16, 32):
            fleet = SimulatedFleet(
                speeds=(CAPTIONS_PER_S,) * num_replicas, num_requests=max(200, 3200 // num_replicas), **costs
            )
            run = simulate(fleet)
            rows.append({
                "body_bytes": body_bytes, "replicas": num_replicas, "captions_per_s": round(run.requests_per_s, 2),
                "of_linear": round(run.requests_per_s / (num_replicas * CAPTIONS_PER_S), 3),
                "proxy_busy": round(run.proxy_busy, 3), "proxy_limit_per_s": round(proxy_limit_per_s(fleet), 1),
            })  # fmt: skip
    return rows


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--body-mb", type=int, default=200)
    arguments = parser.parse_args()
    rounds: list[dict] = []
    with ExitStack() as stack:
        _, line = started(stack, sys.executable, str(HERE / "stub.py"))
        ports = {"direct": int(line)}
        start = "from framefleet.cli.app import main; main()"
        flags = ("proxy", "--upstream", f"http://127.0.0.1:{line.strip()}", "--port", "0", "--json", "--quiet")
        pid, line = started(stack, sys.executable, "-c", start, *flags)
        ports["proxied"] = int(json.loads(line)["address"].rpartition(":")[2])
        latencies_ms(ports["proxied"], 50)
        for _ in range(arguments.rounds):
            load = os.getloadavg()[0]
            rounds.append({**one_round(ports, pid, arguments), "load_before": load})
            (HERE / "raw.json").write_text(json.dumps(rounds) + "\n")
    figures = summary(rounds, (arguments.body_mb << 20) + len(HEAD) + len(TAIL))
    result = {
        "headline": {name: figures[name] for name in ("added_p50_ms", "body_mb_s")},
        "figures": figures,
        "scaling": scaling(figures),
        "settings": {**vars(arguments), "head_bytes": HEAD_BYTES},
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()},
        "load": [round(r["load_before"], 1) for r in rounds],
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["headline"]))


if __name__ == "__main__":
    main()
