"""PoolSettings: workers x threads never above the cores."""

import os
from pathlib import Path

import pytest

from framefleet.decode import pool_settings
from framefleet.decode.pool import DecodePool
from framefleet.decode.pool_settings import PoolSettings, usable_cores
from framefleet.errors import ConfigError


@pytest.fixture
def cores(monkeypatch):
    return lambda n: monkeypatch.setattr(pool_settings, "usable_cores", lambda: n)


@pytest.mark.parametrize(
    ("num_cores", "threads", "workers"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (8, 8, 1), (1, 1, 1), (16, 4, 4)]
)
def test_workers_fill_the_cores(cores, num_cores, threads, workers):
    cores(num_cores)
    assert PoolSettings(threads=threads).num_workers == workers


@pytest.mark.parametrize(("num_cores", "threads", "workers"), [(8, 2, 5), (8, 9, None), (2, 1, 3)])
def test_more_threads_than_cores_are_refused(cores, num_cores, threads, workers):
    cores(num_cores)
    with pytest.raises(ConfigError, match=f"at most {num_cores} together"):
        DecodePool(threads=threads, workers=workers)


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"threads": -1}, {"max_bytes_in_flight": 0}, {"lease_timeout_s": 0}, {"wrokers": 2}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match="decode pool setting"):
        DecodePool(**wrong)


@pytest.mark.parametrize(("quota", "limit"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 10**6)])
def test_a_control_groups_quota_counts(monkeypatch, quota, limit):
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda p, *a, **k: quota if p.name == "cpu.max" else read(p, *a, **k))
    assert usable_cores() == min(limit, len(os.sched_getaffinity(0)))
