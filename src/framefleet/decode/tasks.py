"""The few things a decode worker does, by name. A pool may name another module of the same shape; this is the default.

Each task takes a `Job` and `ask`. `ask` must be called with the size of the output frames before they are made, and
returns once there is room for them. Libraries are imported inside, so that the pool's own process, which reads only
`RESULTS`, loads none; `warm_up` imports them in the worker, before any clip's clock runs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from framefleet.decode.decoder import DecodedFrames
from framefleet.decode.options import DecodeOptions
from framefleet.media.clip import ScannedClip
from framefleet.media.source import VideoSource

if TYPE_CHECKING:
    from framefleet.decode.deepstream.feed import Feed
    from framefleet.decode.nvdec.parcel import Parcel
    from framefleet.decode.plan import DecodePlan
    from framefleet.media.limits import ScanLimits

T = TypeVar("T")

Ask = Callable[[int], None]
"""Called with bytes; returns when they are granted."""

RESULTS: dict[str, Any] = {
    "decode": DecodedFrames,
    "scan": ScannedClip,
    "digest": str,
    "pack": "framefleet.decode.nvdec.parcel:Parcel",
    "cut": "framefleet.decode.deepstream.feed:Feed",
}
"""Task -> the type of its result, or where that is found by whoever asks for it (its module loads a decode library)."""

PACKS_FOR = {"pynvvideocodec": "pack", "deepstream": "cut"}
"""Backend on a GPU -> the task that prepares a clip for it."""

_LEAST_TIMEOUT_S = 0.05


class Job(msgspec.Struct, tag="job"):
    """One task on one clip."""

    task: str
    source: VideoSource
    options: DecodeOptions
    scanned: ScannedClip | None = None
    """The clip's scan, when it was made before (without the bytes of a clip in memory, which `source` has)."""


def decode(job: Job, ask: Ask) -> DecodedFrames:
    """As `session.decode`. Waiting for room stops the clip's clock."""
    from framefleet.decode import session

    with session.fetched(job.source, job.options) as (source, fetch_s):
        started_s = time.monotonic()
        if job.scanned:
            clip, probe_s = dataclasses.replace(job.scanned, source=source), 0.0
        else:
            clip, probe_s = session.scan_timed(source, job.options)
        plan = session.make_plan(clip, job.options)
        left_s = max(job.options.timeout_s - fetch_s - (time.monotonic() - started_s), _LEAST_TIMEOUT_S)
        ask(plan.output_bytes)
        options = msgspec.structs.replace(job.options, timeout_s=left_s)
        frames = session.decode_scanned(clip, options, probe_s=probe_s)
    frames.stats.seconds["fetch"] = fetch_s
    return frames


def scan(job: Job, ask: Ask) -> ScannedClip:
    """Header and packets. The bytes of a clip in memory do not travel back."""
    from framefleet.decode import session

    clip, _ = session.scan_timed(job.source, job.options)
    return dataclasses.replace(clip, source=dataclasses.replace(clip.source, content=None))


def pack(job: Job, ask: Ask) -> Parcel:
    """The plan's packets, for an NVDEC that another process owns. A parcel is never larger than its clip."""
    from framefleet.decode.nvdec import parcel

    return _from_plan(job, ask, parcel.pack)


def cut(job: Job, ask: Ask) -> Feed:
    """The plan's packets as a stream, for a DeepStream that another process owns."""
    from framefleet.decode.deepstream import feed

    return _from_plan(job, ask, feed.cut)


def _from_plan(job: Job, ask: Ask, make: Callable[[ScannedClip, DecodePlan, ScanLimits], T]) -> T:
    from framefleet.decode import session
    from framefleet.decode.limits import limits_of

    with session.fetched(job.source, job.options) as (source, _):
        clip, _ = session.scan_timed(source, job.options)
        plan = session.make_plan(clip, job.options)
        ask(clip.info.size_bytes or plan.output_bytes)
        return make(clip, plan, limits_of(job.options))


def digest(job: Job, ask: Ask) -> str:
    """Of all the clip's bytes."""
    from framefleet.media.digest import content_digest

    return content_digest(job.source)


def warm_up() -> None:
    """Import what the tasks need."""
    import framefleet.decode.session  # noqa: F401
