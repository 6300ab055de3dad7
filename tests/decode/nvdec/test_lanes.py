"""Kept decoders: reused by kind, bounded in number and bytes, closed after a failure."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from framefleet.decode.nvdec import lanes
from framefleet.decode.nvdec.lanes import LaneKind, LanePool
from framefleet.errors import BudgetTimeout, BudgetTooLarge, DecodeError
from framefleet.units import GIB, MIB
from framefleet.vram.budget import MemoryBudget

HD = LaneKind("h264", "4:2:0", 8, 1920, 1080)
SD = LaneKind("h264", "4:2:0", 8, 640, 480)
UHD = LaneKind("hevc", "4:2:0", 10, 3840, 2160)


@pytest.mark.parametrize(
    ("codec", "width", "height", "measured_mib"),
    [("h264", 1920, 1080, 81), ("hevc", 1920, 1080, 103), ("hevc", 3840, 2160, 271), ("vp9", 1920, 1080, 129)],
)
def test_a_lane_is_charged_what_it_was_seen_to_take(codec, width, height, measured_mib):
    """On an H200, of ten decoders, without the context that they share (benchmarks/nvdec)."""
    charged_mib = LaneKind(codec, "4:2:0", 8, width, height).lane_bytes() / MIB
    assert measured_mib <= charged_mib < 1.12 * measured_mib


class CountedDecoder:
    open_now = 0

    def __init__(self, kind):
        self.kind = kind
        type(self).open_now += 1

    def close(self):
        type(self).open_now -= 1


@pytest.fixture
def decoders():
    CountedDecoder.open_now = 0
    return CountedDecoder


def pool_of(decoders, budget_bytes=GIB, max_lanes=4):
    return LanePool(decoders, MemoryBudget(budget_bytes, name="NVDEC memory"), max_lanes)


def use(pool, kind):
    with pool.lane(kind, 5) as lane:
        return lane.decoder


def test_same_kind_is_reused_and_another_is_not(decoders):
    pool = pool_of(decoders)
    first = use(pool, HD)
    assert use(pool, HD) is first
    assert use(pool, SD) is not first
    assert use(pool, HD) is first
    pool.close()
    assert decoders.open_now == 0


def test_1280x532_and_1280x530_share_nothing(decoders):
    pool = pool_of(decoders)
    assert use(pool, LaneKind("h264", "4:2:0", 8, 1280, 532)) is not use(pool, LaneKind("h264", "4:2:0", 8, 1280, 530))


def test_idle_lanes_give_way_to_other_kinds(decoders):
    pool = pool_of(decoders, max_lanes=2)
    for kind in (HD, SD, UHD, HD, SD, UHD):
        use(pool, kind)
        assert decoders.open_now <= 2


def test_bytes_never_exceed_the_budget(decoders):
    budget = MemoryBudget(UHD.lane_bytes() + HD.lane_bytes(), name="NVDEC memory")
    pool = LanePool(decoders, budget, 8)
    for kind in (HD, HD, UHD, SD, UHD, HD):
        use(pool, kind)
        assert budget.held_bytes <= budget.total_bytes
    assert budget.stats.peak_held_bytes <= budget.total_bytes


def test_a_lane_larger_than_the_budget_is_refused_at_once(decoders):
    with pytest.raises(BudgetTooLarge):
        use(pool_of(decoders, budget_bytes=SD.lane_bytes()), UHD)


def test_a_failed_clip_closes_its_lane(decoders):
    pool = pool_of(decoders)
    with pytest.raises(DecodeError), pool.lane(HD, 5):
        raise DecodeError("broken")
    assert decoders.open_now == 0
    use(pool, HD)


def test_waiting_ends_with_a_timeout_and_leaves_no_trace(decoders):
    pool = pool_of(decoders, max_lanes=1)
    with pool.lane(HD, 5), pytest.raises(BudgetTimeout):
        use_soon(pool)
    assert use(pool, HD)


def use_soon(pool):
    with pool.lane(HD, 0.05):
        pass


def test_a_decoder_that_cannot_be_made_returns_its_bytes():
    budget = MemoryBudget(GIB, name="NVDEC memory")

    def fail(kind):
        raise DecodeError("no session")

    with pytest.raises(DecodeError):
        use(LanePool(fail, budget, 2), HD)
    assert budget.held_bytes == 0


def test_many_threads_many_kinds(decoders):
    budget = MemoryBudget(3 * UHD.lane_bytes(), name="NVDEC memory")
    pool = LanePool(decoders, budget, 3)
    failures = []

    def work(seed):
        try:
            for turn in range(30):
                use(pool, (HD, SD, UHD)[(seed + turn) % 3])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert budget.stats.peak_held_bytes <= budget.total_bytes
    pool.close()
    assert decoders.open_now == 0
    assert budget.held_bytes == 0


def test_a_lane_is_handed_to_who_waits_for_its_bytes(decoders):
    """A budget of two decoders, eight clips at a time: nobody opens a decoder while one of the kind comes free."""
    made = []
    budget = MemoryBudget(2 * HD.lane_bytes(), name="NVDEC memory")
    pool = LanePool(lambda kind: made.append(kind) or decoders(kind), budget, 8)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: use_for_a_moment(pool, HD), range(64)))
    assert len(made) == 2
    assert budget.stats.peak_held_bytes <= budget.total_bytes
    pool.close()
    assert (decoders.open_now, budget.held_bytes, budget.num_waiting) == (0, 0, 0)


def test_a_lane_goes_to_the_next_when_the_first_was_served_meanwhile(decoders, monkeypatch):
    """Two lanes come free at once and both are meant for who waits first: the later one is not closed."""
    made, overtaken = [], []
    pool = LanePool(lambda kind: made.append(kind) or decoders(kind), MemoryBudget(HD.lane_bytes(), name="x"), 3)
    offer = lanes._Waiter.offer

    def offer_twice(self, lane):
        if overtaken:
            return offer(self, lane)
        overtaken.append(offer(self, lane))  # the other lane
        return offer(self, lane)

    monkeypatch.setattr(lanes._Waiter, "offer", offer_twice)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: use_for_a_moment(pool, HD), range(9)))
    assert overtaken == [True]
    assert len(made) == 1


def test_clips_of_many_kinds_all_get_their_turn(decoders):
    budget = MemoryBudget(UHD.lane_bytes() + SD.lane_bytes(), name="NVDEC memory")
    pool = LanePool(decoders, budget, 6)
    with ThreadPoolExecutor(6) as threads:
        kinds = list(threads.map(lambda n: use_for_a_moment(pool, (HD, SD, UHD)[n % 3]).kind, range(90)))
    assert kinds == [HD, SD, UHD] * 30
    assert budget.stats.peak_held_bytes <= budget.total_bytes
    pool.close()
    assert (decoders.open_now, budget.held_bytes) == (0, 0)


def use_for_a_moment(pool, kind):
    with pool.lane(kind, 30) as lane:
        time.sleep(0.002)
        return lane.decoder
