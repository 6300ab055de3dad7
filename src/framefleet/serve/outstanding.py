"""What each replica has been given and not yet finished. Integers under leases: no count drifts or falls below zero."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass


@dataclass(slots=True)
class _Load:
    work: int = 0
    num_in_flight: int = 0


class OutstandingWork:
    """By replica. `with work.lease("r0", 1000): ...`."""

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = defaultdict(_Load)

    def lease(self, name: str, work: int) -> WorkLease:
        """Charge a replica with `work` >= 0 until the lease is released."""
        return WorkLease(self._loads[name], max(0, work))

    def work_of(self, name: str) -> int:
        """Outstanding now."""
        return self._loads[name].work

    def num_in_flight(self, name: str) -> int:
        """Requests now."""
        return self._loads[name].num_in_flight

    @property
    def total_in_flight(self) -> int:
        """Requests at all replicas."""
        return sum(load.num_in_flight for load in self._loads.values())


class WorkLease:
    """One request at one replica."""

    def __init__(self, load: _Load, work: int) -> None:
        self._load, self._work, self._is_held = load, work, True
        load.work += work
        load.num_in_flight += 1

    def settle(self, work: int) -> None:
        """The request turned out to be this much. No effect once released."""
        if self._is_held:
            self._load.work += max(0, work) - self._work
            self._work = max(0, work)

    def release(self) -> None:
        """Idempotent."""
        if self._is_held:
            self._is_held = False
            self._load.work -= self._work
            self._load.num_in_flight -= 1

    def __enter__(self) -> WorkLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
