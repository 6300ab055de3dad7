"""Tells a clip that fails from an engine that is down, so that an outage does not mark a million clips as failed.

Records that failed by the fault of the engine or the settings are held back. The next caption that comes proves that
the engine works: then they count as failed. When too many come in a row, or nothing else came by the end, they are
dropped, and the run ends with the engine's error; a later run does those windows.
"""

from __future__ import annotations

from collections.abc import Iterable

from framefleet.caption.step import error_class_of
from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import CaptionError, ConfigError, DeviceError, FramefleetError, ReplicaError

_ENGINE_ERRORS = (CaptionError, ReplicaError, DeviceError, ConfigError)


class Breaker:
    """`sift` every record in order of arrival."""

    def __init__(self, streak: int) -> None:
        self.streak = streak
        self._held: list[CaptionRecord] = []
        self._has_answered = False

    def sift(self, records: Iterable[CaptionRecord]) -> list[CaptionRecord]:
        """Those that may be committed now."""
        passed = []
        for record in records:
            if is_engines_fault(record):
                self._held.append(record)
                continue
            if record.status != "failed" and record.attempts:
                self._has_answered = True
                passed += self._held
                self._held = []
            passed.append(record)
        return passed

    def check(self) -> None:
        """Raise the engine's error when the row is too long."""
        if len(self._held) >= self.streak:
            raise self._error()

    def release(self) -> list[CaptionRecord]:
        """At the end: what is held. Raises the engine's error when it never answered."""
        if self._held and not self._has_answered:
            raise self._error()
        held, self._held = self._held, []
        return held

    def _error(self) -> FramefleetError:
        last = self._held[-1]
        return error_class_of(last)(
            f"the engine {last.engine} fails: {len(self._held)} windows in a row, none of them recorded",
            given=last.message,
            remedy="see to it, then run the same command again",
        )


def is_engines_fault(record: CaptionRecord) -> bool:
    """Whether a failed record blames the engine, its device or the settings, not the clip."""
    kind = error_class_of(record)
    return record.status == "failed" and issubclass(kind, _ENGINE_ERRORS) and kind.blame in ("device", "config")
