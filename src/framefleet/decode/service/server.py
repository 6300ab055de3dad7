"""The service's side: one task per connection, turns between clients, frames held until their client drops them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any

import msgspec

from framefleet.decode import wire
from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.messages import Problem, restored, sendable
from framefleet.decode.service.protocol import (
    Again,
    Answer,
    Ask,
    AskStats,
    Failure,
    ServiceStats,
    Started,
    ToService,
)
from framefleet.decode.service.served import Served
from framefleet.decode.service.turns import Turns
from framefleet.errors import DecoderLost
from framefleet.media.source import VideoSource
from framefleet.vram.budget import Lease, MemoryBudget

_LOG = logging.getLogger(__name__)
_ACCEPT_PAUSE_S = 0.1
_ROOM_TIMEOUT_S = 600.0
_CREDENTIALS = struct.Struct("3i")
"""Linux `struct ucred`: process, user, group."""


class DecodeService:
    """Answers connections to one socket. Belongs to one event loop.

    `room_bytes` bounds the frames that had to be copied into shared memory (NVDEC's) and that clients still map.
    """

    def __init__(self, served: Served, *, room_bytes: int | None = None, gpu: str = "") -> None:
        self._served = served
        self._gpu = gpu
        self._room = MemoryBudget(room_bytes, name="room for NVDEC's frames in shared memory") if room_bytes else None
        self._turns = Turns(served.slots)
        self._one_suspect = asyncio.Lock()
        self._talks: set[asyncio.Task[None]] = set()
        self._clients: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()
        self._frames_held = 0
        self._started_s = time.monotonic()

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Until `stop`; then whoever waits for a clip is told to ask again."""
        accepting = asyncio.create_task(self._accept(listener))
        await stop.wait()
        for task in (accepting, *self._talks):
            task.cancel()
        await asyncio.gather(accepting, *self._talks, return_exceptions=True)

    def stats(self) -> ServiceStats:
        """A look at the service."""
        figures, room = asdict(self._served.figures()), self._room
        if room is not None:
            figures["budget_bytes"] += room.total_bytes
            figures["budget_held_bytes"] += room.held_bytes
            figures["budget_waiting"] += room.num_waiting
            figures["budget_waited_s"] += room.stats.waited_s
        return ServiceStats(
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started_s,
            gpu=self._gpu,
            clients=len(self._clients),
            queued=self._turns.num_waiting,
            running=self._turns.num_taken,
            frames_held=self._frames_held,
            done=self._counts["done"],
            failed=self._counts["failed"],
            cancelled=self._counts["cancelled"],
            **figures | {"silicon": self._served.figures().silicon},
        )

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors: some come free when clients drop frames
                _LOG.warning("cannot take a connection: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            talk = asyncio.create_task(self._talk(link))
            self._talks.add(talk)
            talk.add_done_callback(self._talks.discard)

    async def _talk(self, link: socket.socket) -> None:
        with link:
            try:
                await _until_readable(link)
                received = wire.receive(link)
                if received is None:
                    return
                request = restored(received.decode(ToService))
                if isinstance(request, AskStats):
                    wire.send(link, self.stats())
                else:
                    await self._answer(link, request, received.files)
            except (OSError, DecoderLost) as error:
                _LOG.warning("a client's connection was dropped: %s", error)

    async def _answer(self, link: socket.socket, ask: Ask, files: list[wire.SharedFile]) -> None:
        """Decode, unless the client goes; then keep the frames until it drops them."""
        client = _process_of(link)
        self._clients[client] += 1
        kept: list[Any] = []
        gone = asyncio.create_task(_until_readable(link))  # a client says nothing more: this is its end
        work = asyncio.create_task(self._work(link, ask, files, client, kept))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._counts["cancelled"] += 1
                return
            await work
            if kept:
                await self._hold(gone)
        except asyncio.CancelledError:
            with suppress(OSError):
                wire.send(link, Again())
            raise
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)
            for lease in kept:
                if isinstance(lease, Lease):
                    lease.release()
            kept.clear()
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    async def _hold(self, gone: asyncio.Task[None]) -> None:
        self._frames_held += 1
        try:
            await gone
        finally:
            self._frames_held -= 1

    async def _work(
        self, link: socket.socket, ask: Ask, files: list[wire.SharedFile], client: int, kept: list[Any]
    ) -> None:
        """Send the answer. What must live as long as the client keeps the frames is left in `kept`."""
        source = _readable_source(ask.source, files)
        is_isolated = self._served.isolates(ask.options, is_suspect=ask.is_suspect)
        alone = self._one_suspect if ask.is_suspect and not is_isolated else nullcontext()
        async with alone, self._turns.turn(client):
            wire.send(link, Started(is_isolated))
            try:
                frames = await self._served.decode(source, ask.options, is_suspect=ask.is_suspect)
                await self._send_frames(link, frames, kept)
                self._counts["done"] += 1
            except (OSError, asyncio.CancelledError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the client must hear of it
                self._counts["failed"] += 1
                wire.send(link, Failure(Problem.of(error)))
            finally:
                files.clear()  # the clip is done with, long before its frames are

    async def _send_frames(self, link: socket.socket, frames: DecodedFrames, kept: list[Any]) -> None:
        """Frames that do not lie in shared memory (NVDEC's) are copied there, on a thread, and charged for it."""
        if wire.mapping_of(frames.data) is not None:
            kept.append(frames)
        elif self._room is not None:
            kept.append(await self._room.lease_async(frames.data.nbytes, timeout_s=_ROOM_TIMEOUT_S))
        files: list[int] = []
        packing = asyncio.get_running_loop().run_in_executor(None, wire.encode, sendable(frames), files)
        try:
            packed = await asyncio.shield(packing)
        except asyncio.CancelledError:
            packing.add_done_callback(lambda _: wire.close_files(files))
            raise
        wire.send(link, Answer(msgspec.Raw(packed)), files)


def _readable_source(source: VideoSource, files: list[wire.SharedFile]) -> VideoSource:
    """Bytes are read where they lie, by this process and its workers, instead of being copied to them."""
    if not files:
        return source
    return source.shown_at(f"/proc/{os.getpid()}/fd/{files[0].descriptor}")


async def _until_readable(link: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(link)


def _process_of(link: socket.socket) -> int:
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process: Any = _CREDENTIALS.unpack(credentials)[0]
    return int(process)
