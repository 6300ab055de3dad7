import socket
import threading

import msgspec
import numpy as np
import pytest

from framefleet import errors
from framefleet.engine.captioner import GenerationSettings
from framefleet.engine.clock import FrameClock
from framefleet.engine.embedded.wire import (
    Ask,
    Channel,
    Done,
    Failed,
    FromProcess,
    Piece,
    ToProcess,
)
from framefleet.engine.question import Turn


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
    assert here.receive() == done
    assert here.receive() == Piece(1, "x")
    sender.join()


def test_frames_arrive_as_they_were(ends):
    here, there = ends
    frames = np.random.default_rng(0).integers(0, 256, (3, 80, 100, 3), np.uint8)
    clock = FrameClock([0, 1, 2], 25.0, 3, 0.12)
    ask = Ask(
        id=7, turns=(Turn("user", "Hi", has_video=True),), clock=clock, frames=frames[::-1],
        generation=GenerationSettings(), wants_text=False,
    )  # fmt: skip
    here.send(ask)
    arrived = there.receive()
    assert np.array_equal(arrived.frames, frames[::-1])
    assert msgspec.structs.replace(arrived, frames=None) == msgspec.structs.replace(ask, frames=None)


def test_nonsense_ends_the_conversation(ends):
    here, there = ends
    here._link.send(b"i\xc1")
    with pytest.raises(EOFError, match="no message"):
        there.receive()


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
