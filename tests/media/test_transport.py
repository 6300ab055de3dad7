"""Continuity counters: every removed packet is found, and nothing else is."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefleet.media.transport import find_losses

PID = 0x1FF
SIZE = 188


def make(num_units, packets_per_unit=3, stride=SIZE):
    """Units of one stream, with tables of another in between."""
    blocks, counter = [], 0
    for unit in range(num_units):
        blocks.append(b"\x47\x40\x00" + bytes([0x10 | unit % 16]) + bytes(184))
        for part in range(packets_per_unit):
            starts, is_last = part == 0, part == packets_per_unit - 1
            head = bytes([0x47, (0x40 if starts else 0) | PID >> 8, PID & 255, (0x30 if is_last else 0x10) | counter])
            adaptation = b"\x0a\x00" + b"\xff" * 9 if is_last else b""
            body = (b"\0\0\1\xe0" if starts else b"") + b"\xaa" * SIZE
            blocks.append((head + adaptation + body)[:SIZE])
            counter = (counter + 1) % 16
    return [b"time"[: stride - SIZE] + block for block in blocks]


def losses_of(blocks):
    return find_losses(io.BytesIO(b"".join(blocks)), PID)


@pytest.mark.parametrize("stride", [188, 192])
def test_a_whole_stream_has_no_gaps(stride):
    assert len(losses_of(make(40, stride=stride))) == 0


@given(st.integers(2, 30), st.data())
def test_one_lost_packet_is_one_gap_around_it(num_units, data):
    blocks = make(num_units)
    ours = [n for n, block in enumerate(blocks) if block[2] == PID & 255]
    lost = data.draw(st.sampled_from(ours[1:-1]))
    found = losses_of(blocks[:lost] + blocks[lost + 1 :])
    assert len(found) == 1
    assert found.before[0] < lost * SIZE <= found.after[0]
    at = ours.index(lost)
    assert bool(found.starts_unit[0]) == ((at + 1) % 3 == 0)
    assert bool(found.ended_unit[0]) == (at % 3 == 0)


def test_a_packet_that_comes_twice_is_a_gap():
    blocks = make(10)
    ours = [n for n, block in enumerate(blocks) if block[2] == PID & 255]
    for twice in ours:
        found = losses_of(blocks[: twice + 1] + blocks[twice:])
        assert found.before.tolist() == [twice * SIZE]
        assert found.after.tolist() == [(twice + 1) * SIZE]


def test_counters_that_never_count_are_no_repeats():
    content = np.frombuffer(b"".join(make(10)), np.uint8).reshape(-1, SIZE).copy()
    content[:, 3] &= 0xF0
    content[:, -1] = np.arange(len(content))
    assert len(losses_of([row.tobytes() for row in content])) == 0


def test_lost_tables_are_no_gap():
    blocks = make(10)
    assert len(losses_of([block for n, block in enumerate(blocks) if block[2] != 0 or n < 3])) == 0


def test_a_torn_sync_is_a_gap_even_where_the_counters_agree():
    blocks = make(20)
    blocks[8] = bytes(SIZE)  # a table between two units
    assert len(losses_of(blocks)) == 1


def test_bytes_slipped_in_are_skipped():
    blocks = make(20)
    found = losses_of([*blocks[:9], b"\x47junk" * 5, *blocks[9:]])
    assert len(found) == 1


def test_a_unit_without_its_header_is_a_gap():
    blocks = make(20)
    start = next(n for n in range(8, 20) if blocks[n][1] & 0x40 and blocks[n][2] == PID & 255)
    blocks[start] = blocks[start][:4] + bytes(SIZE - 4)
    found = losses_of(blocks)
    assert len(found) == 1
    assert not found.starts_unit[0]


def test_an_announced_jump_is_no_gap():
    blocks = make(20)
    announced = bytearray(blocks[22])
    announced[3] = 0x30 | (announced[3] + 5) % 16
    announced[4:6] = b"\x01\x80"
    rest = [bytes([*b[:3], b[3] & 0xF0 | (b[3] + 5) % 16, *b[4:]]) if b[2] else b for b in blocks[23:]]
    assert len(losses_of([*blocks[:22], bytes(announced), *rest])) == 0


@given(st.binary(max_size=3000))
def test_any_bytes_are_read_to_their_end(content):
    assert len(find_losses(io.BytesIO(content), PID).after) >= 0


def test_long_streams_are_read_in_parts(monkeypatch):
    monkeypatch.setattr("framefleet.media.transport._CHUNK_PACKETS", 7)
    blocks = make(60)
    whole = losses_of(blocks[:50] + blocks[51:])
    monkeypatch.undo()
    again = losses_of(blocks[:50] + blocks[51:])
    assert np.array_equal(whole.after, again.after)
    assert len(whole) == 1
