"""Uniform choices: the count rule row for row, and the rate rule against walking the sampling times one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import ConfigError
from framefleet.sampling.uniform import CLOCK_SLACK_NS, CountSampler, FpsSampler
from framefleet.units import NS_PER_S

MS = 1_000_000


def clock(num_frames, fps, start_ns=0):
    """(pts_ns, end_ns) of a constant rate."""
    pts_ns = start_ns + np.rint(np.arange(num_frames + 1) * NS_PER_S / fps).astype(np.int64)
    return pts_ns[:-1], int(pts_ns[-1])


clips = st.builds(
    lambda start, gaps: np.cumsum([start, *gaps]).astype(np.int64),
    st.integers(-(10**9), 10**13),
    st.lists(st.integers(MS, 3 * NS_PER_S), min_size=1, max_size=60),
).map(lambda edges: (edges[:-1], int(edges[-1])))


@given(st.integers(1, 5000), st.integers(1, 400))
def test_count_takes_the_documented_rows(n, num_frames):
    pts_ns, end_ns = clock(n, 30)
    rows = CountSampler(num_frames).sample(pts_ns, end_ns).rows
    assert rows.tolist() == [round(x) for x in np.linspace(0, n - 1, min(num_frames, n))]
    assert len(set(rows.tolist())) == len(rows)
    assert rows[0] == 0
    assert len(rows) == 1 or rows[-1] == n - 1


def test_count_looks_no_further_than_max_duration():
    pts_ns, end_ns = clock(300, 30, start_ns=5 * NS_PER_S)
    assert CountSampler(4, max_duration_s=1.0).sample(pts_ns, end_ns).rows.tolist() == [0, 10, 19, 29]
    assert CountSampler(4, max_duration_s=0.001).sample(pts_ns, end_ns).rows.tolist() == [0]


def rows_by_walking(pts_ns, end_ns, fps):
    rows, k = [], 0
    while (at_ns := int(pts_ns[0]) + k * NS_PER_S / fps) < end_ns:
        on_screen = [row for row, pts in enumerate(pts_ns) if pts - CLOCK_SLACK_NS <= at_ns]
        rows.append(on_screen[-1])
        k += 1
    return sorted(set(rows))


@given(clips, st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.7, 24.0, 29.97]))
def test_rate_gives_the_frame_on_screen_at_each_sampling_time(clip, fps):
    pts_ns, end_ns = clip
    assert FpsSampler(fps).sample(pts_ns, end_ns).rows.tolist() == rows_by_walking(pts_ns, end_ns, fps)


@pytest.mark.parametrize(
    ("num_frames", "rate", "fps", "expected"),
    [
        (60, 30, 2.0, [0, 15, 30, 45]),
        (60, 30, 30.0, list(range(60))),
        (60, 30, 60.0, list(range(60))),
        (6, 0.2, 2.0, list(range(6))),
        (1, 30, 2.0, [0]),
        (240, 240, 4.0, [0, 60, 120, 180]),
    ],
)
def test_rate_on_a_constant_clock(num_frames, rate, fps, expected):
    assert FpsSampler(fps).sample(*clock(num_frames, rate)).rows.tolist() == expected


def test_rate_loses_no_frame_to_a_clock_of_whole_milliseconds():
    pts_ns, end_ns = clock(300, 30)
    rounded = np.rint(pts_ns / MS).astype(np.int64) * MS
    assert len(FpsSampler(30.0).sample(rounded, end_ns).rows) == 300


def test_rate_is_even_in_time_where_the_clip_is_not():
    pts_ns = np.array([0, 1, 2, 3, 4, 1000, 2000, 3000], np.int64) * MS
    assert FpsSampler(1.0).sample(pts_ns, 4000 * MS).rows.tolist() == [0, 5, 6, 7]


@given(clips, st.integers(1, 8), st.integers(0, 30), st.floats(0.1, 60))
def test_bounds_hold(clip, low, extra, fps):
    pts_ns, end_ns = clip
    rows = FpsSampler(fps, min_frames=low, max_frames=low + extra).sample(pts_ns, end_ns).rows
    assert min(low, len(pts_ns)) <= len(rows) <= low + extra
    assert np.all(np.diff(rows) > 0)
    assert rows[0] == 0


@given(clips, st.floats(0.1, 100), st.floats(0.1, 30))
def test_rate_looks_no_further_than_max_duration(clip, max_duration_s, fps):
    pts_ns, end_ns = clip
    rows = FpsSampler(fps, max_duration_s=max_duration_s).sample(pts_ns, end_ns).rows
    assert np.all(pts_ns[rows] - pts_ns[0] < max_duration_s * NS_PER_S + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CountSampler(0),
        lambda: CountSampler(4, max_duration_s=0),
        lambda: FpsSampler(0),
        lambda: FpsSampler(float("nan")),
        lambda: FpsSampler(2, min_frames=9, max_frames=8),
        lambda: FpsSampler(2, max_frames=0),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ConfigError):
        make()
