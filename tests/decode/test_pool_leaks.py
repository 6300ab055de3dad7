"""A thousand opens over good and broken files: a worker's memory, descriptors and threads stay flat, and so do ours."""

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from framefleet.decode.options import DecodeOptions
from framefleet.decode.pool import DecodePool
from framefleet.errors import FramefleetError
from framefleet.units import KIB, MIB

FILES = Path(__file__).parent.parent / "corpus" / "files"
NAMES = [
    "base.mp4", "hevc_open_gop.mp4", "av1.mp4", "vp9_alpha.webm", "vfr_gap.mkv", "ts_packet_loss.ts",
    "bitflips_mid.mp4", "zeroed_hole.mp4", "truncated_no_moov.mp4", "html_404.mp4", "zero_bytes.mp4", "audio_only.mp4",
    "resolution_change.ts", "missing_pts_bframes.avi", "overreport_cut_tail.mp4", "no such file",
]  # fmt: skip
OPTIONS = DecodeOptions(num_frames=4, max_pixels=96 * 96, timeout_s=120, backend="pyav")


def vitals_of(pool):
    """(worker's memory, descriptors, threads; ours) after a job."""
    worker = pool._attendants[0].worker.vitals
    gc.collect()
    own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    own_files = len([*Path("/proc/self/fd").iterdir()])
    return worker.rss_bytes, worker.num_files, worker.num_threads, own, own_files, threading.active_count()


def open_many(num_opens, names, options=OPTIONS):
    """[num_opens, 6] the vitals after each job; one worker, never replaced."""
    with DecodePool(workers=1, recycle_after_jobs=10**9, recycle_above_bytes=10**12) as pool:
        rows = []
        for number in range(num_opens):
            path = FILES / names[number % len(names)]
            with suppress(FramefleetError):
                pool.run("decode", path.read_bytes() if number % 3 == 0 and path.exists() else path, options)
            rows.append(vitals_of(pool))
        assert pool.load.workers_lost == 0
        assert pool.budget.held_bytes == 0
    return np.array(rows)


def growth_per_open(series):
    """Least-squares slope, bytes per open."""
    return np.polyfit(np.arange(len(series)), series, 1)[0]


def test_150_opens_leave_nothing_behind():
    rows = open_many(150, NAMES)
    settled = rows[50:]
    assert np.ptp(settled[:, 1]) == 0, "the worker's descriptors"
    assert np.ptp(settled[:, 2]) == 0, "the worker's threads"
    assert growth_per_open(settled[:, 0]) < 40 * KIB
    assert np.ptp(settled[:, 4]) == 0, "our descriptors"
    assert np.ptp(settled[:, 5]) == 0, "our threads"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pyav", "auto"])
def test_1000_opens_leave_nothing_behind(backend):
    options = DecodeOptions(num_frames=4, max_pixels=96 * 96, timeout_s=120, backend=backend)
    rows = open_many(1000, NAMES, options)
    last = rows[500:]
    for column, least in ((0, 4 * KIB), (3, 4 * KIB)):
        assert growth_per_open(last[:, column]) < least
        assert np.median(last[-50:, column]) - np.median(last[:50, column]) < 4 * MIB
    for column in (1, 2, 4, 5):
        assert np.ptp(last[:, column]) == 0
