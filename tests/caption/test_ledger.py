import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from framefleet.caption.ledger import Ledger, RunRates, is_settled, ledger_path, stamp_of
from framefleet.errors import StoreLocked
from framefleet.units import Span

CONTENT = "0a" * 16
HOLDS_THE_LEDGER = """
import sys, time
from framefleet.caption.ledger import Ledger
ledger = Ledger.beside(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""
RATES = RunRates(
    model="m", engine="e", windows=10, seconds=5.0, prompt_tokens=100, completion_tokens=50, decode_s=1.0, caption_s=9.0
)


def test_what_is_remembered_is_there_after_reopening(tmp_path: Path):
    store = str(tmp_path / "captions.lance")
    spans = [Span(-5, 10), Span(10, 2**62)]
    with Ledger.beside(store) as ledger:
        ledger.remember_content("/a", "etag:1", CONTENT)
        ledger.remember_windows(CONTENT, "30s", spans)
        ledger.remember_run("t", RATES)
    with Ledger.beside(store) as ledger:
        assert ledger.content_of("/a", "etag:1") == CONTENT
        assert ledger.content_of("/a", "etag:2") is None
        assert ledger.content_of("/b", "etag:1") is None
        assert ledger.windows_of(CONTENT, "30s") == spans
        assert ledger.windows_of(CONTENT, "10s") is None
        assert list(ledger.runs()) == [RATES]


def test_places_of_equal_content(tmp_path: Path):
    odd = os.fsdecode(b"/\xff.mp4")
    with Ledger(":memory:") as ledger:
        for place in ("/a", "/b", odd):
            ledger.remember_content(place, "etag:1", CONTENT)
        ledger.remember_content("/b", "etag:2", "0b" * 16)
        assert sorted(ledger.places_of(CONTENT)) == sorted(["/a", odd])


def test_a_fresh_file_is_not_trusted_since_it_may_change_under_the_same_stamp(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(b"x")
    assert not is_settled(stamp_of(path))
    with Ledger(":memory:") as ledger:
        ledger.remember_content(str(path), stamp_of(path), CONTENT)
        assert ledger.content_of(str(path), stamp_of(path)) is None
        os.utime(path, (time.time() - 10, time.time() - 10))
        assert is_settled(stamp_of(path))
        ledger.remember_content(str(path), stamp_of(path), CONTENT)
        assert ledger.content_of(str(path), stamp_of(path)) == CONTENT
    os.utime(path, (time.time() + 1000, time.time() + 1000))
    assert not is_settled(stamp_of(path))


def test_a_stamp_tells_size_time_and_inode(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(b"x")
    os.utime(path, ns=(10**18, 10**18))
    before = stamp_of(path)
    (tmp_path / "b").write_bytes(b"x")
    os.utime(tmp_path / "b", ns=(10**18, 10**18))
    assert stamp_of(tmp_path / "b") != before  # another inode: swapped in by a rename
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert stamp_of(path) != before


def test_a_broken_ledger_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    store = str(tmp_path / "captions.lance")
    Path(ledger_path(store)).write_bytes(b"this is no database, it is only long enough to look like one" * 100)
    with Ledger.beside(store) as ledger:
        ledger.remember_content("/a", "etag:1", CONTENT)
    assert "set aside" in caplog.text
    with Ledger.beside(store) as ledger:
        assert ledger.content_of("/a", "etag:1") == CONTENT
    assert len(list(tmp_path.glob("*.broken-*"))) == 1


def test_a_second_writer_is_kept_out_until_the_first_ends_however_it_ends(tmp_path: Path):
    store = str(tmp_path / "captions.lance")
    other = subprocess.Popen([sys.executable, "-c", HOLDS_THE_LEDGER, store], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "open\n"
    with pytest.raises(StoreLocked, match="another run"):
        Ledger.beside(store)
    other.kill()
    other.wait()
    other.stdout.close()
    Ledger.beside(store).close()


def test_a_remote_store_has_a_ledger_for_the_run_only():
    with Ledger.beside("s3://bucket/captions.lance") as ledger:
        assert ledger.path == ":memory:"
