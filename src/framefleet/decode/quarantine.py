"""Clips that killed their decode workers: remembered with the reason, and refused from then on."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from framefleet.decode.tasks import Job
from framefleet.errors import DecodeError, DecoderLost, DecodeTimeout
from framefleet.media.source import VideoSource

_REASONS: tuple[type[DecodeError], ...] = (DecoderLost, DecodeTimeout)


@dataclass(frozen=True, slots=True)
class Offence:
    """What one clip did to its workers under one task and backend. Plain values: fit for a ledger."""

    clip: str
    """Path (with its size and time of change), URL, or digest of bytes in memory. A file that changes is new."""
    task: str
    backend: str
    name: str
    """For people."""
    num_kills: int
    reason: str
    error: str
    """Class in framefleet.errors."""
    deadline_s: float | None
    """The longest deadline that was not enough; None when the worker died of itself."""


class Quarantine:
    """Counts offences; a clip with `max_kills` of them is refused. Thread-safe.

    A clip that was only too slow gets another chance from a caller who gives it a longer deadline.
    """

    def __init__(self, max_kills: int, known: tuple[Offence, ...] = ()) -> None:
        self._max_kills = max_kills
        self._offences = {(o.clip, o.task, o.backend): o for o in known}
        self._changing = threading.Lock()

    @property
    def clips(self) -> tuple[Offence, ...]:
        """Those refused now."""
        return tuple(o for o in tuple(self._offences.values()) if o.num_kills >= self._max_kills)

    def check(self, job: Job) -> None:
        """Raise the error of the last offence, class and all, if the job is refused."""
        found = self._offences.get(_key(job))
        if found is None or found.num_kills < self._max_kills:
            return
        if found.deadline_s is not None and job.options.timeout_s > found.deadline_s:
            return
        kind = next((k for k in _REASONS if k.__name__ == found.error), DecoderLost)
        raise kind(
            f"the clip is quarantined: it cost {found.num_kills} worker{'s' * (found.num_kills != 1)}",
            given=f"{found.name!r} ({found.reason})",
            remedy="another backend" + ("" if found.deadline_s is None else ", or a longer timeout_s"),
        )

    def record(self, job: Job, error: DecodeError) -> None:
        """A worker was lost to the job."""
        key = _key(job)
        with self._changing:
            before = self._offences.get(key)
            self._offences[key] = Offence(
                *key,
                name=job.source.name,
                num_kills=1 + (before.num_kills if before else 0),
                reason=error.what,
                error=type(error).__name__,
                deadline_s=_deadline_s(job, error, before),
            )

    def clear(self, job: Job) -> None:
        """The job went well: what happened before was not the clip's fault."""
        with self._changing:
            self._offences.pop(_key(job), None)


def _deadline_s(job: Job, error: DecodeError, before: Offence | None) -> float | None:
    if not isinstance(error, DecodeTimeout) or (before and before.deadline_s is None):
        return None
    return max(job.options.timeout_s, before.deadline_s or 0.0 if before else 0.0)


def _key(job: Job) -> tuple[str, str, str]:
    return _identity(job.source), job.task, job.options.backend


def _identity(source: VideoSource) -> str:
    if source.kind != "file" or source.title:  # a copy goes by the name of what it copies
        return source.name
    try:
        status = Path(source.location).stat()
    except (OSError, ValueError):
        return source.location
    return f"{source.location}?size={status.st_size}&changed_ns={status.st_mtime_ns}"
