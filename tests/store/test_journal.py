"""Frames, torn tails, damage, segments."""

import errno
import os
from pathlib import Path

import pytest
from caption_records import failed, record
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import StoreFull, StoreUnreadable
from framefleet.store.journal import MAGIC, Journal, decode_frames, encode_frame

GROUPS = [[record(1)], [failed(2), record(3)], [record(4, text="FFj1" * 20)]]


def test_frames_come_back():
    content = b"".join(map(encode_frame, GROUPS))
    assert decode_frames(content) == (GROUPS, len(content))
    assert decode_frames(b"") == ([], 0)


def test_a_torn_tail_of_every_length_is_passed_over():
    whole, last = b"".join(map(encode_frame, GROUPS[:2])), encode_frame(GROUPS[2])
    for num_bytes in range(len(last)):
        assert decode_frames(whole + last[:num_bytes]) == (GROUPS[:2], len(whole))


@pytest.mark.parametrize("filling", [b"\0", b"\xff", MAGIC], ids=["zeros", "ones", "magic"])
def test_a_tail_that_a_power_cut_filled_with_rubbish_is_passed_over(filling):
    """The file has grown, the bytes have not come."""
    whole, last = encode_frame(GROUPS[0]), encode_frame(GROUPS[1])
    for num_good in (0, 3, 12, len(last) // 2, len(last) - 1):
        torn = last[:num_good] + (filling * len(last))[: len(last) - num_good]
        assert decode_frames(whole + torn) == (GROUPS[:1], len(whole))


@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_damage_before_good_frames_is_no_torn_tail(position, flip):
    first, rest = encode_frame(GROUPS[0]), encode_frame(GROUPS[1])
    at = position % len(first)
    damaged = first[:at] + bytes([first[at] ^ flip]) + first[at + 1 :]
    with pytest.raises(StoreUnreadable, match=f"bad frame at byte 0, good ones again from {len(first)}"):
        decode_frames(damaged + rest)


def test_a_new_writer_begins_a_new_segment_after_a_torn_one(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    journal.append(GROUPS[0])
    journal.close()
    [segment] = journal.segments()
    segment.write_bytes(segment.read_bytes() + encode_frame(GROUPS[1])[:-1])
    again = Journal(tmp_path / "journal")
    again.append(GROUPS[2])
    assert [path.name for path in again.segments()] == ["00000001.log", "00000002.log"]
    assert list(again.read()) == GROUPS[0] + GROUPS[2]
    again.clear()
    assert list(again.read()) == again.segments() == []


@pytest.mark.parametrize("failing", ["pwrite", "fdatasync"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"]
)
def test_a_failed_append_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
):
    journal = Journal(tmp_path / "journal")
    journal.append(GROUPS[0])
    true_pwrite = os.pwrite

    def fail(descriptor: int, *rest: object) -> int:
        if failing == "pwrite":
            true_pwrite(descriptor, rest[0][:11], rest[1])  # type: ignore[index,arg-type]
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, fail)
        with pytest.raises(StoreFull if isinstance(error, OSError) else KeyboardInterrupt):
            journal.append(GROUPS[1])
    journal.append(GROUPS[2])
    [segment] = journal.segments()
    assert segment.read_bytes() == encode_frame(GROUPS[0]) + encode_frame(GROUPS[2])


def test_a_segment_folded_while_it_is_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(tmp_path / "journal")
    journal.append(GROUPS[0])
    listed = journal.segments()
    journal.clear()
    monkeypatch.setattr(journal, "segments", lambda: listed)
    assert list(journal.read()) == []
