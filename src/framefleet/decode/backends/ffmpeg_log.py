"""Hearing FFmpeg's errors in libraries that keep quiet about them.

OpenCV and torchcodec hand out pictures that their decoder had to patch up, and nothing tells them from whole ones.
FFmpeg itself does say it: in its log. This listens to the log of the copy of libavutil that such a library has loaded.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framefleet.errors import DecodeError

_LEVEL_ERROR = 16
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


@dataclass(slots=True, eq=False)
class HeardErrors:
    """Formats of the messages at error level or worse, `%d` and all: enough to say what kind of damage it was."""

    messages: list[str] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def __bool__(self) -> bool:
        return bool(self.messages)

    def __str__(self) -> str:
        kinds = list(dict.fromkeys(self.messages))
        return f"{len(self.messages)} messages such as {kinds[0]!r}" if kinds else "none"


class _Copy:
    """One loaded libavutil and who listens to it. The log is the process's, so there is one of these for each copy."""

    def __init__(self, path: str) -> None:
        self._library: Any = ctypes.CDLL(path)
        self._callback = _CALLBACK(self._note)  # kept for good: a decoder thread may be inside when listening ends
        self._listeners: list[HeardErrors] = []
        self._lock = threading.Lock()

    def _note(self, _context: Any, level: int, text: bytes | None, _arguments: Any) -> None:
        if level > _LEVEL_ERROR:
            return
        listeners = tuple(self._listeners)
        own = [heard for heard in listeners if heard.thread == threading.get_ident()]
        for heard in own or listeners:  # a decoder's own thread may work for any of them
            heard.messages.append((text or b"").decode("ascii", "replace").strip())

    @contextmanager
    def heard_by(self, heard: HeardErrors) -> Iterator[None]:
        """Tell `heard` while the block runs."""
        with self._lock:
            self._listeners.append(heard)
            self._library.av_log_set_callback(self._callback)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(heard)
                if not self._listeners:
                    self._library.av_log_set_callback(self._library.av_log_default_callback)


_copies: dict[str, _Copy] = {}
_copies_lock = threading.Lock()


@contextmanager
def hear_errors(library: str) -> Iterator[HeardErrors]:
    """Listen while the block runs. `library` is the package whose FFmpeg is meant: `cv2` or `torchcodec`.

    It must have been imported. Whatever the block opened must be closed inside it, by an explicit call: a decoder
    thread that reports something needs the interpreter lock, which a mere deletion would hold.

    Raises DecodeError where the library's FFmpeg cannot be found.
    """
    heard = HeardErrors()
    with ExitStack() as listening:
        for path in _libavutil_paths(library):
            with _copies_lock:
                copy = _copies.get(path) or _copies.setdefault(path, _Copy(path))
            listening.enter_context(copy.heard_by(heard))
        yield heard


def _libavutil_paths(library: str) -> list[str]:
    """Copies of libavutil loaded in this process that are not PyAV's own, which has its own way of telling."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in maps if "libavutil" in line}
    paths = sorted(path for path in mapped if "/av.libs/" not in path)
    bundled = [path for path in paths if "opencv" in path]
    paths = bundled if library == "cv2" and bundled else [path for path in paths if path not in bundled]
    if not paths:
        raise DecodeError(f"cannot listen to the FFmpeg inside {library}, so damage would pass unseen")
    return paths
