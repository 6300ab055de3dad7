"""Whether a replica's answers let it have more requests. Pure: the clock is an argument.

closed --(failures in a row)--> open --(a short while)--> half open --(one success)--> closed
                                  ^----------(a failure: twice as long, to a limit)-----'

Half open lets one request through at a time. The while is short (nginx's `fail_timeout=10000s` once sent everything
to a single replica for hours), and what is the client's fault never counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CircuitState(StrEnum):
    """As drawn above."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True, kw_only=True)
class Circuit:
    """Of one replica."""

    max_failures: int = 5
    open_s: float = 2.0
    max_open_s: float = 30.0
    num_failures: int = 0
    """In a row."""
    _opened_times: int = 0
    _until_s: float = 0.0
    _is_trying: bool = False

    def state(self, now_s: float) -> CircuitState:
        """Where it stands."""
        if not self._opened_times:
            return CircuitState.CLOSED
        return CircuitState.OPEN if now_s < self._until_s else CircuitState.HALF_OPEN

    def lets_pass(self, now_s: float) -> bool:
        """Whether a request may go."""
        state = self.state(now_s)
        return state is CircuitState.CLOSED or (state is CircuitState.HALF_OPEN and not self._is_trying)

    def sent(self, now_s: float) -> None:
        """A request goes."""
        if self.state(now_s) is CircuitState.HALF_OPEN:
            self._is_trying = True

    def dropped(self) -> None:
        """A request that was sent ended without telling anything: the client left, or was to blame."""
        self._is_trying = False

    def succeeded(self) -> None:
        """A request was answered."""
        self.num_failures = self._opened_times = 0
        self._is_trying = False

    def failed(self, now_s: float) -> None:
        """A request failed by the replica's fault. One that was sent before it opened does not prolong it."""
        state = self.state(now_s)
        self.num_failures += 1
        if state is CircuitState.HALF_OPEN or (state is CircuitState.CLOSED and self.num_failures >= self.max_failures):
            self._until_s = now_s + min(self.max_open_s, self.open_s * 2**self._opened_times)
            self._opened_times = min(self._opened_times + 1, 30)
        self._is_trying = False
