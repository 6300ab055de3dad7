"""kill -9 at any point: what was acknowledged is there once, what was not is there whole or not at all."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from caption_records import failed, record

from framefleet.store.sink import open_store

TOTAL = 200
WRITER = Path(__file__).with_name("writer_to_kill.py")


def start(kind: str, path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(WRITER.parent.parent)}
    command = [sys.executable, str(WRITER), kind, str(path), str(TOTAL)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def acknowledged_until_killed(writer: subprocess.Popen[str], num_lines: int, then_s: float) -> list[str]:
    """Every line that the writer got out: it is killed so long after this line."""
    lines = [writer.stdout.readline() for _ in range(num_lines)]
    time.sleep(then_s)
    writer.kill()
    lines += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    return [line for line in lines if line.endswith("\n")]


def checked(path: Path, status_of: dict[int, str]) -> dict[int, str]:
    """What is there after a kill, by number; `status_of` is what was acknowledged."""
    for mode in ("r", "w"):
        with open_store(path, mode) as store:
            found = list(store.records())
            numbers = {record(n).digest: n for n in range(TOTAL)}
            assert max(Counter(one.digest for one in found).values(), default=1) == 1
            assert dict(store.statuses()) == {one.digest: one.status for one in found}
        by_number = {numbers[one.digest]: one for one in found}
        for n, one in by_number.items():
            assert one in (record(n), failed(n))
        for n, status in status_of.items():
            assert by_number[n].status in (status, "ok"), n
        assert len(set(by_number) - set(status_of)) <= 1  # the one in flight
    return {n: one.status for n, one in by_number.items()}


@pytest.mark.parametrize(("kind", "num_kills"), [("lance", 20), ("parquet", 8), ("jsonl", 6)])
def test_every_acknowledged_record_is_there_once(kind: str, num_kills: int, tmp_path: Path):
    rng, path, status_of = random.Random(f"kill {kind}"), tmp_path / f"captions.{kind}", {}
    for _ in range(num_kills):
        lines = acknowledged_until_killed(start(kind, path), rng.randrange(0, 12), rng.random() * 0.06)
        status_of |= {int(n): status for status, n in (line.split() for line in lines if " " in line)}
        if path.exists() and (kind != "lance" or (path / "_versions").exists()):
            status_of |= checked(path, status_of)
    last = start(kind, path)
    assert last.communicate()[0].splitlines()[-1] == "closed"
    with open_store(path) as store:
        assert Counter(store.statuses().values()) == {"ok": TOTAL}
        assert sorted(store.records(), key=lambda r: r.start_s) == [record(n) for n in range(TOTAL)]
