from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.caption.windows import check_count, count_windows, cut_at, cut_windows, join_frameless
from framefleet.errors import SourceTooLarge
from framefleet.units import NS_PER_S, Span

S = NS_PER_S
times = st.integers(min_value=-(10**12), max_value=10**13)
lengths = st.integers(min_value=1, max_value=10**12)


def spans(*edges_s: tuple[float, float]) -> list[Span]:
    return [Span(round(a * S), round(b * S)) for a, b in edges_s]


@pytest.mark.parametrize(
    ("end_s", "expected"),
    [
        (30, [(0, 30)]),
        (5, [(0, 5)]),
        (60, [(0, 30), (30, 60)]),
        (67.5, [(0, 30), (30, 60), (60, 67.5)]),  # a quarter stands alone
        (67.4, [(0, 30), (30, 67.4)]),  # less joins
        (37.4, [(0, 37.4)]),
    ],
)
def test_last_window_stands_alone_from_a_quarter_of_a_window(end_s: float, expected: list[tuple[float, float]]):
    assert cut_windows(0, round(end_s * S), 30 * S) == spans(*expected)


def test_windows_begin_at_the_first_frame_wherever_that_is():
    assert cut_windows(5 * S, 25 * S, 10 * S) == spans((5, 15), (15, 25))
    assert cut_windows(-5 * S, 15 * S, 10 * S) == spans((-5, 5), (5, 15))


def test_overlapping_windows_show_the_overlap_twice():
    assert cut_windows(0, 30 * S, 10 * S, 5 * S) == spans((0, 10), (5, 15), (10, 20), (15, 25), (20, 30))


@given(first=times, duration=st.integers(1, 10**10), length=lengths, share=st.floats(0, 0.9))
def test_windows_cover_the_clip_without_a_hole(first: int, duration: int, length: int, share: float):
    length = max(length, duration // 1000)
    overlap = min(int(length * share), length - 1)
    end = first + duration
    windows = cut_windows(first, end, length, overlap)
    assert len(windows) == count_windows(first, end, length, overlap)
    assert windows[0].start_ns == first
    assert windows[-1].end_ns == end
    for before, after in pairwise(windows):
        assert after.start_ns == before.start_ns + length - overlap
        assert after.start_ns <= before.end_ns
        assert before.end_ns == before.start_ns + length
        assert after.end_ns > before.end_ns  # each adds something
    if len(windows) > 1:
        assert 4 * (windows[-1].end_ns - windows[-2].end_ns) >= length - overlap
    assert windows[-1].end_ns - windows[-1].start_ns < 1.25 * length + 1


@given(
    first=times,
    duration=st.integers(1, 10**6),
    cuts=st.lists(st.integers(-(10**6), 2 * 10**6), max_size=50),
    min_ns=st.integers(1, 10**6),
    max_ns=st.none() | st.integers(10**4, 10**6),
)
def test_shots_tile_the_clip(first: int, duration: int, cuts: list[int], min_ns: int, max_ns: int | None):
    end = first + duration
    shots = cut_at([first + c for c in cuts], first, end, min_ns, max_ns)
    assert shots[0].start_ns == first
    assert shots[-1].end_ns == end
    assert all(a.end_ns == b.start_ns for a, b in pairwise(shots))
    if max_ns is None:
        assert len(shots) == 1 or min(s.end_ns - s.start_ns for s in shots) >= min_ns
        assert {s.start_ns for s in shots[1:]} <= {first + c for c in cuts}
    else:
        assert max(s.end_ns - s.start_ns for s in shots) < 1.25 * max_ns + 1


def test_short_shots_join_their_neighbour():
    cuts = [1 * S, 10 * S, 10 * S + 1, 20 * S, 39 * S]
    assert cut_at(cuts, 0, 40 * S, 2 * S) == spans((0, 10), (10, 20), (20, 40))


def test_a_still_picture_longer_than_a_window_is_one_window():
    pts_ns = np.array([0, 1, 2, 15, 16], dtype=np.int64) * S  # one frame stands from 2 s to 15 s
    assert join_frameless(cut_windows(0, 20 * S, 4 * S), pts_ns) == spans((0, 12), (12, 16), (16, 20))


@given(
    gaps=st.lists(st.integers(1, 10**4), min_size=1, max_size=60),
    length=st.integers(1, 10**4),
    first=st.integers(-100, 100),
)
def test_every_window_holds_the_start_of_a_frame(gaps: list[int], length: int, first: int):
    pts_ns = first + np.concatenate(([0], np.cumsum(gaps[:-1]))).astype(np.int64)
    end = first + sum(gaps)
    length = max(length, (end - first) // 500 + 1)
    windows = join_frameless(cut_windows(first, end, length), pts_ns)
    held = [np.count_nonzero((pts_ns >= w.start_ns) & (pts_ns < w.end_ns)) for w in windows]
    assert min(held) >= 1
    assert sum(held) == len(pts_ns)
    assert windows[0].start_ns == first
    assert windows[-1].end_ns == end


def test_more_windows_than_allowed_is_an_error_that_says_so():
    check_count(5, 5, "a.mp4")
    with pytest.raises(SourceTooLarge, match=r"6 windows from 'a\.mp4'.*at most 5"):
        check_count(6, 5, "a.mp4")
    assert count_windows(0, 10**18, 1) == 10**18  # told without making them
