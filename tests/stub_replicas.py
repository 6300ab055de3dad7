"""Replicas that answer without an engine, in whatever way a test wants, and remember what they were asked.

A mode is a word: ok, sse, frozen, dies, cut, cut_length, gzip, early (400 before the body), stops_reading, half_upload
(the connection breaks within the upload), or a status.
"""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
from dataclasses import dataclass, field
from random import Random

import httpx
import uvicorn

from framefleet.serve.proxy import Proxy, listener
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import StaticFleet

QUICK = {"health_s": 0.05, "health_timeout_s": 0.5, "probe_s": 0, "open_s": 0.2, "queue_timeout_s": 5}


@dataclass
class Asked:
    """One request as it arrived."""

    path: str
    headers: list
    num_bytes: int = 0
    sha256: str = ""

    def header(self, name):
        return [value for key, value in self.headers if key == name]


@dataclass
class StubReplica:
    """`await stub.start()`, `await stub.stop()`."""

    name: str
    mode: str = "ok"
    health: str = "ok"
    delay_s: float = 0.0
    events: int = 3
    split_s: float = 0.0
    """Between the two halves of a whole answer."""
    extra_headers: str = ""
    asked: list = field(default_factory=list)
    num_running: int = 0
    num_left: int = 0
    """Connections that ended before their answer did."""
    port: int = 0

    async def start(self):
        self.connections = set()
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=2**20)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self):
        self.server.close()
        for writer in list(self.connections):
            writer.transport.abort()
        await asyncio.sleep(0)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def chats(self):
        return [one for one in self.asked if one.path.startswith("/v1/chat")]

    async def _connected(self, reader, writer):
        self.connections.add(writer)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections.discard(writer)
            writer.transport.abort()

    async def _request(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in head[1:] if line)]
        asked = Asked(target, headers)
        self.asked.append(asked)
        if method == "GET":
            return await self._get(target, writer)
        if self.mode == "early":
            await self._whole(writer, 400, b"no")
            return await self._read_body(reader, asked)
        if self.mode == "stops_reading":
            await asyncio.sleep(3600)
        if self.mode == "half_upload":
            await reader.readexactly(200_000)
            return False
        await self._read_body(reader, asked)
        return await self._unless_left(reader, self._answer(writer, asked))

    async def _get(self, target, writer):
        if target == "/health":
            if self.health == "frozen":
                await asyncio.sleep(3600)
            await self._whole(writer, 200 if self.health == "ok" else 503, b"")
        else:
            await self._whole(writer, 200, json.dumps({"data": [{"id": "stub"}], "by": self.name}).encode())
        return True

    async def _read_body(self, reader, asked):
        digest, length = hashlib.sha256(), asked.header("content-length")
        async for chunk in _sized(reader, int(length[0])) if length else _chunked(reader):
            asked.num_bytes += len(chunk)
            digest.update(chunk)
        asked.sha256 = digest.hexdigest()
        return True

    async def _unless_left(self, reader, answering):
        """The answer, unless the client leaves: then it ends at once, as an engine's would."""
        self.num_running += 1
        answer, left = asyncio.create_task(answering), asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            self.num_left += 1
            return False
        finally:
            self.num_running -= 1
            for task in (answer, left):
                task.cancel()
            await asyncio.gather(answer, left, return_exceptions=True)

    async def _answer(self, writer, asked):
        await asyncio.sleep(3600 if self.mode == "frozen" else self.delay_s)
        body = json.dumps({"by": self.name, "bytes": asked.num_bytes, "sha256": asked.sha256}).encode()
        match self.mode:
            case "ok":
                await self._whole(writer, 200, body)
            case "gzip":
                await self._whole(writer, 200, gzip.compress(body), "content-encoding: gzip\r\n")
            case "dies":
                return False
            case "sse":
                await self._stream(writer, [f"data: {self.name} {i}\n\n" for i in range(self.events)], is_cut=False)
            case "cut":
                await self._stream(writer, [f"data: {self.name} {i}\n\n" for i in range(2)], is_cut=True)
                return False
            case "cut_length":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf of")
                await writer.drain()
                return False
            case status:
                await self._whole(writer, int(status), b'{"error": {"message": "stub"}}', "retry-after: 7\r\n")
        return True

    async def _stream(self, writer, events, *, is_cut):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in [*events, *([] if is_cut else ["data: [DONE]\n\n"])]:
            writer.write(f"{len(event):x}\r\n{event}\r\n".encode())
            await writer.drain()
            await asyncio.sleep(self.delay_s)
        writer.write(b"" if is_cut else b"0\r\n\r\n")
        await writer.drain()

    async def _whole(self, writer, status, body, headers=""):
        answer = (
            f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n"
            f"{headers}{self.extra_headers}\r\n"
        ).encode() + body
        middle = len(answer) - len(body) // 2
        writer.write(answer[:middle])
        if self.split_s:
            await asyncio.sleep(self.split_s)
        writer.write(answer[middle:])
        await writer.drain()


async def _sized(reader, left):
    while left:
        chunk = await reader.read(min(left, 2**18))
        if not chunk:
            raise ConnectionResetError
        left -= len(chunk)
        yield chunk


async def _chunked(reader):
    while size := int((await reader.readline()).strip(), 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


@contextlib.asynccontextmanager
async def proxied(*modes, **settings):
    """Stub replicas r0, r1 ... in these modes behind a proxy: (stubs, proxy, client)."""
    stubs = [StubReplica(f"r{i}", mode) for i, mode in enumerate(modes)]
    for stub in stubs:
        await stub.start()
    proxy = Proxy(StaticFleet.of_urls([stub.url for stub in stubs]), ProxySettings(**{**QUICK, **settings}))
    with listener("127.0.0.1", 0) as at:
        server = uvicorn.Server(
            uvicorn.Config(proxy, lifespan="off", log_level="critical", timeout_graceful_shutdown=1, http="httptools")
        )
        serving = asyncio.create_task(server.serve([at]))
        base = f"http://127.0.0.1:{at.getsockname()[1]}"
        async with proxy, httpx.AsyncClient(base_url=base, timeout=20) as client:
            try:
                await until(lambda: server.started and not _are_starting(proxy))
                yield stubs, proxy, client
            finally:
                server.should_exit = True
                await serving
                for stub in stubs:
                    await stub.stop()
                assert proxy.dispatch.outstanding.total_in_flight == 0
                assert proxy.admission.num_admitted == proxy.admission.num_waiting() == 0
                assert proxy.core.room.free_bytes == proxy.settings.spool_disk_bytes


def _are_starting(proxy):
    return any(replica.state == "starting" for replica in proxy.fleet.replicas())


async def until(condition, limit_s=20):
    """Wait for something to become true."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


def chat(text="Describe.", **fields):
    """A small request."""
    content = [{"type": "text", "text": text}, {"type": "video_url", "video_url": {"url": "http://host/a.mp4"}}]
    return {"model": "stub", "messages": [{"role": "user", "content": content}], **fields}


def large_chat(num_bytes):
    """The bytes of a request with a clip of about so many in it."""
    clip = base64.b64encode(Random(0).randbytes(num_bytes * 3 // 4))
    head = (
        b'{"model": "stub", "messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:'
    )
    tail = b'"}}]}], "max_tokens": 5, "media_io_kwargs": {"video": {"num_frames": 4}}}'
    return head + b"video/mp4;base64," + clip + tail
