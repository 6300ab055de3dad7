"""The way to a running fleet: a Unix socket in its folder, which is its owner's only.

One line of JSON asks; notes, then one result or error, come back, a line each. What was asked for goes on when the
asker leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from framefleet import errors
from framefleet.errors import ConfigError, FramefleetError, ReplicaError

Note = Callable[[str], None]
Command = Callable[[dict[str, Any], Note], Awaitable[Any]]
_LIMIT_BYTES = 16 * 1024**2
_log = logging.getLogger(__name__)


class Control:
    """`async with Control(path, commands):` answers there."""

    def __init__(self, path: Path, commands: Mapping[str, Command]) -> None:
        self._path, self._commands = path, commands
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = contextlib.ExitStack()

    async def __aenter__(self) -> Control:
        self._path.unlink(missing_ok=True)
        place = self._open.enter_context(_short(self._path))  # valid as long as the server: it may unlink it at its end
        self._server = await asyncio.start_unix_server(self._connected, place, limit=_LIMIT_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._open.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            line = await reader.readuntil(b"\n")
            task = asyncio.create_task(self._answer(line, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        def say(kind: str, value: Any) -> None:
            if not writer.is_closing():
                writer.write(msgspec.json.encode({kind: value}) + b"\n")

        try:
            say("result", await self._do(line, lambda text: say("note", text)))
        except FramefleetError as error:
            say("error", {"kind": type(error).__name__, "arguments": error.__reduce__()[1][1:]})
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked gets an answer
            _log.exception("a fault of framefleet's own")
            say("error", {"kind": "FramefleetError", "arguments": [f"{type(error).__name__}: {error}", "", "", ""]})
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async def _do(self, line: bytes, note: Note) -> Any:
        try:
            asked = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError("not a command", given=str(error)) from error
        name = asked.pop("command", None)
        if name not in self._commands:
            raise ConfigError("no such command", given=repr(name), allowed=", ".join(self._commands))
        return await self._commands[name](asked, note)


def ask_fleet(folder: Path, command: str, *, on_note: Note = lambda _: None, **arguments: Any) -> Any:
    """Ask the fleet that runs from `folder`, and wait for its answer, however long that takes.

    Raises ReplicaError when none runs there or it goes away, and whatever error the fleet answers with.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with _short(folder / "control") as path:
                connection.connect(path)
        except OSError as error:
            remedy = "framefleet serve MODEL, or --folder of the one that runs"
            raise ReplicaError("no fleet runs from this folder", given=str(folder), remedy=remedy) from error
        connection.sendall(msgspec.json.encode({"command": command, **arguments}) + b"\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                answer = msgspec.json.decode(line)
                if "note" in answer:
                    on_note(answer["note"])
                elif "error" in answer:
                    raise _error_of(answer["error"])
                else:
                    return answer["result"]
    raise ReplicaError("the fleet went away before it answered", given=command, remedy="framefleet fleet status")


def _error_of(about: dict[str, Any]) -> FramefleetError:
    kind: type[FramefleetError] = getattr(errors, about["kind"], FramefleetError)
    what, given, allowed, remedy = about["arguments"]
    return kind(what, given=given, allowed=allowed, remedy=remedy)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of at most 107 bytes for a socket, however deep its folder lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
