"""Where streams were cut and joined, told from their own count of pictures: small tables of facts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.media.facts import GAP, LEADS_BROKEN, RECOVERY, REFERENCE, START, order_of
from framefleet.media.index import FrameIndex
from framefleet.media.joins import find_joins, fresh_starts, leading, mark_joins

NO_TIMES = np.empty(0, np.int64)


def group(place, *, kind=START, num_leading=2, num_anchors=3, step=2, bits=6):
    """Facts of an open group, the `place`th of its stream: keyframe, leading pictures, then anchors with a B each."""
    length = 1 + num_leading + 2 * num_anchors

    def of(number):
        return order_of(step * (length * place + number) % (1 << bits), bits)

    facts = [kind | REFERENCE | of(num_leading), *(of(number) for number in range(num_leading))]
    for number in range(num_leading + 1, length, 2):
        facts += [REFERENCE | of(number + 1), of(number)]
    return facts


LENGTH = len(group(0))


def stream(*places, **form):
    return np.array([fact for place in places for fact in group(place, **form)])


def joins(*places, codec="h264", **form):
    """At which of the groups put end to end a join is found."""
    return (find_joins(stream(*places, **form), codec) // len(group(0, **form))).tolist()


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg2video"])
def test_a_stream_that_goes_on_holds_no_join(codec):
    assert joins(*range(12), codec=codec) == []


def test_the_group_whose_count_does_not_go_on_is_a_join():
    assert joins(0, 1, 2, 5, 6, 3, 4) == [3, 5]


def test_every_group_may_be_one():
    assert joins(0, 2, 4, 6) == [1, 2, 3]


def test_where_the_count_is_a_courtesy_it_must_go_on_mostly():
    assert joins(0, 1, 2, 7, 8, codec="mpeg2video") == [3]
    assert joins(0, 0, 0, 0, 0, codec="mpeg2video") == []


def test_a_count_without_a_usual_step_tells_only_where_it_falls_back():
    rng = np.random.default_rng(1)
    counts = np.cumsum(rng.integers(1, 9, 60))
    facts = [REFERENCE | (START if n % 10 == 0 else 0) | order_of(int(count), 8) for n, count in enumerate(counts)]
    assert find_joins(np.array(facts), "h264").tolist() == []
    assert find_joins(np.array(facts * 2), "h264").tolist() == [60]
    assert find_joins(np.array(facts * 2), "mpeg2video").tolist() == []


def test_where_every_picture_is_a_start():
    counts = [0, 1, 2, 3, 9, 10, 11, 2, 3]
    facts = np.array([START | REFERENCE | order_of(count, 16) for count in counts])
    assert find_joins(facts, "dirac").tolist() == [4, 7]


def test_the_shortest_parts_there_can_be():
    part = [START | REFERENCE | order_of(9, 8), order_of(8, 8)]
    assert find_joins(np.array(part * 3), "hevc").tolist() == [2, 4]


def test_pictures_that_reset_the_count_are_no_joins():
    reset = [START | REFERENCE, *(REFERENCE | order_of(2 * n, 6) for n in range(1, LENGTH))]
    assert find_joins(np.array(reset * 3), "h264").tolist() == []


def test_gradual_refresh_may_go_on_elsewhere_too():
    form = {"kind": RECOVERY, "num_leading": 0}
    assert joins(0, 1, 5, **form) == [2]
    assert fresh_starts(mark_joins(stream(0, 1, 5, **form), "h264", NO_TIMES, NO_TIMES)).tolist() == []


def test_joins_are_gaps_and_fresh_starts():
    marked = mark_joins(stream(0, 5), "h264", NO_TIMES, NO_TIMES)
    assert np.flatnonzero(marked & GAP).tolist() == fresh_starts(marked).tolist() == [LENGTH]


def test_leading_pictures_by_pts_by_the_count_and_by_name():
    facts = np.array([*group(0), LEADS_BROKEN])
    unknown = np.full(len(facts), FrameIndex.NO_PTS)
    assert np.flatnonzero(leading(facts, unknown)).tolist() == [1, 2, LENGTH]
    assert np.flatnonzero(leading(np.array([START, 0, 0, 0]), np.array([5, 3, 4, 6]))).tolist() == [1, 2]


@given(st.integers(4, 16), st.integers(0, 1 << 16), st.integers(2, 30), st.sampled_from([1, 2]))
def test_counters_of_any_width_wrap(bits, first, num_groups, step):
    form = {"num_leading": 1, "num_anchors": 1, "bits": bits, "step": step}
    assert joins(*range(first, first + num_groups), **form) == []
    assert joins(first, first + 1, first + 1, **form) == [2]
