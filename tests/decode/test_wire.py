"""Messages and arrays over a socket pair: same values, no copy of what is large, nothing left open, rubbish refused."""

import dataclasses
import gc
import os
import socket
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from faulty_tasks import frames_of
from hypothesis import given
from hypothesis import strategies as st

from framefleet.decode import wire
from framefleet.decode.decoder import DecodedFrames
from framefleet.errors import DecoderLost


class Envelope(msgspec.Struct, tag="envelope"):
    content: msgspec.Raw


@dataclass(frozen=True)
class Odd:
    ratio: Fraction
    rows: npt.NDArray[np.int64]
    count: int
    anything: Any = None


@pytest.fixture
def ends():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        left.settimeout(10)
        right.settimeout(10)
        yield left, right


def pass_on(ends, value, kind):
    files = []
    wire.send(ends[0], Envelope(msgspec.Raw(wire.encode(value, files))), files)
    received = wire.receive(ends[1])
    return received.decode(kind, received.decode(Envelope).content)


def open_files():
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()])


@given(
    st.sampled_from(["u1", "<i8", "<f8", "?", "<f4"]),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(0, 255),
)
def test_arrays_arrive_as_they_were(dtype, shape, value):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        array = np.full(shape, value).astype(dtype)
        came = pass_on((left, right), array, np.ndarray)
        assert (came.dtype, came.shape) == (array.dtype, array.shape)
        assert np.array_equal(came, array)


def test_a_large_array_is_mapped_and_writable_and_a_small_one_is_not_shared(ends):
    frames = pass_on(ends, frames_of(8), DecodedFrames)
    assert wire.mapping_of(frames.data) is not None
    assert wire.mapping_of(frames.data[2:, 1]) is wire.mapping_of(frames.data)
    assert wire.mapping_of(frames.pts_s) is None
    frames.data[0, 0, 0] = 9
    assert frames.data[0, 0, 0, 0] == 9
    assert np.array_equal(frames.data[1:], frames_of(8).data[1:])


def test_what_came_in_a_file_is_passed_on_as_that_file(ends):
    first = pass_on(ends, frames_of(8), DecodedFrames)
    second = pass_on(ends, first, DecodedFrames)
    part = pass_on(
        ends,
        dataclasses.replace(first, data=first.data[1:], pts_s=first.pts_s[1:], indices=first.indices[1:]),
        DecodedFrames,
    )
    first.data[1] = 77
    assert (second.data[1] == 77).all(), "one memory"
    assert not (part.data[0] == 77).any(), "a part of a file is copied"


def test_views_and_fortran_order_arrive_contiguous(ends):
    array = np.arange(60_000, dtype=np.int64).reshape(200, 300).T[::-1]
    came = pass_on(ends, array, np.ndarray)
    assert came.flags.c_contiguous
    assert np.array_equal(came, array)


def test_fractions_scalars_and_long_bodies(ends):
    odd = Odd(Fraction(-3, 7), np.arange(3), np.int64(5), "x" * 300_000)
    came = pass_on(ends, odd, Odd)
    assert (came.ratio, came.count, came.anything) == (odd.ratio, 5, odd.anything)
    assert came.rows.tolist() == [0, 1, 2]


def test_no_descriptor_is_left_open(ends):
    before = open_files()
    for _ in range(3):
        kept = pass_on(ends, frames_of(8), DecodedFrames)
        pass_on(ends, "x" * 200_000, str)
    per_mapping = 1 if sys.version_info >= (3, 13) else 2  # an older mmap holds a second one
    assert open_files() == before + per_mapping, "one mapping of `kept` is open"
    del kept
    assert open_files() == before
    with pytest.raises(TypeError):
        wire.encode([np.zeros(100_000), object()], [])
    with pytest.raises(DecoderLost):
        pass_on(ends, np.zeros(100_000), str)
    assert open_files() == before


def test_a_closed_link_gives_none(ends):
    ends[0].close()
    assert wire.receive(ends[1]) is None


def test_silence_ends_by_the_timeout(ends):
    ends[1].settimeout(0.01)
    with pytest.raises(TimeoutError):
        wire.receive(ends[1])


@pytest.mark.parametrize(
    "body",
    [
        b"i", b"i\xc1", b"i" + b"\xff" * 50, b"i" + msgspec.msgpack.encode({"type": "other"}), b"f", b"zzz",
        b"i" + msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"rubbish")),
        b"i" + msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["u1", [10], 3]))),
        b"i" + msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["O", [1], b"12345678"]))),
        b"i" + msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["u1", [9, 9], b"short"]))),
        b"i" + msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["u1", [-1], b"short"]))),
        b"i" + msgspec.msgpack.encode(msgspec.msgpack.Ext(7, b"")),
        b"i" + b"x" * 200_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Envelope, np.ndarray, DecodedFrames])
def test_rubbish_is_refused(ends, body, kind):
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    ends[0].send(body)
    with pytest.raises(DecoderLost, match="no message"):
        wire.receive(ends[1]).decode(kind)


@pytest.mark.parametrize("size", [0, 8192])
def test_a_file_that_could_shrink_under_its_mapping_is_refused(ends, size):
    descriptor = os.memfd_create("unsealed")
    os.write(descriptor, b"x" * size)
    socket.send_fds(ends[0], [b"f"], [descriptor])
    os.close(descriptor)
    before = open_files()
    with pytest.raises(DecoderLost):
        wire.receive(ends[1])
    assert open_files() == before


def test_a_frames_value_that_fails_its_own_checks_is_refused(ends):
    files = []
    body = wire.encode(frames_of(3), files)
    broken = body.replace(msgspec.msgpack.encode(25.0), msgspec.msgpack.encode("no"))
    wire.send(ends[0], Envelope(msgspec.Raw(broken)), files)
    received = wire.receive(ends[1])
    with pytest.raises(DecoderLost):
        received.decode(DecodedFrames, received.decode(Envelope).content)
