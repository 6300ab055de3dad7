"""decode: from a path to checked frames, in this process. `decode.pool` does the same in workers that can be killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec

from framefleet.config import unknown
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.choose import (
    candidates,
    candidates_here,
    choose,
    disbelieve,
    load_backends,
    scanner,
    sees_damage,
    shortfall,
)
from framefleet.decode.decoder import DecodeBackend, DecodedFrames
from framefleet.decode.limits import limits_of
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan, plan_decode
from framefleet.decode.recovery import recover
from framefleet.decode.targets import choose_targets, output_size
from framefleet.errors import ConfigError, DecodeError, FramefleetError, SourceTooLarge, SourceUnsupported
from framefleet.media.clip import ScannedClip
from framefleet.media.limits import Deadline
from framefleet.media.source import VideoSource
from framefleet.units import format_bytes

_LEAST_TIMEOUT_S = 0.01


def decode(
    source: str | os.PathLike[str] | bytes | BinaryIO | VideoSource, options: DecodeOptions | None = None, **asked: Any
) -> DecodedFrames:
    """Sampled frames of one clip: `decode(path, num_frames=16)`. Any field of DecodeOptions may be named.

    Raises ConfigError for a wrong option, SourceError, DecodeError.
    """
    options = parse_options(options, asked)
    clock = Deadline(options.timeout_s)
    with fetched(VideoSource.of(source, options.max_source_bytes), options) as (local, fetch_s):
        clip, probe_s = scan_timed(local, _with_time_left(options, clock))
        names = candidates_here(options)
        frames = decode_scanned(clip, _with_time_left(options, clock), probe_s=probe_s, names=names)
    frames.stats.seconds["fetch"] = fetch_s
    return frames


def _with_time_left(options: DecodeOptions, clock: Deadline) -> DecodeOptions:
    return msgspec.structs.replace(options, timeout_s=max(clock.remaining_s, _LEAST_TIMEOUT_S))


@contextmanager
def fetched(source: VideoSource, options: DecodeOptions) -> Iterator[tuple[VideoSource, float]]:
    """The source on this machine while the block lasts (itself, unless it is a URL), and the seconds fetching took."""
    if source.kind != "url" or source.location.startswith("fake:"):
        yield source, 0.0
        return
    from framefleet.media.fetch import local_copy

    started_s = time.monotonic()
    with local_copy(source, limits_of(options)) as local:
        yield local, time.monotonic() - started_s


def parse_options(options: DecodeOptions | None, asked: dict[str, Any]) -> DecodeOptions:
    """`options` with the fields in `asked` set. Raises ConfigError for unknown names and wrong types."""
    if strange := [name for name in asked if name not in DecodeOptions.__struct_fields__]:
        raise unknown("decode option", strange[0], list(DecodeOptions.__struct_fields__))
    merged = {**(msgspec.structs.asdict(options) if options else {}), **asked}
    try:
        return msgspec.convert(merged, DecodeOptions)
    except msgspec.ValidationError as error:
        raise ConfigError("wrong decode option", given=str(error)) from error


def scan_timed(source: VideoSource, options: DecodeOptions) -> tuple[ScannedClip, float]:
    """The scanned clip and the seconds it took."""
    started_s = time.monotonic()
    clip = scanner(options)(source, limits_of(options))
    return clip, time.monotonic() - started_s


def decode_scanned(
    clip: ScannedClip,
    options: DecodeOptions,
    *,
    probe_s: float = 0.0,
    names: Sequence[str] = (),
    own: Mapping[str, DecodeBackend] | None = None,
) -> DecodedFrames:
    """Sample, size, plan, choose, decode and verify one scanned clip. `names` are the backends to consider, in place
    of those that the options name; `own` are backends of the caller's, considered before them.

    A backend whose frames are not believed, or that fails, is passed over for the next; one that gives fewer frames
    than were asked for is kept if no other gives more. Raises what the last backend raised if none gives any.
    """
    plan = make_plan(clip, options)
    backends = {**(own or {}), **load_backends(names or candidates(options))}
    choice = choose(clip.info, clip.index, options, backends)
    if not choice.order:
        raise _nobody_takes(clip, choice.refusals)
    frames = _first_good(clip, plan, options, {name: backends[name] for name in choice.order}, dict(choice.refusals))
    if options.frame_recovery and frames.stats.num_missing:
        frames = recover(clip, plan, options, frames, backends["pyav"] if "pyav" in backends else PyAvBackend())
    frames.stats.num_missing += clip.index.num_lost
    frames.stats.notes[:0] = clip.index.notes
    frames.stats.seconds["probe"] = probe_s
    return frames


def make_plan(clip: ScannedClip, options: DecodeOptions) -> DecodePlan:
    """Targets, size and packets. Raises ConfigError, SourceUnsupported, SourceTooLarge; nothing is opened."""
    targets = choose_targets(clip.index, options)
    width, height = output_size(clip.info, len(targets.rows), options)
    plan = plan_decode(clip.index, targets, width, height)
    if plan.output_bytes > options.max_output_bytes:
        raise SourceTooLarge(
            "the frames would take too much memory",
            given=f"{clip.source.name!r}: {len(targets.rows)} of {width}x{height}, {format_bytes(plan.output_bytes)}",
            allowed=f"max_output_bytes {format_bytes(options.max_output_bytes)}",
            remedy="fewer frames, max_pixels, or a larger max_output_bytes",
        )
    return plan


def _out_of_memory(error: MemoryError | SourceTooLarge, clip: ScannedClip, plan: DecodePlan) -> SourceTooLarge:
    if isinstance(error, SourceTooLarge) and not isinstance(error.__cause__, MemoryError):
        return error
    info = clip.info
    return SourceTooLarge(
        "decoding the clip takes more memory than there is",
        given=f"{clip.source.name!r} ({info.coded_width}x{info.coded_height})",
        allowed=f"about {format_bytes(plan.peak_bytes(info))} would do",
        remedy="free memory, or fewer or smaller frames",
    )


def _nobody_takes(clip: ScannedClip, refusals: Mapping[str, str]) -> SourceUnsupported:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
    return SourceUnsupported(
        "no backend takes the clip", given=f"{clip.source.name!r} ({reasons})", remedy="backend auto"
    )


def _first_good(
    clip: ScannedClip,
    plan: DecodePlan,
    options: DecodeOptions,
    backends: dict[str, DecodeBackend],
    passed: dict[str, str],
) -> DecodedFrames:
    started_s = time.monotonic()
    best: DecodedFrames | None = None
    failure: FramefleetError | None = None
    is_damaged = False
    for name, backend in backends.items():
        if is_damaged and not sees_damage(backend):
            passed[name] = "cannot tell this clip's damaged pictures from whole ones"
            continue
        left_s = options.timeout_s - (time.monotonic() - started_s)
        if left_s <= 0 and (best or failure):
            break
        try:
            frames = backend.decode(clip, plan, msgspec.structs.replace(options, timeout_s=max(left_s, 0.01)))
        except (MemoryError, SourceTooLarge) as error:  # no other backend takes less
            raise _out_of_memory(error, clip, plan) from error.__cause__ or error
        except FramefleetError as error:
            failure, passed[name] = failure or naming(error, clip.source.name), str(error)
            is_damaged = is_damaged or (type(error) is DecodeError and sees_damage(backend))
            continue
        if reason := disbelieve(frames, plan, clip.index):
            failure, passed[name] = failure or DecodeError(f"{name} {reason}", given=repr(clip.source.name)), reason
            continue
        if best is None or frames.stats.num_missing < best.stats.num_missing:
            best = frames
        if reason := shortfall(frames):
            passed[name] = reason
            is_damaged = is_damaged or sees_damage(backend)
            continue
        break
    if best is None:
        assert failure is not None
        raise failure
    best.stats.refusals = {name: reason for name, reason in passed.items() if name != best.stats.backend}
    first = next(iter(backends))
    best.stats.fell_back_to = best.stats.backend if best.stats.backend != first else ""
    return best


def naming(error: FramefleetError, name: str) -> FramefleetError:
    """The same error, naming the clip if it does not yet."""
    if name in str(error):
        return error
    given = f"{name!r}: {error.given}" if error.given else repr(name)
    named = type(error)(error.what, given=given, allowed=error.allowed, remedy=error.remedy)
    return named.with_traceback(error.__traceback__)
