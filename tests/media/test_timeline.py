"""Rows out of packet tables: pure functions, so small tables and many of them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framefleet.media.facts import DAMAGED, GAP, HIDDEN, LEADS_BROKEN, LEADS_SAFELY, REFERENCE, START
from framefleet.media.index import FrameIndex
from framefleet.media.packets import PacketTable
from framefleet.media.pictures import fill_ticks, shown_by_clock, with_lost
from framefleet.media.timeline import (
    find_epochs,
    mark_losses,
    presentable_rows,
    reference_flags,
    strictly_increasing_ns,
    ticks_to_ns_array,
    undecodable,
    why_packets_cannot_tell,
)
from framefleet.media.transport import Losses
from framefleet.units import ticks_to_ns

NO_PTS = FrameIndex.NO_PTS
KEY, P, B = START | REFERENCE, REFERENCE, 0


def table_of(pts, dts=None, *, facts=None, discarded=(), pos=None, step=1):
    count = len(pts)
    of = lambda values: np.array(values, np.int64)  # noqa: E731
    return PacketTable(
        pts=of(pts), dts=of(dts if dts is not None else range(count)), duration=np.full(count, step, np.int64),
        pos=of(pos if pos is not None else np.arange(count) * 100), size=np.full(count, 100, np.int64),
        facts=of(facts if facts is not None else [KEY] + [P] * (count - 1)),
        is_discarded=np.isin(np.arange(count), list(discarded)), is_corrupt=np.zeros(count, np.bool_),
    )  # fmt: skip


def broken(facts, pts=None):
    count = len(facts)
    return np.flatnonzero(undecodable(np.array(facts), np.array(pts or range(count)))).tolist()


def test_nothing_is_broken_in_a_whole_stream():
    assert broken([KEY, P, B, P, KEY, P]) == []


def test_before_the_first_start_everything_is():
    assert broken([P, P, KEY, P]) == [0, 1]


def test_damage_to_a_reference_lasts_to_the_next_start():
    assert broken([KEY, P | DAMAGED, P, B, KEY, P]) == [1, 2, 3]


def test_damage_to_what_nothing_leans_on_stays_there():
    assert broken([KEY, P, B | DAMAGED, P]) == [2]


def test_a_damaged_start_starts_nothing():
    assert broken([KEY, P, KEY | DAMAGED, P, KEY, P]) == [2, 3]


def test_a_gap_spoils_what_follows_it():
    assert broken([KEY, P, P | GAP, B, KEY, P]) == [2, 3]


def test_leading_pictures_of_a_start_after_a_loss():
    pts = [0, 1, 5, 3, 4, 6]
    assert broken([KEY, P | DAMAGED, KEY, LEADS_BROKEN, LEADS_SAFELY, P], pts) == [1, 3]
    assert broken([KEY, P | DAMAGED, KEY, B, B, P], pts) == [1, 3, 4]
    assert broken([KEY, P, KEY, B, B, P], pts) == []


def test_leading_pictures_of_the_first_start():
    assert broken([KEY, B, B, P], [2, 0, 1, 3]) == [1, 2]
    assert broken([KEY, LEADS_SAFELY, LEADS_SAFELY, P], [2, 0, 1, 3]) == []


KINDS = [KEY, P, B, P | DAMAGED, P | GAP, B | DAMAGED, KEY | DAMAGED]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=40))
def test_broken_never_outlives_a_clean_start_and_covers_all_damage(facts):
    found = set(broken(facts))
    for packet, fact in enumerate(facts):
        is_clean_start = fact & START and not fact & DAMAGED
        assert (packet in found) is False if is_clean_start else True
        if fact & DAMAGED or (fact & GAP and not is_clean_start):
            assert packet in found


def test_rows_are_what_is_shown_in_order_of_pts():
    table = table_of([0, 3, 1, 2, 4], facts=[KEY, P, B, B | HIDDEN, P], discarded={0})
    packets, ticks = presentable_rows(table, np.zeros(5, np.bool_))
    assert packets.tolist() == [2, 1, 4]
    assert ticks.tolist() == [1, 3, 4]


def test_a_clock_that_jumps_back_starts_a_new_epoch():
    table = table_of([1000, 1001, 1002, 5, 6, 7], dts=[1000, 1001, 1002, 5, 6, 7])
    epochs = find_epochs(table, Fraction(1), is_live_format=True)
    assert epochs.starts == (3,)
    assert (table.pts + epochs.shift).tolist() == [1000, 1001, 1002, 1003, 1004, 1005]


def test_small_steps_back_are_no_epoch():
    table = table_of([0, 90, 180, 170, 260], dts=[0, 90, 180, 170, 260])
    assert find_epochs(table, Fraction(1, 90_000), is_live_format=True).starts == ()


def test_long_pauses_are_kept_in_files_and_cut_in_live_formats():
    table = table_of([0, 1, 8000, 8001], dts=[0, 1, 8000, 8001])
    assert find_epochs(table, Fraction(1), is_live_format=False).starts == ()
    live = find_epochs(table, Fraction(1), is_live_format=True)
    assert (table.pts + live.shift).tolist() == [0, 1, 2, 3]


def test_why_packets_cannot_tell():
    assert why_packets_cannot_tell(table_of([0, 1, 2]), "h264", has_b_frames=False) == ""
    assert "no pts" in why_packets_cannot_tell(table_of([0, NO_PTS, 2]), "h264", has_b_frames=False)
    assert why_packets_cannot_tell(table_of([NO_PTS] * 3), "mjpeg", has_b_frames=False) == ""
    no_start = table_of([0, 1], facts=[P, P])
    assert "clean start" in why_packets_cannot_tell(no_start, "h264", has_b_frames=False)


@given(
    st.lists(st.integers(-(2**33), 2**33), min_size=1, max_size=50),
    st.sampled_from([Fraction(1, n) for n in (3, 1000, 15_360, 90_000, 10**9)] + [Fraction(1001, 30_000)]),
)
def test_exact_nanoseconds(ticks, time_base):
    assert ticks_to_ns_array(np.array(ticks), time_base).tolist() == [ticks_to_ns(t, time_base) for t in ticks]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_times_are_made_to_increase_and_otherwise_left_alone(ticks):
    ordered = np.sort(np.array(ticks))
    ns, num_moved = strictly_increasing_ns(ordered, Fraction(1, 1000))
    assert np.all(np.diff(ns) > 0)
    exact = ordered * 1_000_000
    assert num_moved == np.count_nonzero(ns != exact)
    assert np.all(ns - exact < len(ticks))


def test_layers_below_the_highest_are_references():
    assert reference_flags(np.array([REFERENCE, 0 << 12, 1 << 12, 2 << 12])).tolist() == [True, True, True, False]
    assert reference_flags(np.array([REFERENCE, 0])).tolist() == [True, False]


def test_losses_hit_the_picture_they_fall_in():
    table = table_of(range(5), pos=[0, 1000, 2000, 3000, 4000])
    losses = Losses(*(np.array(v) for v in ([1188], [1564], [False], [False])))
    facts = mark_losses(table, losses)
    assert np.flatnonzero(facts & DAMAGED).tolist() == [1]
    assert np.flatnonzero(facts & GAP).tolist() == [2]


def test_a_loss_between_whole_pictures_leaves_both_whole():
    table = table_of(range(5), pos=[0, 1000, 2000, 3000, 4000])
    losses = Losses(*(np.array(v) for v in ([1188], [3000], [True], [True])))
    facts = mark_losses(table, losses)
    assert np.flatnonzero(facts & DAMAGED).tolist() == []
    assert np.flatnonzero(facts & GAP).tolist() == [3]


def test_unknown_times_lie_between_known_ones():
    assert fill_ticks([0, None, None, 30], 10.0, []).tolist() == [0, 10, 20, 30]
    assert fill_ticks([None, 10, None], 5.0, []).tolist() == [5, 10, 15]
    assert fill_ticks([None, None], 5.0, [7, 9]).tolist() == [7, 9]
    assert fill_ticks([None, None, None], 5.0, []).tolist() == [0, 5, 10]
    assert shown_by_clock([0, 1, 2, 9, 10], [0, 1, 2, 3, 4]) == [0, 1, 2, 9, 10]
    assert shown_by_clock([0, 1, 2, 9, 10], [0, 2, 3, 1, 4]) == [0, 1, 8, 9, 10]
    assert shown_by_clock([0, 1, 2, 9, 10], [0, 4, 6, 2, 8]) == [0, 1, 8, 9, 10]
    assert fill_ticks([None] * 3 + [100, 133, 166, 200], 100 / 3, []).tolist() == [0, 33, 67, 100, 133, 166, 200]


def test_lost_pictures_keep_their_place():
    assert with_lost([0, 1, 3], [False] * 4) == [0, 1, 2, 3]
    is_b = [False, False, True, True, False]  # shown 0, 2, 3, 1, 4
    assert with_lost([0, 2, 3, 4], is_b) == [0, 2, 3, 1, 4]
    assert with_lost([0, 3, 1, 4], is_b)[:2] in ([0, 2], [0, 3])
    assert with_lost([], [False, True]) == [1, 0]


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.data())
def test_every_packet_has_a_place_and_what_came_keeps_its_order(is_b, data):
    came = data.draw(st.permutations(range(len(is_b))))[: data.draw(st.integers(0, len(is_b)))]
    order = with_lost(list(came), is_b)
    assert sorted(order) == list(range(len(is_b)))
    assert [n for n in order if n in set(came)] == list(came)


def test_missing_decode_times_at_the_start_are_no_reset():
    """Matroska leaves them out for the packets that a long reordering delays; pts run ahead of dts by as much."""
    pts, dts = [0, 1700, 800, 400, 1000, 1200], [NO_PTS, NO_PTS, NO_PTS, 0, 100, 200]
    assert find_epochs(table_of(pts, dts), Fraction(1, 1000), is_live_format=False).starts == ()


def test_a_clock_beyond_belief_is_set_to_zero():
    far = 2**58
    pts = [far, far + 1, far + 2, 3, 4]
    epochs = find_epochs(table_of(pts, pts), Fraction(1, 30), is_live_format=False)
    assert epochs.starts == (3,)
    assert (np.array(pts) + epochs.shift).tolist() == [0, 1, 2, 3, 4]


def test_a_gap_before_an_open_start_costs_its_leading_pictures():
    assert broken([KEY, P, KEY | GAP, B, B, P], [0, 3, 9, 7, 8, 10]) == [3, 4]
