"""Hearing FFmpeg's errors in libraries that keep quiet about them.

OpenCV and torchcodec hand out pictures that their decoder had to patch up, and nothing tells them from whole ones.
FFmpeg itself does say it: in its log. This listens to the log of the copy of libavutil that such a library has loaded.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from framefleet.errors import DecodeError

_LEVEL_ERROR = 16
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_one_listener = threading.Lock()


@dataclass(slots=True)
class HeardErrors:
    """Formats of the messages at error level or worse, `%d` and all: enough to say what kind of damage it was."""

    messages: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.messages)

    def __str__(self) -> str:
        kinds = list(dict.fromkeys(self.messages))
        return f"{len(self.messages)} messages such as {kinds[0]!r}" if kinds else "none"


@contextmanager
def hear_errors(library: str) -> Iterator[HeardErrors]:
    """Listen while the block runs. `library` is the package whose FFmpeg is meant (`cv2`, `torchcodec`).

    One listener at a time in a process. Whatever the block opened must be closed inside it, by an explicit call:
    a decoder thread that reports something needs the interpreter lock, which a mere deletion would hold.
    Raises DecodeError where the library's FFmpeg cannot be found.
    """
    heard = HeardErrors()
    callback = _CALLBACK(lambda _context, level, text, _arguments: _note(heard, level, text))
    with _one_listener:
        copies = [ctypes.CDLL(path) for path in _libavutil_paths(library)]
        for copy in copies:
            copy.av_log_set_callback(callback)
        try:
            yield heard
        finally:
            for copy in copies:
                copy.av_log_set_callback(copy.av_log_default_callback)


def _note(heard: HeardErrors, level: int, text: bytes | None) -> None:
    if level <= _LEVEL_ERROR:
        heard.messages.append((text or b"").decode("ascii", "replace").strip())


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
