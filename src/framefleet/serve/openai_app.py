"""Start an engine behind an OpenAI-compatible API: `python -m framefleet.serve.openai_app --model FOLDER --port 8000`.

Every field of ServeEngineSettings is a flag (`--max-batch 8`), an environment variable (`FRAMEFLEET_SERVE_ENGINE_...`)
and a key of the section `serve_engine`. SIGTERM and Ctrl-C let running requests finish, then end the model's process.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from framefleet.config import fields, resolve
from framefleet.engine import open_engine
from framefleet.engine.asking import AskedCaptioner
from framefleet.engine.embedded.checkpoint import BUNDLED
from framefleet.engine.reading import MayOpen, VideoReader, decode_pool, frame_policy_of
from framefleet.errors import ConfigError, FramefleetError
from framefleet.units import MIB

SHUTDOWN_S = 30
_log = logging.getLogger(__name__)


class ServeEngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine, one address."""

    model: str = BUNDLED
    """`dashcam_tiny` (bundled), a local folder, or a hub id."""
    served_model_name: str = ""
    """The name that clients use; empty: the model as given."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one and prints it."""
    api_key: str = ""
    """Clients must send it as a bearer token; empty: anybody may ask."""
    engine: Literal["embedded", "fake"] = "embedded"
    """`fake` answers without a model, for tests of what stands in front."""
    device: str = "auto"
    """As the embedded engine's."""
    dtype: str = "auto"
    """As the embedded engine's."""
    max_batch: Annotated[int, Meta(ge=1)] = 8
    """As the embedded engine's."""
    max_queue: Annotated[int, Meta(ge=1)] = 256
    """Questions held at a time; more are answered 429."""
    num_threads: Annotated[int, Meta(ge=0)] = 0
    """CPU threads of the model; 0 is one per core."""
    decode_workers: Annotated[int, Meta(ge=0)] = 0
    """Decode processes; 0 is one per core."""
    allowed_local_media_path: str = ""
    """Folder whose files clients may name by `file://`."""
    allowed_media_domains: tuple[str, ...] = ()
    """Hosts that clients may name by http(s) URLs."""
    max_body_bytes: Annotated[int, Meta(ge=1)] = 512 * MIB
    """Larger requests are answered 413."""
    max_tokens: Annotated[int, Meta(ge=1)] = 512
    """Of an answer, where the request does not say."""


@asynccontextmanager
async def open_served(settings: ServeEngineSettings) -> AsyncIterator[Any]:
    """The engine and the decode pool of the settings, entered, as a ServedEngine."""
    from framefleet.serve.engine_app import ServedEngine

    engine = open_engine(settings.engine, **_engine_settings(settings))
    async with engine, decode_pool(settings.decode_workers or None) as pool:
        policy = frame_policy_of(engine)
        yield ServedEngine(
            engine=engine if hasattr(engine, "ask") else AskedCaptioner(engine, policy),
            reader=VideoReader(
                policy,
                pool,
                MayOpen(local_folder=settings.allowed_local_media_path, domains=settings.allowed_media_domains),
            ),
            model_name=settings.served_model_name or settings.model,
            api_key=settings.api_key,
            max_body_bytes=settings.max_body_bytes,
            default_max_tokens=settings.max_tokens,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Returns the exit code: 0, or 2 for settings, an address or a model that are no good."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    try:
        settings = resolve(ServeEngineSettings, "serve_engine", flags=_flags(arguments)).value
        asyncio.run(serve_engine(settings))
    except FramefleetError as error:
        print(f"framefleet: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    return 0


async def serve_engine(settings: ServeEngineSettings) -> None:
    """Open the engine and answer until SIGTERM or SIGINT. The address is taken first: loading a model is slow."""
    import uvicorn

    from framefleet.serve.engine_app import engine_app

    with _listener(settings.host, settings.port) as listener:
        async with open_served(settings) as served:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, _let_pass)
            config = uvicorn.Config(
                engine_app(served), access_log=False, lifespan="off", timeout_graceful_shutdown=SHUTDOWN_S
            )
            _log.info("serving %s on http://%s:%d/v1", served.model_name, settings.host, listener.getsockname()[1])
            await uvicorn.Server(config).serve([listener])


def _listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(
            "cannot listen there", given=f"{host}:{port} ({error.strerror})", remedy="another --port, or 0 for any"
        ) from error


def _let_pass(*_: object) -> None:
    """uvicorn raises the signal that stopped it once more; the engine is closed in peace all the same."""


def _engine_settings(settings: ServeEngineSettings) -> dict[str, Any]:
    if settings.engine == "fake":
        return {"model": settings.model}
    names = ("model", "device", "dtype", "max_batch", "max_queue", "num_threads")
    return {name: getattr(settings, name) for name in names}


def _flags(arguments: Sequence[str] | None) -> dict[str, Any]:
    """The flags that were given; lists are comma-separated."""
    parser = argparse.ArgumentParser(prog="framefleet serve-engine", description=__doc__)
    for field in fields(ServeEngineSettings):
        parser.add_argument(
            "--" + field.name.replace("_", "-"), default=None, type=_reader(field.default), help=field.help
        )
    return vars(parser.parse_args(arguments))


def _reader(default: Any) -> Any:
    return (lambda text: text.split(",")) if isinstance(default, tuple) else type(default)


if __name__ == "__main__":
    sys.exit(main())
