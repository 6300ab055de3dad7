"""What is known of a request at its end: counted, and told in one line of the log, however it ended."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from framefleet.serve.admission import Priority
from framefleet.serve.proxy_metrics import ProxyMetrics

CLIENT_GONE = 499
_log = logging.getLogger("framefleet.serve.requests")


@dataclass(slots=True)
class RequestAccount:
    """Of one request; filled while it is served."""

    request_id: str
    path: str
    arrived_s: float = field(default_factory=time.perf_counter)
    queue_s: float = 0.0
    first_byte_s: float = 0.0
    status: int = CLIENT_GONE
    end: str = "client_gone"
    """`answered`, `refused` (by the proxy), `failed`, `cut` (in the middle of the answer), `client_gone`."""
    replica: str = ""
    attempts: list[str] = field(default_factory=list)
    """`r0:lost` for each that failed."""
    key: str = ""
    priority: Priority = Priority.BATCH
    work: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0

    def close(self, metrics: ProxyMetrics) -> None:
        """Count it and log it."""
        total_s, priority = time.perf_counter() - self.arrived_s, self.priority.word
        metrics.requests.labels(self.replica, str(self.status), self.end, priority).inc()
        metrics.queue.labels(priority).observe(self.queue_s)
        metrics.total.labels(priority).observe(total_s)
        metrics.received.inc(self.received_bytes)
        metrics.sent.inc(self.sent_bytes)
        metrics.recent.add(
            replica=self.replica, status=self.status, end=self.end, first_byte_s=self.first_byte_s, total_s=total_s
        )
        for attempt in self.attempts if self.end == "answered" else self.attempts[:-1]:
            metrics.retries.labels(*attempt.rsplit(":", 1)).inc()
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", msgspec.json.encode(self._line(total_s)).decode())

    def _line(self, total_s: float) -> dict[str, Any]:
        seconds = {"queue": self.queue_s, "first_byte": self.first_byte_s, "total": total_s}
        return {
            "request": self.request_id, "path": self.path, "status": self.status, "end": self.end,
            "replica": self.replica, "attempts": self.attempts, "key": self.key, "priority": self.priority.word,
            "work": self.work, "received_bytes": self.received_bytes, "sent_bytes": self.sent_bytes,
            "seconds": {phase: round(value, 6) for phase, value in seconds.items()},
        }  # fmt: skip
