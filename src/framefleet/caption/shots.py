"""Where shots begin: PySceneDetect's adaptive detector, fed with our own frames.

Its file readers are not used: they count frames as OpenCV's header does, so cuts in clips with an edit list, a variable
rate or no frame count would lie at wrong times. Here a cut is the pts of the first frame of a shot.

The library comes with the extra `shots` as `scenedetect-headless`: the plain `scenedetect` depends on opencv-python,
which overwrites the files of opencv-python-headless (one package `cv2` for both).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet.caption.reader import ClipReader
from framefleet.decode.decoder import ScannedClip
from framefleet.decode.options import DecodeOptions
from framefleet.errors import MissingLibrary
from framefleet.media.index import FrameIndex
from framefleet.units import NS_PER_S, Span

DETECTOR_PIXELS = 256 * 144
"""Detection works on small pictures, as PySceneDetect scales them for itself."""
_CHUNK_FRAMES = 256
"""A stretch decoded at once ends at the first keyframe after this many frames ..."""
_MAX_CHUNK_FRAMES = 2048
"""... and after this many in any case (226 MB of small frames)."""


async def find_cuts(reader: ClipReader, clip: ScannedClip, min_shot_ns: int, options: DecodeOptions) -> list[int]:
    """The pts in ns of every first frame of a shot but the first. Every frame of the clip is decoded, small.

    Frames that cannot be decoded are passed over. Raises MissingLibrary, SourceError or DecodeError.
    """
    detector = _Detector(clip.index, min_shot_ns)
    small = msgspec.structs.replace(
        options, fps=None, rule=None, min_frames=None, max_frames=None, max_duration_s=None, size=None,
        min_pixels=None, max_pixels=DETECTOR_PIXELS, total_pixels=None, min_total_pixels=None, size_factor=1,
    )  # fmt: skip
    for rows in chunks(clip.index):
        span = span_of_rows(clip.index, rows)
        options = msgspec.structs.replace(small, num_frames=len(rows), span=span)
        frames = await reader.decode(clip, options)
        await asyncio.to_thread(detector.feed, frames.data, frames.indices)
    return detector.cuts_ns


def chunks(index: FrameIndex) -> Iterator[range]:
    """The clip's rows in runs that begin at keyframes where they can, so that little is decoded twice."""
    keyframe_rows = np.flatnonzero(index.is_keyframe)
    first = 0
    while first < index.num_frames:
        after = np.searchsorted(keyframe_rows, first + _CHUNK_FRAMES)
        stop = int(keyframe_rows[after]) if after < len(keyframe_rows) else index.num_frames
        stop = min(stop, first + _MAX_CHUNK_FRAMES)
        yield range(first, stop)
        first = stop


def span_of_rows(index: FrameIndex, rows: range) -> Span:
    """The half-open span that holds exactly these rows."""
    is_last = rows.stop == index.num_frames
    end_ns = max(index.end_ns, int(index.pts_ns[-1]) + 1) if is_last else int(index.pts_ns[rows.stop])
    return Span(int(index.pts_ns[rows.start]), end_ns)


class _Detector:
    """PySceneDetect's detector on the clip's own clock (counted from its first frame: it knows no negative times)."""

    def __init__(self, index: FrameIndex, min_shot_ns: int) -> None:
        scenedetect = _library()
        self._index = index
        self._origin_ns = int(index.pts_ns[0])
        self._rate = Fraction(index.fps).limit_denominator(1_000_000) or Fraction(1)
        self._detector = scenedetect.AdaptiveDetector(min_scene_len=min_shot_ns / NS_PER_S)
        self._timecode = scenedetect.FrameTimecode
        self._at = scenedetect.common.Timecode
        self.cuts_ns: list[int] = []

    def feed(self, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> None:
        """Frames [T,H,W,3] RGB of these rows [T], in order."""
        for picture, row in zip(data, rows, strict=True):
            since_ns = int(self._index.pts_ns[row]) - self._origin_ns
            when = self._timecode(self._at(since_ns, Fraction(1, NS_PER_S)), fps=self._rate)
            found = self._detector.process_frame(when, np.ascontiguousarray(picture[:, :, ::-1]))
            self.cuts_ns += [self._origin_ns + cut.pts for cut in found]


def _library() -> Any:
    try:
        import scenedetect
        import scenedetect.common
    except ImportError as error:
        raise MissingLibrary(
            "shots need PySceneDetect", given=str(error), remedy="pip install 'framefleet[shots]'"
        ) from error
    return scenedetect
