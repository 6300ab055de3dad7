"""Clips into windows. Pure: times in, half-open spans out, and how many before any is made.

Rules
- Windows start at the first frame's pts and cover the clip to its end, `[first, end)`, each `length` long.
- With an overlap the next window starts `length - overlap` later.
- The last window is shorter. When it would add less than a quarter of what a window adds (its length without the
  overlap), the one before it is made longer instead: a caption of a sliver says nothing.
- A window in which no frame begins (a still picture that stands longer than a window) joins the window before it.
- Shots run from cut to cut. One shorter than the minimum joins the shot after it (the last joins the one before it);
  one longer than the window length, where that is given too, is cut by the window rule.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from framefleet.errors import SourceTooLarge
from framefleet.units import Span

TAIL_SHARE = 4
"""A tail that adds less than one over this of what a window adds joins the window before it."""


def count_windows(first_ns: int, end_ns: int, length_ns: int, overlap_ns: int = 0) -> int:
    """How many windows `cut_windows` gives, without making them."""
    assert 0 <= overlap_ns < length_ns, (length_ns, overlap_ns)
    beyond_first_ns = end_ns - first_ns - length_ns
    if beyond_first_ns <= 0:
        return 1
    stride_ns = length_ns - overlap_ns
    whole, tail_ns = divmod(beyond_first_ns, stride_ns)
    tail_stands_alone = TAIL_SHARE * tail_ns >= stride_ns
    return 1 + whole + int(tail_stands_alone)


def cut_windows(first_ns: int, end_ns: int, length_ns: int, overlap_ns: int = 0) -> list[Span]:
    """The windows of a clip whose first frame is shown at `first_ns` and whose last one ends at `end_ns`."""
    stride_ns = length_ns - overlap_ns
    num = count_windows(first_ns, end_ns, length_ns, overlap_ns)
    starts = range(first_ns, first_ns + num * stride_ns, stride_ns)
    return [Span(start, start + length_ns) for start in starts[:-1]] + [Span(starts[-1], end_ns)]


def cut_at(cuts_ns: Iterable[int], first_ns: int, end_ns: int, min_ns: int, max_ns: int | None = None) -> list[Span]:
    """The shots between cuts (in any order; those outside the clip do not count), none shorter than `min_ns` unless the
    clip itself is, none longer than `max_ns` (plus the tail rule)."""
    edges = [first_ns]
    for cut in sorted({c for c in cuts_ns if first_ns < c < end_ns}):
        if cut - edges[-1] >= min_ns:
            edges.append(cut)
    while len(edges) > 1 and end_ns - edges[-1] < min_ns:
        edges.pop()
    shots = [Span(a, b) for a, b in zip(edges, [*edges[1:], end_ns], strict=True)]
    if max_ns is None:
        return shots
    return [window for shot in shots for window in cut_windows(shot.start_ns, shot.end_ns, max_ns)]


def join_frameless(windows: list[Span], pts_ns: npt.NDArray[np.int64]) -> list[Span]:
    """Windows that hold the start of no frame (`pts_ns` [N], increasing) become part of the one before them."""
    starts = np.array([w.start_ns for w in windows], dtype=np.int64)
    ends = np.array([w.end_ns for w in windows], dtype=np.int64)
    holds = np.searchsorted(pts_ns, ends, side="left") > np.searchsorted(pts_ns, starts, side="left")
    joined: list[Span] = []
    for window, has_frame in zip(windows, holds, strict=True):
        if has_frame or not joined:
            joined.append(window)
        else:
            joined[-1] = Span(joined[-1].start_ns, window.end_ns)
    return joined


def check_count(num_windows: int, limit: int, clip: str) -> None:
    """Raises SourceTooLarge when a clip would give more windows than allowed (none is left out in silence)."""
    if num_windows > limit:
        raise SourceTooLarge(
            "the clip gives too many windows",
            given=f"{num_windows} windows from {clip!r}",
            allowed=f"at most {limit} (max_windows)",
            remedy="a longer window, or a higher max_windows",
        )
