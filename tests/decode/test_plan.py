"""The plan against a model of what really depends on what: random groups of pictures, walked packet by packet."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from framefleet.decode.backends.fake import FakeClip, scan_fake
from framefleet.decode.plan import plan_decode
from framefleet.media.index import FrameIndex
from framefleet.sampling.sampler import FrameTargets


@dataclass
class Picture:
    """One packet of the model: its stamp, what it needs, whether something may need it, whether it is ever shown."""

    stamp: int
    needs: set[int] = field(default_factory=set)
    is_keyframe: bool = False
    is_reference: bool = False
    is_hidden: bool = False


@st.composite
def streams(draw):
    """Decode-order pictures of a stream of GOPs, open or closed, with pyramids of B-pictures and hidden packets.

    A picture leans on a random choice of the reference pictures it may lean on: those since its keyframe, and for
    leading pictures of an open GOP also those of the GOP before.
    """
    pictures, clock, before = [], 0, []
    for nth_gop in range(draw(st.integers(1, 5))):
        is_open = nth_gop > 0 and draw(st.booleans())
        num_leading = draw(st.integers(1, 3)) if is_open else 0
        keyframe = len(pictures)
        pictures.append(Picture(clock + num_leading, is_keyframe=True, is_reference=True))
        leading_refs = [*before, keyframe]
        for shown_at in draw(st.permutations(range(clock, clock + num_leading))):
            leading_refs += _add(draw, pictures, shown_at, leading_refs)
        clock += num_leading + 1
        refs = [keyframe]
        for _ in range(draw(st.integers(0, 4))):
            num_b = draw(st.integers(0, 3))
            refs += _add(draw, pictures, clock + num_b, refs, is_reference=True)
            for shown_at in draw(st.permutations(range(clock, clock + num_b))):
                refs += _add(draw, pictures, shown_at, refs)
            clock += num_b + 1
        before = refs
    num_cut = draw(st.integers(0, clock - 1))
    also_hidden = draw(st.sets(st.integers(0, len(pictures) - 1), max_size=3))
    for number, picture in enumerate(pictures):
        picture.is_hidden = picture.stamp < num_cut or (number in also_hidden and picture.stamp < clock - 1)
    return pictures


def _add(draw, pictures, shown_at, refs, *, is_reference=None):
    is_reference = draw(st.booleans()) if is_reference is None else is_reference
    needs = set(draw(st.lists(st.sampled_from(refs), min_size=1, max_size=3)))
    pictures.append(Picture(shown_at, needs, is_reference=is_reference))
    return [len(pictures) - 1] if is_reference else []


def index_of(pictures, *, stamps=None):
    """As a scan would write it; `stamps` in place of the true ones (None: the packet carries none)."""
    rows = np.array(sorted((n for n, p in enumerate(pictures) if not p.is_hidden), key=lambda n: pictures[n].stamp))
    stamps = [p.stamp for p in pictures] if stamps is None else stamps
    return FrameIndex(
        packet_pts=np.array([FrameIndex.NO_PTS if t is None else t for t in stamps], np.int64),
        packet_is_keyframe=np.array([p.is_keyframe for p in pictures]),
        packet_is_reference=np.array([p.is_reference for p in pictures]),
        packet_of_row=rows,
        pts_ns=np.arange(len(rows)) * 40_000_000,
        end_ns=len(rows) * 40_000_000,
        method="packets",
    )


def decodable(pictures, group):
    """Packets that come out whole when the group is fed to a fresh decoder."""
    whole = set()
    for number in range(group.first_packet, group.last_packet + 1):
        if number not in set(group.skip_packets.tolist()) and pictures[number].needs <= whole:
            whole.add(number)
    return whole


@given(streams(), st.data())
@settings(max_examples=400)
def test_every_target_comes_out_whole(pictures, data):
    index = index_of(pictures)
    rows = data.draw(st.lists(st.integers(0, index.num_frames - 1), min_size=1, max_size=8).map(sorted))
    plan = plan_decode(index, FrameTargets(np.array(rows, np.int64)), 10, 10)
    assert sorted(int(r) for g in plan.groups for r in g.rows) == sorted(set(rows))
    for group in plan.groups:
        assert set(index.packet_of_row[group.rows].tolist()) <= decodable(pictures, group)
    check_shape(index, plan)


def check_shape(index, plan):
    """What holds for any plan: runs in order and apart, no packet fed for nothing at the end, no reference skipped."""
    for group in plan.groups:
        wanted = index.packet_of_row[group.rows]
        assert group.first_packet == 0 or index.packet_is_keyframe[group.first_packet]
        assert group.last_packet == wanted.max()
        assert np.all(np.diff(group.rows) > 0)
        assert np.all(np.diff(group.skip_packets) > 0)
        assert not np.any(index.packet_is_reference[group.skip_packets])
        assert not np.any(np.isin(group.skip_packets, wanted))
        assert group.num_fed == group.last_packet - group.first_packet + 1 - len(group.skip_packets)
    for earlier, later in zip(plan.groups, plan.groups[1:], strict=False):
        assert later.first_packet > earlier.last_packet + 1
    assert plan.frames_walked == sum(g.num_fed for g in plan.groups)


@given(streams(), st.data())
def test_no_nearer_keyframe_would_do(pictures, data):
    """For one target: from any later keyframe the plain rule (shown and sent before it) is broken."""
    index = index_of(pictures)
    row = data.draw(st.integers(0, index.num_frames - 1))
    (group,) = plan_decode(index, FrameTargets(np.array([row])), 10, 10).groups
    packet = index.packet_of_row[row]
    for keyframe in np.flatnonzero(index.packet_is_keyframe):
        if group.first_packet < keyframe <= packet:
            assert pictures[keyframe].stamp > pictures[packet].stamp


@given(streams(), st.data())
@settings(max_examples=400)
def test_missing_stamps_cost_packets_but_never_a_frame(pictures, data):
    stamps = [None if data.draw(st.booleans()) else p.stamp for p in pictures]
    index = index_of(pictures, stamps=stamps)
    row = data.draw(st.integers(0, index.num_frames - 1))
    (group,) = plan_decode(index, FrameTargets(np.array([row])), 10, 10).groups
    assert index.packet_of_row[row] in decodable(pictures, group)


def test_a_hidden_keyframe_without_a_stamp_is_not_trusted_to_come_first():
    leading = [
        Picture(0, is_keyframe=True, is_reference=True),
        Picture(2, is_keyframe=True, is_reference=True, is_hidden=True),
        Picture(1, {0, 1}),
    ]
    index = index_of(leading, stamps=[0, None, 1])
    assert ends(plan_decode(index, FrameTargets(np.array([1])), 1, 1)) == [(0, 2)]


def plan_of(spec, rows, size=(16, 8)):
    return plan_decode(scan_fake(spec.source).index, FrameTargets(np.array(rows, np.int64)), *size)


def ends(plan):
    return [(g.first_packet, g.last_packet) for g in plan.groups]


def test_sparse_targets_seek_and_skip():
    plan = plan_of(FakeClip(num_frames=300, gop=30), [0, 75, 290])
    assert ends(plan) == [(0, 0), (60, 75), (270, 290)]
    assert plan.groups[1].skip_packets.tolist() == [61, 63, 65, 67, 69, 71, 73]
    assert plan.frames_walked == 1 + 9 + 11


def test_touching_runs_are_one():
    assert ends(plan_of(FakeClip(num_frames=90, gop=30), [28, 30])) == [(0, 28), (30, 30)]
    assert ends(plan_of(FakeClip(num_frames=90, gop=30), [29, 30, 31])) == [(0, 31)]


def test_every_frame_is_one_run_without_skips():
    plan = plan_of(FakeClip(num_frames=90, gop=30), range(90))
    assert ends(plan) == [(0, 89)]
    assert not len(plan.groups[0].skip_packets)


def test_a_repeated_row_is_decoded_once_and_delivered_twice():
    plan = plan_of(FakeClip(num_frames=1), [0, 0], size=(20, 10))
    assert plan.groups[0].rows.tolist() == [0]
    assert plan.output_bytes == 2 * 20 * 10 * 3


def test_nothing_asked_costs_nothing():
    plan = plan_of(FakeClip(), [])
    assert plan.groups == ()
    assert plan.frames_walked == plan.output_bytes == 0


def test_without_any_keyframe_the_walk_starts_at_the_first_packet():
    index = index_of([Picture(0), Picture(1, {0}), Picture(2, {1})])
    assert ends(plan_decode(index, FrameTargets(np.array([2])), 1, 1)) == [(0, 2)]


def test_a_packet_before_the_first_keyframe_starts_at_the_first_packet():
    index = index_of([Picture(0), Picture(1, {0}), Picture(2, is_keyframe=True, is_reference=True)])
    assert ends(plan_decode(index, FrameTargets(np.array([1])), 1, 1)) == [(0, 1)]


def test_the_price_grows_with_threads_depth_and_size():
    clip = scan_fake(FakeClip(width=1920, height=1080).source)
    plan = plan_decode(clip.index, FrameTargets(np.arange(16)), 1920, 1080)
    one, eight = plan.peak_bytes(clip.info, 1), plan.peak_bytes(clip.info, 8)
    assert plan.output_bytes == 16 * 1920 * 1080 * 3
    assert plan.output_bytes < one < eight


def test_ten_million_packets_plan_whole():
    count = 10_000_000
    packets = np.arange(count)
    index = FrameIndex(
        packet_pts=packets * 512,
        packet_is_keyframe=packets % 250 == 0,
        packet_is_reference=packets % 2 == 0,
        packet_of_row=packets,
        pts_ns=packets * 33_333_333,
        end_ns=count * 33_333_333,
        method="packets",
    )
    plan = plan_decode(index, FrameTargets(np.linspace(0, count - 1, 3200).round().astype(np.int64)), 10, 10)
    assert len(plan.groups) > 3000
    assert plan.frames_walked < 3200 * 126
