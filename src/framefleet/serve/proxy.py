"""The proxy in front of the replicas, as an ASGI application, and what starts it.

`/v1/chat/completions` and `/v1/completions` go to the replica with the least to do; `/v1/models` to any. The proxy's
own are `/health` (200 while a replica takes work), `/metrics`, `/fleet`, and `POST /fleet/NAME/drain` and `undrain`
(with an admin's key; where no keys are set, from this machine only).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from framefleet.errors import ConfigError, ReplicaError
from framefleet.serve.admission import Admission, Priority
from framefleet.serve.api_keys import ApiKeys, read_keys
from framefleet.serve.dispatch import Dispatch
from framefleet.serve.exchange import Core, Exchange, Receive, Scope, Send
from framefleet.serve.health import HealthWatch
from framefleet.serve.http_headers import value_of
from framefleet.serve.proxy_metrics import CONTENT_TYPE, ProxyMetrics
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import FleetView
from framefleet.serve.upload import DiskRoom
from framefleet.serve.upstream import Upstream

if TYPE_CHECKING:
    import uvicorn

SHUTDOWN_S = 30
Signals = asyncio.Queue[int]
"""Those that came, in order."""
_FORWARDED = {
    "/v1/chat/completions": ("POST",),
    "/v1/completions": ("POST",),
    "/v1/models": ("GET",),
}
_log = logging.getLogger(__name__)


class Proxy:
    """`async with Proxy(fleet, settings) as proxy:` is an ASGI application that watches its replicas."""

    def __init__(self, fleet: FleetView, settings: ProxySettings, *, rng: Random | None = None) -> None:
        self.fleet, self.settings = fleet, settings
        self.dispatch = Dispatch(fleet, settings, rng=rng)
        self.admission = Admission(
            self.dispatch.capacity, max_queue=settings.max_queue, timeout_s=settings.queue_timeout_s
        )
        self.metrics = ProxyMetrics(self.dispatch, self.admission)
        self.keys = read_keys(settings.api_keys_file) if settings.api_keys_file else ApiKeys()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Proxy:
        upstream = await self._open.enter_async_context(Upstream(self.settings))
        watch = HealthWatch(upstream.session, self.dispatch, self.admission, self.settings)
        await self._open.enter_async_context(watch)
        room = DiskRoom(self.settings.spool_disk_bytes)
        self.core = Core(self.settings, self.dispatch, self.admission, self.keys, upstream, self.metrics, room)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            raise ConfigError("not HTTP", given=scope["type"])
        path, method = scope["path"], scope["method"]
        if path in _FORWARDED:
            if method in _FORWARDED[path]:
                await Exchange(self.core, scope, receive, send).run()
                return
            await _say(send, 405, _error("method not allowed", 405))
        elif method == "POST" and path.startswith("/fleet/"):
            await self._command(scope, send)
        else:
            await self._tell(path, send)

    async def _tell(self, path: str, send: Send) -> None:
        match path:
            case "/health" | "/ping":
                await _say(send, 200 if self.dispatch.routable() else 503, b"")
            case "/metrics":
                await _say(send, 200, self.metrics.text(), CONTENT_TYPE)
            case "/fleet":
                await _say(send, 200, msgspec.json.encode(self.standing()))
            case _:
                allowed = ", ".join((*_FORWARDED, "/health", "/metrics", "/fleet"))
                await _say(send, 404, _error(f"no such path: {path}; allowed: {allowed}", 404))

    def standing(self) -> dict[str, Any]:
        """What `/fleet` shows."""
        now_s, dispatch = self.dispatch.now_s(), self.dispatch
        replicas = [
            {
                "name": replica.name, "url": replica.base_url, "state": replica.state,
                "circuit": dispatch.circuits[replica.name].state(now_s),
                "in_flight": dispatch.outstanding.num_in_flight(replica.name),
                "outstanding_work": dispatch.outstanding.work_of(replica.name),
            }
            for replica in self.fleet.replicas()
        ]  # fmt: skip
        waiting = {priority.word: self.admission.num_waiting(priority) for priority in Priority}
        return {
            "replicas": replicas,
            "waiting": waiting,
            "capacity": dispatch.capacity(),
            "policy": self.settings.policy,
        }

    async def _command(self, scope: Scope, send: Send) -> None:
        if not self._is_admin(scope):
            await _say(send, 403, _error("only an admin may do this", 403))
            return
        _, _, name, command = (scope["path"] + "//").split("/")[:4]
        if command not in ("drain", "undrain"):
            await _say(send, 404, _error("no such command; allowed: drain, undrain", 404))
            return
        try:
            (self.fleet.drain if command == "drain" else self.fleet.undrain)(name)
        except ReplicaError as error:
            await _say(send, 409, _error(str(error), 409))
            return
        self.admission.wake()
        await _say(send, 200, msgspec.json.encode(self.standing()))

    def _is_admin(self, scope: Scope) -> bool:
        if self.keys.are_required:
            key = self.keys.who(value_of(scope["headers"], b"authorization"))
            return key is not None and key.is_admin
        host = (scope.get("client") or ("",))[0]
        return _is_loopback(host) and not value_of(scope["headers"], b"x-forwarded-for")


def listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError when the address cannot be had."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        raise ConfigError(
            "cannot listen there", given=f"{host}:{port} ({error.strerror})", remedy="another --port, or 0 for any"
        ) from error


async def serve_proxy(proxy: Proxy, at: socket.socket, signals: Signals | None = None) -> None:
    """Answer at a listening socket until a signal comes; what is in flight then has SHUTDOWN_S to end, or until the
    next signal."""
    import uvicorn

    config = uvicorn.Config(
        proxy,
        lifespan="off",
        interface="asgi3",
        http="httptools",  # refuses what one server reads differently from the next (two lengths, a length and chunks)
        access_log=False,
        log_level="critical",  # an answer that is broken off on purpose is no error; the requests' log tells
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    async with proxy:
        _log.info("proxy on http://%s:%d over %d replicas", *at.getsockname()[:2], len(proxy.fleet.replicas()))
        server = uvicorn.Server(config)
        setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010 - it loses signals that come early
        obeying = asyncio.create_task(_obey(server, signals or asyncio.Queue()))
        try:
            await server.serve([at])
        finally:
            obeying.cancel()


async def _obey(server: uvicorn.Server, signals: Signals) -> None:
    await signals.get()
    server.should_exit = True
    await signals.get()
    server.force_exit = True


def run_proxy(proxy: Proxy, at: socket.socket) -> None:
    """`serve_proxy` in the main thread."""
    run_serving(lambda signals: serve_proxy(proxy, at, signals))


def run_serving(serve: Callable[[Signals], Coroutine[Any, Any, None]]) -> None:
    """Serve on the fastest event loop there is, in the main thread; SIGTERM and SIGINT go where `serve` looks."""

    async def serve_with_signals() -> None:
        signals: Signals = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
        await serve(signals)

    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as factory
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve_with_signals())


async def _say(send: Send, status: int, body: bytes, content_type: str = "application/json") -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(message: str, status: int) -> bytes:
    about = {"message": message, "type": "proxy_error", "param": None, "code": status}
    return msgspec.json.encode({"error": about})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
