"""Servers for tests: an ASGI application in a thread, and our own engine server as a process."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time

import httpx
import uvicorn


@contextlib.contextmanager
def serving(app):
    """The base URL of the application, served on the loopback until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@contextlib.contextmanager
def engine_server(*flags, start_s=240):
    """The base URL of `python -m framefleet.serve.openai_app`; it must end with exit code 0 when told to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "framefleet.serve.openai_app", "--port", str(port), *map(str, flags)]
    with subprocess.Popen(command) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_healthy(url, process, start_s)
            yield url
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def _wait_healthy(url, process, start_s):
    until_s = time.monotonic() + start_s
    while time.monotonic() < until_s:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").status_code == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(url)
