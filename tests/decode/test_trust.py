"""What is doubted after trouble, and what is not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.trust import LOOK_BACK_PACKETS, doubtful
from framefleet.media.index import FrameIndex


def index_of(keys, refs=None, order=None):
    count = len(keys)
    rows = np.arange(count) if order is None else np.array(order)
    return FrameIndex(
        packet_pts=np.arange(count), packet_is_keyframe=np.array(keys, bool),
        packet_is_reference=np.ones(count, bool) if refs is None else np.array(refs, bool),
        packet_of_row=rows, pts_ns=np.arange(len(rows)), end_ns=count, method="packets",
    )  # fmt: skip


def doubted(index, troubled, first=0, last=None):
    last = len(index.packet_pts) - 1 if last is None else last
    return (np.flatnonzero(doubtful(index, first, last, troubled)) + first).tolist()


KEYS = [n % 20 == 0 for n in range(60)]


def test_no_trouble_no_doubt():
    assert doubted(index_of(KEYS), set()) == []


def test_doubt_lasts_to_the_next_keyframe_and_looks_back_a_little():
    assert doubted(index_of(KEYS), {35}) == list(range(35 - LOOK_BACK_PACKETS, 40))
    assert doubted(index_of(KEYS), {22}) == list(range(21, 40))


def test_what_nothing_leans_on_spoils_itself_and_is_looked_back_from():
    refs = [n != 35 for n in range(60)]
    assert doubted(index_of(KEYS, refs), {35}) == list(range(35 - LOOK_BACK_PACKETS, 36))


def test_a_troubled_keyframe_does_not_end_doubt():
    assert doubted(index_of(KEYS), {30, 40}) == list(range(22, 60))


def test_leading_pictures_of_the_keyframe_after_stay_in_doubt():
    order = [*range(40), 42, 41, 40, *range(43, 60)]  # packets 41 and 42 are shown before keyframe 40
    assert doubted(index_of(KEYS, order=order), {38}) == [*range(30, 40), 41, 42]


def test_leading_pictures_of_the_first_packet_mean_nothing():
    order = [*range(20), 22, 21, 20, *range(23, 60)]
    assert doubted(index_of(KEYS, order=order), {21, 22}, first=20) == []


@given(st.sets(st.integers(0, 59)), st.integers(0, 2), st.integers(3, 59))
def test_trouble_is_always_doubted_and_clean_runs_never(troubled, start, last):
    first = 20 * start
    last = max(first, last)
    found = set(doubted(index_of(KEYS), troubled, first, last))
    inside = {n for n in troubled if first <= n <= last}
    assert inside <= found
    for begin in range(first, last + 1, 20):
        span = set(range(begin, min(begin + 20, last + 1)))
        if not span & inside and begin not in troubled:
            assert not span & found
