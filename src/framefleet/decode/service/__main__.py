"""`python -m framefleet.decode.service`: run a decode service until SIGTERM, or ask one how it is (`--stats`)."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from framefleet.decode.backends.pynvvideocodec import DEFAULT_BUDGET_BYTES as DEFAULT_GPU_BUDGET_BYTES
from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend, visible_gpu
from framefleet.decode.choose import nvdec_is_here
from framefleet.decode.pool import DecodePool
from framefleet.decode.service.client import ServiceClient
from framefleet.decode.service.served import Served, ServedPool, ServedSilicon
from framefleet.decode.service.server import DecodeService
from framefleet.decode.silicon import leftover_pool
from framefleet.errors import ConfigError, FramefleetError, ServiceUnreachable
from framefleet.telemetry import set_up_logging
from framefleet.units import GIB, parse_bytes
from framefleet.vram.budget import MemoryBudget

DEFAULT_BUDGET_BYTES = 4 * GIB
_BACKLOG = 1024
_LOOK_S = 1.0
_COMMONEST = ("h264", "4:2:0", 8)
_LONGEST_PATH_BYTES = 100
"""`sun_path` has 108, and the name it is bound under first is a little longer."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 after SIGTERM or an answer to --stats, 1 where it could not be had, 2 for wrong arguments."""
    asked = _parser().parse_args(arguments)
    set_up_logging("info")
    try:
        if asked.stats:
            stats = ServiceClient(asked.socket).stats()
            text = stats.prometheus() if asked.stats == "prometheus" else msgspec.json.encode(stats).decode()
            print(text)  # noqa: T201 - the answer
            return 0
        return _run(asked)
    except FramefleetError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, ConfigError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m framefleet.decode.service", description=__doc__)
    parser.add_argument("--socket", required=True, type=Path, help="Unix socket to listen on, or to ask")
    parser.add_argument("--gpu", default="", help="index or UUID of the GPU to decode on; without it: the CPU alone")
    parser.add_argument("--cpu-workers", type=int, help="decode processes (default: one for each usable core)")
    parser.add_argument(
        "--budget", type=parse_bytes, default=DEFAULT_BUDGET_BYTES, metavar="SIZE",
        help="bytes of finished frames that no client has dropped, of all clients together; with --gpu for those of the"
        " CPU and those of NVDEC each (default: 4 GiB)",
    )  # fmt: skip
    parser.add_argument(
        "--gpu-budget", type=parse_bytes, default=DEFAULT_GPU_BUDGET_BYTES, metavar="SIZE",
        help="bytes of the GPU's memory that its decoders may take, besides the CUDA context (default: 4 GiB)",
    )  # fmt: skip
    parser.add_argument("--until-stdin-closes", action="store_true", help="end also when standard input closes")
    parser.add_argument(
        "--stats", nargs="?", const="json", choices=("json", "prometheus"), help="print how the service there is"
    )
    return parser


def _run(asked: argparse.Namespace) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = asked.gpu
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every clip whose frames are kept holds a few
    with _opened(asked) as served, _listening(asked.socket) as listener:
        asyncio.run(_serve(served, listener, asked))
        if served.figures().hung:  # a thread that hangs in the driver cannot be waited for
            asked.socket.unlink(missing_ok=True)
            os._exit(1)
    return 0


@contextmanager
def _opened(asked: argparse.Namespace) -> Iterator[Served]:
    with DecodePool(workers=asked.cpu_workers, max_bytes_in_flight=asked.budget) as pool:
        if not asked.gpu:
            yield ServedPool(pool)
            return
        if not nvdec_is_here():
            raise ConfigError(
                "there is no NVDEC here", given=f"--gpu {asked.gpu}", remedy="without --gpu, or `framefleet doctor`"
            )
        visible_gpu().caps(*_COMMONEST)  # its context, and an error now instead of every clip on the CPU
        nvdec = PyNvVideoCodecBackend(budget=MemoryBudget(asked.gpu_budget, name="NVDEC memory"))
        with leftover_pool(pool) as cpu_pool:
            served = ServedSilicon(pool, nvdec, cpu_pool)
            try:
                yield served
            finally:
                served.close()
                nvdec.close()


async def _serve(served: Served, listener: socket.socket, asked: argparse.Namespace) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if asked.until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), stop.set)  # nobody writes there: readable is closed
    watch = asyncio.create_task(_stop_when_hung(served, stop))
    await DecodeService(served, room_bytes=asked.budget if asked.gpu else None, gpu=asked.gpu).serve(listener, stop)
    watch.cancel()


async def _stop_when_hung(served: Served, stop: asyncio.Event) -> None:
    while not served.figures().hung:
        await asyncio.sleep(_LOOK_S)
    logging.getLogger(__name__).error("NVDEC did not come back from a clip: this service ends, to be started anew")
    stop.set()


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A socket at `path`, for this user alone. It is renamed into place, so there is no moment without one."""
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise ConfigError("the socket's path is too long", given=str(path), allowed=f"{_LONGEST_PATH_BYTES} bytes")
    with suppress(ServiceUnreachable):
        pid = ServiceClient(path).stats().pid
        raise ConfigError("a decode service is there already", given=f"{str(path)!r}, process {pid}")
    unnamed = path.with_name(f"{path.name}.new")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(0.0)
        try:
            unnamed.unlink(missing_ok=True)
            listener.bind(str(unnamed))
            unnamed.chmod(0o600)
            listener.listen(_BACKLOG)
            unnamed.rename(path)
        except OSError as error:
            raise ConfigError("cannot make the socket", given=f"{str(path)!r} ({error.strerror})") from error
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
