"""Procedural front-camera driving scenes: what is true of them, how they look, and how they are written to files.

`sample_scene(seed)` draws a scene, `render` its frames, `write_clip` a video file, `caption_of` its true caption;
`parse_caption` and `score` judge any other caption of it. Drawing needs OpenCV (extra `opencv`), truth and captions
need nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framefleet.scenes.captions import (
    ATTRIBUTES,
    MOTION_ATTRIBUTES,
    attributes_of,
    caption_of,
    mean_score,
    parse_caption,
    score,
    short_caption_of,
    truth_of,
)
from framefleet.scenes.sampler import sample_scene
from framefleet.scenes.truth import Scene, Truth, Vehicle

if TYPE_CHECKING:
    from framefleet.scenes.drawing import frame_times_s, render, render_at
    from framefleet.scenes.encode import ClipFormat, write_clip
    from framefleet.scenes.gallery import SampleClip, sample_clips

_LAZY = {
    "ClipFormat": "encode",
    "write_clip": "encode",
    "frame_times_s": "drawing",
    "render": "drawing",
    "render_at": "drawing",
    "SampleClip": "gallery",
    "sample_clips": "gallery",
}

__all__ = [
    "ATTRIBUTES",
    "MOTION_ATTRIBUTES",
    "ClipFormat",
    "SampleClip",
    "Scene",
    "Truth",
    "Vehicle",
    "attributes_of",
    "caption_of",
    "frame_times_s",
    "mean_score",
    "parse_caption",
    "render",
    "render_at",
    "sample_clips",
    "sample_scene",
    "score",
    "short_caption_of",
    "truth_of",
    "write_clip",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
