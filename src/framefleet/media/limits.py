"""ScanLimits: how much a source may cost before it is refused. Read by probing and scanning alike."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from framefleet.errors import DecodeTimeout
from framefleet.units import GIB


class Deadline:
    """A moment on the monotonic clock. `check` raises DecodeTimeout once it has passed."""

    __slots__ = ("at_s", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.at_s = time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at_s - time.monotonic())

    def check(self, doing: str, name: str) -> None:
        """Raise DecodeTimeout naming what was under way and the clip."""
        if time.monotonic() > self.at_s:
            raise DecodeTimeout(
                f"{doing} passed the deadline",
                given=repr(name),
                allowed=f"{self.timeout_s:g} s",
                remedy="a longer timeout",
            )


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Whom a URL may lead to."""

    allowed_hosts: tuple[str, ...] | None = None
    """None: anyone, and any kind of store. Else these hosts only (`.example.org` for all below it), over http(s), and
    never an address inside a private network."""
    allow_private: bool = False
    """Private addresses are fine even under `allowed_hosts` (a store in one's own network)."""
    stall_s: float = 15.0
    """A connection silent for so long is given up."""

    def allows(self, host: str) -> bool:
        """Whether `host` is one of `allowed_hosts`."""
        host = host.lower().rstrip(".")
        return self.allowed_hosts is None or any(
            host == allowed or (allowed.startswith(".") and host.endswith(allowed)) for allowed in self.allowed_hosts
        )


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """Limits on one source; DecodeOptions has a field of the same name for each."""

    deadline: Deadline = field(default_factory=lambda: Deadline(60.0))
    max_source_bytes: int = 16 * GIB
    max_source_pixels: int = 8192 * 8192
    max_source_frames: int = 10_000_000
    fetch: FetchPolicy = field(default_factory=FetchPolicy)
    header_only: bool = False
    """Take counts and times from the header instead of walking the packets (quick, and believed at your own risk)."""
