"""kill -9 a caption run at 20 random points over 200 clips: no committed result is lost, none is repeated."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from caption_fakes import write_clips

from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import StoreUnreadable
from framefleet.store.sink import open_store

RUNNER = Path(__file__).with_name("captioner_to_kill.py")
NUM_CLIPS, NUM_KILLS = 200, 20


def start(clips: Path, store: Path, *changes: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(RUNNER), str(clips), str(store), *changes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def killed(run: subprocess.Popen[str], after_lines: int, then_s: float) -> list[str]:
    """Everything the run got out before it was killed: so long after this line."""
    lines = [run.stdout.readline() for _ in range(after_lines)]
    time.sleep(then_s)
    run.kill()
    lines += run.stdout.readlines()
    run.wait()
    run.stdout.close()
    return [line for line in lines if line.endswith("\n")]


def finished(run: subprocess.Popen[str]) -> list[str]:
    out, _ = run.communicate(timeout=120)
    return out.splitlines()


def acknowledged(lines: list[str]) -> dict[str, str]:
    """Digest -> created_at."""
    return {parts[1]: parts[2] for line in lines if (parts := line.split())[0] == "ack"}


def stored(store: Path) -> dict[str, CaptionRecord]:
    """What a reader finds; every digest once, and the quick column agrees."""
    try:
        opened = open_store(store)
    except StoreUnreadable:  # killed before there was a store
        return {}
    with opened as sink:
        records = list(sink.records())
        assert dict(sink.statuses()) == {r.digest: r.status for r in records}
    assert max(Counter(r.digest for r in records).values(), default=1) == 1
    return {r.digest: r for r in records}


def wait_until_gone(session_id: int) -> None:
    """Workers end when the process that drives them is killed."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(session_id, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    os.killpg(session_id, signal.SIGKILL)
    pytest.fail("processes of a killed run are left")


def test_every_clip_exactly_once_through_twenty_kills(tmp_path: Path):
    clips, store, chance = tmp_path / "clips", tmp_path / "captions.lance", random.Random(20)
    write_clips(clips, NUM_CLIPS)
    told: dict[str, str] = {}
    known: dict[str, CaptionRecord] = {}
    cut_short = 0
    for _ in range(NUM_KILLS):
        run = start(clips, store)
        lines = killed(run, chance.randrange(0, 10), chance.random() * chance.choice([0.02, 0.2]))
        wait_until_gone(run.pid)
        new = acknowledged(lines)
        assert not new.keys() & told.keys(), "acknowledged twice"
        told |= new
        cut_short += not any(line.startswith("done") for line in lines)
        found = stored(store)
        assert {digest: found[digest].created_at for digest in told} == told, "lost, or made again"
        assert {digest: found[digest] for digest in known} == known
        known = found
    assert cut_short >= NUM_KILLS * 3 // 4, "the runs were over before they were killed"
    assert known, "no run came to anything before it was killed"
    *_, last = finished(start(clips, store))
    assert last == f"done 0 {NUM_CLIPS - len(known)} {len(known)}"
    final = stored(store)
    assert {digest: final[digest] for digest in known} == known
    assert Counter(r.clip for r in final.values()) == Counter(map(str, clips.iterdir()))
    assert {(r.status, r.text) for r in final.values()} == {("ok", "Frames 0 59.")}
    assert finished(start(clips, store)) == ["begun", f"done 0 0 {NUM_CLIPS}"]
    assert finished(start(clips, store, 'prompt="Something else?"'))[-1] == f"done 0 {NUM_CLIPS} 0"
    assert len(stored(store)) == 2 * NUM_CLIPS


def test_ctrl_c_ends_soon_with_the_documented_code_and_a_later_run_goes_on(tmp_path: Path):
    clips, store = tmp_path / "clips", tmp_path / "captions.lance"
    write_clips(clips, 100)
    run = start(clips, store)
    lines = [run.stdout.readline() for _ in range(5)]
    run.send_signal(signal.SIGINT)
    lines += finished(run)
    assert run.returncode == 130
    told = acknowledged(lines)
    assert 1 <= len(told) < 100
    assert stored(store).keys() == told.keys()
    wait_until_gone(run.pid)
    assert finished(start(clips, store))[-1] == f"done 0 {100 - len(told)} {len(told)}"
