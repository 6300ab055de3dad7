"""What a client and the decode service say to each other. `decode.wire` carries it, frames and clips as memory files.

One connection is one request: an `Ask`, answered by `Started` and then `Answer`, `Failure` or `Again`; or an
`AskStats`, answered by `ServiceStats`. The connection of an `Answer` stays open as long as the client keeps the
frames: its end, however it comes, says that they are dropped. Its end before the answer calls the work off.
"""

from __future__ import annotations

import msgspec

from framefleet.decode.messages import Problem
from framefleet.decode.options import DecodeOptions
from framefleet.media.source import VideoSource


class Ask(msgspec.Struct, tag="ask"):
    """Decode one clip. A clip in memory comes as a sealed memory file beside the message."""

    source: VideoSource
    options: DecodeOptions
    is_suspect: bool = False
    """A service died while it was at this clip."""


class AskStats(msgspec.Struct, tag="ask_stats"):
    """How is the service?"""


class Started(msgspec.Struct, tag="started"):
    """The clip's turn has come."""

    is_isolated: bool = False
    """In a worker of its own: if the service dies now, it is not by this clip."""


class Answer(msgspec.Struct, tag="answer"):
    """The frames: a DecodedFrames."""

    frames: msgspec.Raw


class Failure(msgspec.Struct, tag="failure"):
    """There are none, and why."""

    problem: Problem


class Again(msgspec.Struct, tag="again"):
    """The service is being stopped; the clip is not to blame. Ask the next one."""


class Silicon(msgspec.Struct, frozen=True):
    """One kind of decoder that the service has."""

    name: str
    """`cpu` or `nvdec`."""
    slots: int
    """Clips it takes at once."""
    running: int
    busy_s_total: float
    """Seconds spent on clips by all slots together; over `slots` x elapsed seconds it is the busy share."""


class ServiceStats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """A look at the service. Counts are since its start."""

    pid: int
    uptime_s: float
    gpu: str
    """As given by --gpu; empty: the CPU alone."""
    clients: int
    """Processes that wait for a clip or hold frames."""
    queued: int
    running: int
    frames_held: int
    """Clips whose frames a client still maps."""
    done: int
    failed: int
    """Answered with an error."""
    cancelled: int
    """Called off by the client's end or deadline."""
    budget_bytes: int
    """For finished frames, of all clients together."""
    budget_held_bytes: int
    budget_waiting: int
    """Clips that wait for room."""
    budget_waited_s: float
    workers_lost: int
    quarantined: int
    hung: int
    """Decodes that NVDEC did not come back from. The service ends because of them, to be started anew."""
    silicon: tuple[Silicon, ...]

    def prometheus(self) -> str:
        """In the Prometheus text format."""
        lines = []
        for name, kind, text in _METRICS:
            lines += [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}"]
            lines.append(f"{_PREFIX}{name} {getattr(self, name.removesuffix('_total'))}")
        for name, kind, text in _SILICON_METRICS:
            lines += [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}"]
            field = name.removeprefix("silicon_").replace("busy_seconds_total", "busy_s_total")
            lines += [f'{_PREFIX}{name}{{silicon="{one.name}"}} {getattr(one, field)}' for one in self.silicon]
        return "\n".join(lines) + "\n"


_PREFIX = "framefleet_decode_"
_METRICS = (
    ("queued", "gauge", "Clips whose turn has not come."),
    ("running", "gauge", "Clips being decoded."),
    ("clients", "gauge", "Processes that wait for a clip or hold frames."),
    ("frames_held", "gauge", "Clips whose frames a client still maps."),
    ("done_total", "counter", "Clips answered with frames."),
    ("failed_total", "counter", "Clips answered with an error."),
    ("cancelled_total", "counter", "Clips called off by their client."),
    ("budget_bytes", "gauge", "Room for finished frames."),
    ("budget_held_bytes", "gauge", "Room taken."),
    ("budget_waiting", "gauge", "Clips that wait for room."),
    ("workers_lost_total", "counter", "Decode workers that died or were killed."),
    ("quarantined", "gauge", "Clips refused because they killed workers."),
)
_SILICON_METRICS = (
    ("silicon_slots", "gauge", "Clips this kind of decoder takes at once."),
    ("silicon_running", "gauge", "Clips it is at."),
    ("silicon_busy_seconds_total", "counter", "Seconds spent on clips, all slots together."),
)

ToService = Ask | AskStats
FromService = Started | Answer | Failure | Again | ServiceStats
