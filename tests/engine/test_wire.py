import os
import socket
import threading

import numpy as np
import pytest

from framefleet import errors
from framefleet.engine.embedded.wire import (
    Cancel,
    Channel,
    Done,
    Failed,
    FromProcess,
    Piece,
    ToProcess,
    frames_from_memfd,
    frames_to_memfd,
)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    here, there = Channel(ours, FromProcess), Channel(theirs, ToProcess)
    yield here, there
    here.close()
    there.close()


def test_messages_of_any_size_arrive_whole(ends):
    here, there = ends
    done = Done(
        id=3, text="é" * 3_000_000, finish_reason="stop", prompt_tokens=1, completion_tokens=2, mean_logprob=None,
        seconds={"queue": 0.5},
    )  # fmt: skip
    sender = threading.Thread(target=lambda: [there.send(done), there.send(Piece(1, "x"))])
    sender.start()
    assert here.receive() == (done, None)
    assert here.receive() == (Piece(1, "x"), None)
    sender.join()


def test_frames_arrive_as_they_were(ends):
    here, there = ends
    frames = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 3), np.uint8)
    fd = frames_to_memfd(frames[::-1])
    here.send(Cancel(7), fd)
    os.close(fd)
    message, received = there.receive()
    assert message == Cancel(7)
    arrived = frames_from_memfd(received, frames.shape)
    assert np.array_equal(arrived, frames[::-1])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(received)


def test_a_closed_end_is_told(ends):
    here, there = ends
    waiting = threading.Timer(0.05, there.close)
    waiting.start()
    with pytest.raises(EOFError):
        here.receive()


def test_errors_arrive_as_they_were():
    error = errors.DeviceError("no memory", given="8 GiB", allowed="4 GiB", remedy="less")
    again = Failed.of(4, error).error()
    assert type(again) is errors.DeviceError
    assert str(again) == str(error)
