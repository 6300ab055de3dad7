"""Messages between a pool and its workers: typed structs over a socket pair, large arrays beside them as shared memory.

A message is one datagram of MessagePack. An array above `INLINE_BYTES` travels as an anonymous memory file (memfd)
whose descriptor is passed along; the receiver maps it, so frames cross without a copy through a pipe, and as the file
has no name nothing is left behind when either side is killed. Each array has its own file: keeping the time stamps of
a clip does not keep its pictures. Files are sealed against shrinking, so that a mapped page cannot vanish. An array
that fills a file it was received in is passed on as that file.

Decoding is by type and builds only what is asked for: a worker gone mad can send rubbish, but not code.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import socket
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet.errors import DecoderLost

Array = npt.NDArray[Any]

INLINE_BYTES = 1 << 16
_ARRAY = 1
_INLINE, _IN_FILE = b"i", b"f"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAX_FILES = 64
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""Before 3.13 a mapping keeps a descriptor of its own, which it does not give away."""
_MAX_DATAGRAM_BYTES = 2 * INLINE_BYTES


def malformed(why: str) -> DecoderLost:
    """The error for what is no message of ours. Its sender is not to be trusted any longer."""
    return DecoderLost("a decode worker sent what is no message", given=why)


class _ArrayNote(msgspec.Struct, array_like=True):
    """Stands in the message for an array: its file's place among those passed along, or its bytes."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    where: int | bytes


class SharedFile(mmap.mmap):
    """A received memory file, mapped. Its descriptor stays open as long as the mapping, to be passed on."""

    descriptor: int = -1

    @classmethod
    def map(cls, descriptor: int) -> SharedFile:
        """Takes the descriptor over. Raises OSError or ValueError (an empty file), and leaves it open then."""
        shared = cls(descriptor, 0, **_UNTRACKED)
        shared.descriptor = descriptor
        return shared

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


@dataclass(slots=True)
class Received:
    """A message as it came. `decode` may be called with the type of any part of it."""

    body: bytes
    files: list[SharedFile] = field(default_factory=list)

    def decode(self, kind: Any, part: msgspec.Raw | None = None) -> Any:
        """The message, or a `Raw` part of it, as `kind` (a type, or a union of them). Raises DecoderLost."""
        try:
            decoder = msgspec.msgpack.Decoder(kind, ext_hook=self._array, dec_hook=_from_wire)
            return decoder.decode(self.body if part is None else part)
        except Exception as error:
            raise malformed(f"{kind!r}: {error}") from error

    def _array(self, code: int, packed: memoryview) -> Array:
        if code != _ARRAY:
            raise malformed(f"extension {code}")
        note = msgspec.msgpack.decode(packed, type=_ArrayNote)
        dtype, count = np.dtype(note.dtype), math.prod(note.shape)
        if isinstance(note.where, bytes):
            return np.frombuffer(note.where, dtype).reshape(note.shape).copy()
        return np.frombuffer(self.files[note.where], dtype, count).reshape(note.shape)


def send(link: socket.socket, message: msgspec.Struct, files: Sequence[int] = ()) -> None:
    """Send one message; blocks while the receiver is behind. Raises OSError when the other side is gone.

    `files` are those of a part that was encoded before; they are closed.
    """
    passed = [*files]
    try:
        body = encode(message, passed)
        prefix, inline = _INLINE, body
        if len(body) > INLINE_BYTES:
            passed.append(memory_file(body))
            prefix, inline = _IN_FILE, b""
        socket.send_fds(link, [prefix, inline], passed)
    finally:
        close_files(passed)


def encode(value: Any, files: list[int]) -> bytes:
    """MessagePack of `value`; the memory files of its large arrays are appended to `files` (and closed on failure)."""

    def to_wire(thing: Any) -> Any:
        if isinstance(thing, np.ndarray):
            return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(_note(thing, files)))
        if isinstance(thing, np.generic):
            return thing.item()
        if isinstance(thing, Fraction):
            return (thing.numerator, thing.denominator)
        raise TypeError(f"{type(thing)} cannot be sent")

    try:
        return msgspec.msgpack.Encoder(enc_hook=to_wire).encode(value)
    except BaseException:
        close_files(files)
        files.clear()
        raise


def receive(link: socket.socket) -> Received | None:
    """The next message; None when the other side has closed. Raises TimeoutError by the link's timeout, DecoderLost."""
    body, descriptors, flags, _ = socket.recv_fds(link, _MAX_DATAGRAM_BYTES, _MAX_FILES, socket.MSG_CMSG_CLOEXEC)
    files: list[SharedFile] = []
    try:
        if not body:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise malformed("a truncated message")
        for descriptor in descriptors:
            files.append(_mapped(descriptor))  # noqa: PERF401 - those mapped own their descriptors when one fails
    finally:
        close_files(descriptors[len(files) :])
    if body[:1] == _INLINE:
        return Received(body[1:], files)
    if body == _IN_FILE and files:
        return Received(bytes(files.pop()), files)
    raise malformed("an unknown prefix")


def mapping_of(array: Array) -> SharedFile | None:
    """The shared memory an array lies in, None if it lies in this process's own."""
    base: Any = array
    while base is not None:
        if isinstance(base, SharedFile):
            return base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return None


def when_dropped(files: Sequence[SharedFile], call: Callable[[], object]) -> None:
    """Call once no array views the largest of the files any more, which is the frames' (at once if there is none).

    `call` may come from the garbage collector, inside any line of any thread: it must wait for no lock.
    """
    largest = max(files, key=len, default=None)
    if largest is None:  # a few frames of a few bytes, not worth shared memory
        call()
    else:
        weakref.finalize(largest, call).atexit = False


def close_files(descriptors: Iterable[int]) -> None:
    """Of `encode`, when they will not be sent."""
    for descriptor in descriptors:
        os.close(descriptor)


def _note(array: Array, files: list[int]) -> _ArrayNote:
    flat = np.ascontiguousarray(array)
    if flat.nbytes <= INLINE_BYTES // 16:
        return _ArrayNote(flat.dtype.str, flat.shape, flat.tobytes())
    shared = mapping_of(flat)
    if shared is not None and len(shared) == flat.nbytes:
        files.append(os.dup(shared.descriptor))
    else:
        files.append(memory_file(flat.reshape(-1).view(np.uint8)))
    return _ArrayNote(flat.dtype.str, flat.shape, len(files) - 1)


def memory_file(content: Any) -> int:
    """A sealed anonymous file of these bytes; the descriptor is the caller's to close. Raises OSError."""
    descriptor = os.memfd_create("framefleet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mapped(descriptor: int) -> SharedFile:
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return SharedFile.map(descriptor)
    except (OSError, ValueError) as error:
        raise malformed(f"a file that cannot be mapped: {error}") from error
    raise malformed("a file that may shrink")


def _from_wire(kind: Any, thing: Any) -> Any:
    if kind is Fraction:
        return Fraction(*thing)
    if isinstance(thing, np.ndarray):
        return thing
    raise malformed(f"{type(thing)} for {kind}")
