"""The progress of a caption run: one living line in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from framefleet.cli.render import printable

if TYPE_CHECKING:
    from framefleet.caption.progress import Progress
    from framefleet.engine.captioner import CaptionRecord

_EVERY_S = 15.0
_MOST_FAILURES = 20


class ProgressLine:
    """Writes to stderr. Use as a context, so that the terminal's line is ended whatever happens."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._told_s = time.monotonic()
        self._num_failures = 0
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_line()

    def update(self, progress: Progress) -> None:
        """Show how the run stands."""
        if self._is_quiet:
            return
        if self._is_terminal:
            sys.stderr.write(f"\r{progress_text(progress)}\x1b[K")
            sys.stderr.flush()
            self._is_open = True
        elif time.monotonic() - self._told_s >= _EVERY_S:
            self._told_s = time.monotonic()
            sys.stderr.write(progress_text(progress) + "\n")

    def tell_failures(self, records: Sequence[CaptionRecord]) -> None:
        """Name the clips that failed, the first few of them."""
        for record in records:
            if record.status not in ("failed", "rejected"):
                continue
            self._num_failures += 1
            if self._num_failures <= _MOST_FAILURES:
                self._end_line()
                sys.stderr.write(printable(f"{record.status}: {record.clip}: {record.reason}: {record.message}") + "\n")
            if self._num_failures == _MOST_FAILURES:
                sys.stderr.write("further failures are recorded in the store and not shown here\n")

    def _end_line(self) -> None:
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
            self._is_open = False


def progress_text(progress: Progress) -> str:
    """`12/24 clips, 11 captioned, 1 failed, 3.4/s, 0:07 left, waits for the engine`."""
    total = "?" if progress.clips_total is None else str(progress.clips_total)
    parts = [f"{progress.clips_done}/{total} clips", f"{progress.ok + progress.truncated} captioned"]
    if failed := progress.failed + progress.rejected:
        parts.append(f"{failed} failed")
    if progress.skipped:
        parts.append(f"{progress.skipped} done before")
    if progress.windows_per_s:
        parts.append(f"{progress.windows_per_s:.2g}/s")
    if progress.eta_s is not None and progress.eta_s >= 1:
        parts.append(f"{clock(progress.eta_s)} left")
    if progress.bottleneck:
        parts.append(f"waits for {_WAITS[progress.bottleneck]}")
    return ", ".join(parts)


_WAITS = {"input": "the inputs", "decode": "decoding", "engine": "the engine", "store": "the store"}


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `3:00:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
