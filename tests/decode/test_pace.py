"""The choice between two kinds of silicon, and a queue run by it."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode.pace import Silicon, first_done

PIXELS = st.floats(1e5, 1e10)


def kinds(gpu_places=14, cpu_places=10):
    return Silicon("nvdec", gpu_places), Silicon("cpu", cpu_places)


def test_an_idle_gpu_gets_the_first_clips_and_an_idle_cpu_those_that_would_wait():
    gpu, cpu = kinds()
    gpu.note("h264", 1e9, 1.5)
    cpu.note("h264", 1e9, 3.0)
    chosen = []
    for _ in range(60):
        kind = first_done((gpu, cpu), "h264", 1e9)
        kind.begin(1e9)
        chosen.append(kind.name)
    assert chosen[:14] == ["nvdec"] * 14
    assert "cpu" in chosen[14:]
    assert chosen.count("nvdec") > chosen.count("cpu")


def test_no_places_no_clips():
    gpu, cpu = kinds(gpu_places=0)
    assert first_done((gpu, cpu), "h264", 1e9) is cpu


def test_a_codec_not_seen_yet_costs_what_all_clips_together_did():
    gpu, _ = kinds()
    before = gpu.cost_s("hevc", 1e8)
    gpu.note("h264", 1e8, 1.0)
    assert gpu.cost_s("hevc", 1e8) == gpu.cost_s("h264", 1e8) != before


@pytest.mark.parametrize("name", ["nvdec", "cpu"])
@given(pixels=PIXELS, seconds=st.floats(0.001, 100))
def test_what_was_seen_often_is_expected_again(name, pixels, seconds):
    kind = Silicon(name, 4)
    for _ in range(60):
        kind.note("h264", pixels, seconds)
    assert kind.cost_s("h264", pixels) == pytest.approx(seconds, rel=0.1)


@given(st.lists(st.tuples(PIXELS, st.floats(0.001, 100)), max_size=50))
def test_more_pixels_never_cost_less(seen):
    gpu, _ = kinds()
    for pixels, seconds in seen:
        gpu.note("h264", pixels, seconds)
    costs = [gpu.cost_s("h264", pixels) for pixels in (0, 1e6, 1e8, 1e10)]
    assert costs == sorted(costs)
    assert costs[0] >= 0


def test_both_parts_of_a_cost_are_found():
    gpu, _ = kinds()
    for pixels in (1e7, 4e8, 2e9, 1e8) * 20:
        gpu.note("h264", pixels, 0.1 + 3e-9 * pixels)
    assert gpu.cost_s("h264", 0) == pytest.approx(0.1, rel=0.1)
    assert gpu.cost_s("h264", 1e9) == pytest.approx(3.1, rel=0.1)


def test_many_small_clips_do_not_make_nvdec_look_slow_for_large_ones():
    """Seen on an H200: clips of 16 small pictures take 0.09 s there and 0.08 s on a core, and then 20 s of 1080p went
    to the CPU, where they take 1.9 s instead of 0.4."""
    gpu, cpu = kinds()
    for _ in range(500):
        gpu.note("h264", 16 * 1024 * 576, 0.09)
        cpu.note("h264", 16 * 1024 * 576, 0.08)
    assert first_done((gpu, cpu), "h264", 191 * 1920 * 1088, idle_worth=1) is gpu


def test_a_kind_that_was_slow_for_a_while_is_tried_again():
    gpu, cpu = kinds()
    for _ in range(30):
        gpu.note("h264", 4e8, 20.0)
        cpu.note("h264", 4e8, 2.0)
    assert first_done((gpu, cpu), "h264", 4e8) is cpu
    for _ in range(400):
        gpu.pass_over("h264")
    assert first_done((gpu, cpu), "h264", 4e8) is gpu


@given(PIXELS, st.integers(0, 40), st.integers(0, 40))
def test_the_chosen_one_is_never_later_than_the_other(pixels, on_gpu, on_cpu):
    gpu, cpu = kinds()
    for kind, count in ((gpu, on_gpu), (cpu, on_cpu)):
        for _ in range(count):
            kind.begin(1e8)
    chosen = first_done((gpu, cpu), "h264", pixels, idle_worth=1)
    assert chosen.finish_s("h264", pixels) == min(kind.finish_s("h264", pixels) for kind in (gpu, cpu))


def test_books_are_even_in_the_end():
    gpu, _ = kinds()
    gpu.begin(5.0)
    gpu.begin(7.0)
    gpu.end(5.0)
    gpu.end(7.0)
    assert (gpu.outstanding_clips, gpu.outstanding_pixels) == (0, 0)


@pytest.mark.parametrize(("gpu_s", "cpu_s"), [(0.6, 3.5), (0.6, 0.8), (2.0, 1.0), (0.6, 30.0)])
def test_neither_waits_while_the_other_has_a_queue(gpu_s, cpu_s):
    """A closed loop of 64 clips in flight reaches at least 0.93 of both rates added, whatever they are."""
    gpu, cpu = kinds()
    true_s = {"nvdec": gpu_s, "cpu": cpu_s}
    free = {"nvdec": [0.0] * 14, "cpu": [0.0] * 10}
    ends: list[tuple[float, int, Silicon, float]] = []
    now = 0.0
    for number in range(3000):
        if number >= 64:
            now, _, kind, took_s = heapq.heappop(ends)
            kind.end(1e8)
            kind.note("h264", 1e8, took_s)
        kind = first_done((gpu, cpu), "h264", 1e8)
        kind.begin(1e8)
        start = max(now, heapq.heappop(free[kind.name]))
        heapq.heappush(free[kind.name], start + true_s[kind.name])
        heapq.heappush(ends, (start + true_s[kind.name], number, kind, true_s[kind.name]))
    rate = (3000 - 64) / now
    assert rate > 0.93 * (14 / gpu_s + 10 / cpu_s)
