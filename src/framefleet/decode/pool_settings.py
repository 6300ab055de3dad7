"""PoolSettings: how many decode workers, and what each may take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from framefleet.errors import ConfigError
from framefleet.units import GIB

Positive = Annotated[int, msgspec.Meta(ge=1)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0)]


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many workers, and what each may take. workers x threads is at most the number of usable cores."""

    workers: Positive | None = None
    """Worker processes. None: usable cores / threads. More decode more clips at once."""
    threads: Positive = 1
    """Threads one decode may use (more are refused). More shorten one clip's wait, not the whole work."""
    max_bytes_in_flight: Positive = 2 * GIB
    """Bytes of frames decoded, or being decoded, and not yet dropped by whoever asked. A clip above it is refused."""
    lease_timeout_s: PositiveSeconds = 600.0
    """How long a planned clip waits for room before BudgetTimeout."""
    worker_bytes: Positive | None = 3 * GIB
    """Private memory of one worker besides the frames it was granted. Lower stops bombs earlier; None: no limit."""
    max_kills: Positive = 2
    """A clip that cost this many workers is quarantined. 2 tries a crash once more; 1 never does."""
    recycle_after_jobs: Positive = 1000
    """A worker is replaced after so many jobs, which undoes whatever its libraries leak."""
    recycle_above_bytes: Positive = 1 * GIB
    """A worker whose resident memory stays above this after a job is replaced."""
    start_timeout_s: PositiveSeconds = 120.0
    """How long a worker may take to load its libraries."""
    digest_timeout_s: PositiveSeconds = 600.0
    """Deadline of hashing one clip."""
    niceness: Annotated[int, msgspec.Meta(ge=0, le=19)] = 0
    """Added to the workers' niceness: with 10 they decode with what others leave of the cores."""
    tasks: str = "framefleet.decode.tasks"
    """Module the workers take their tasks from."""

    @property
    def num_workers(self) -> int:
        """Worker processes. Raises ConfigError when workers x threads is above the number of usable cores."""
        cores = usable_cores()
        workers = self.workers or max(1, cores // self.threads)
        if workers * self.threads > cores:
            raise ConfigError(
                "more decode threads than cores only slow each other down",
                given=f"workers={workers} x threads={self.threads}",
                allowed=f"at most {cores} together",
                remedy="fewer workers, or fewer threads each",
            )
        return workers


def usable_cores() -> int:
    """Cores this process may use: its affinity, and its control group's quota (rounded up)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
