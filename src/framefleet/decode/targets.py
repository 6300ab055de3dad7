"""From DecodeOptions and an index to the rows wanted and the size they come in: the pure half before the plan."""

from __future__ import annotations

import numpy as np

from framefleet.decode.options import DecodeOptions
from framefleet.errors import ConfigError, SourceUnsupported
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.sampling.model_rules import rule_sampler
from framefleet.sampling.sampler import FrameSampler, FrameTargets
from framefleet.sampling.size import kept_size, size_for_budget
from framefleet.sampling.uniform import CountSampler, FpsSampler
from framefleet.units import NS_PER_S

DEFAULT_NUM_FRAMES = 16


def sampler_for(options: DecodeOptions) -> FrameSampler:
    """The sampler the options ask for. Raises ConfigError where they contradict one another: nothing is ignored."""
    bounds = {"min_frames": options.min_frames, "max_frames": options.max_frames}
    if options.rule is not None:
        _refuse_together("rule", num_frames=options.num_frames)
        return rule_sampler(options.rule, fps=options.fps, max_duration_s=options.max_duration_s, **bounds)
    if options.fps is not None:
        _refuse_together("fps", num_frames=options.num_frames)
        return FpsSampler(options.fps, max_duration_s=options.max_duration_s, **bounds)
    _refuse_together("a fixed number of frames", **bounds)
    num_frames = DEFAULT_NUM_FRAMES if options.num_frames is None else options.num_frames
    return CountSampler(num_frames, options.max_duration_s)


def _refuse_together(chosen: str, **others: object) -> None:
    for name, value in others.items():
        if value is not None:
            raise ConfigError(
                f"{chosen} and {name} contradict each other", given=f"{name}={value}", remedy="leave one of them out"
            )


def choose_targets(index: FrameIndex, options: DecodeOptions) -> FrameTargets:
    """Rows of the index to decode: those of the span (all without one), thinned by the sampler.

    Raises ConfigError for contradictory options, SourceUnsupported when the clip or its span holds no frame.
    """
    sampler = sampler_for(options)
    first, stop, end_ns = 0, index.num_frames, index.end_ns
    if options.span is not None:
        first = int(np.searchsorted(index.pts_ns, options.span.start_ns, side="left"))
        stop = int(np.searchsorted(index.pts_ns, options.span.end_ns, side="left"))
        end_ns = min(end_ns, options.span.end_ns)
    if first >= stop:
        raise SourceUnsupported(
            "there is no frame to decode",
            given=f"span {options.span}" if options.span else "a clip without presentable frames",
            allowed=_extent(index),
        )
    return FrameTargets(sampler.sample(index.pts_ns[first:stop], end_ns).rows + first)


def _extent(index: FrameIndex) -> str:
    if not index.num_frames:
        return ""
    return f"{int(index.pts_ns[0]) / NS_PER_S:.3f}-{index.end_ns / NS_PER_S:.3f}s"


def output_size(info: StreamInfo, num_frames: int, options: DecodeOptions) -> tuple[int, int]:
    """(width, height) of the output: the exact `size`, or what the pixel budgets make of the upright picture.

    Raises ConfigError for contradictory options, SourceUnsupported for slivers where a model's sizing applies.
    """
    budgets = {
        name: getattr(options, name) for name in ("min_pixels", "max_pixels", "min_total_pixels", "total_pixels")
    }  # fmt: skip
    if options.size_factor < 1:
        raise ConfigError("size_factor must be positive", given=str(options.size_factor), allowed="1 up")
    if options.size is None:
        size_of = kept_size if options.keeps_size else size_for_budget
        return size_of(info.width, info.height, num_frames, size_factor=options.size_factor, **budgets)
    _refuse_together("size", **budgets)
    if min(options.size) < 1 or any(side % options.size_factor for side in options.size):
        given = "{}x{}".format(*options.size)
        raise ConfigError("not a usable size", given=given, allowed=f"positive multiples of {options.size_factor}")
    return options.size
