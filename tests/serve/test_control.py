"""The socket by which a fleet is commanded."""

import asyncio
import threading

import pytest

from framefleet.errors import ConfigError, FramefleetError, ReplicaError
from framefleet.serve.control import Control, ask_fleet


@pytest.fixture
def folder(tmp_path):
    """A folder with a long name, in which commands are answered."""
    place = tmp_path / ("x" * 120)
    place.mkdir()
    is_up, stop = threading.Event(), threading.Event()

    async def echo(asked, note):
        note("first")
        await asyncio.sleep(0)
        note("second")
        return asked

    async def refuse(_, __):
        raise ConfigError("it does not fit", given="this", allowed="that", remedy="the other")

    async def fail(_, __):
        raise KeyError("oops")

    async def serve():
        async with Control(place / "control", {"echo": echo, "refuse": refuse, "fail": fail}):
            is_up.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    is_up.wait(10)
    yield place
    stop.set()
    thread.join()


def test_notes_and_a_result(folder):
    notes = []
    assert ask_fleet(folder, "echo", on_note=notes.append, n=1, words=["é"]) == {"n": 1, "words": ["é"]}
    assert notes == ["first", "second"]


def test_errors_come_back_as_they_were(folder):
    with pytest.raises(ConfigError) as caught:
        ask_fleet(folder, "refuse")
    assert str(caught.value) == "it does not fit; got this; allowed: that; try: the other"
    with pytest.raises(ConfigError, match="no such command; got 'dance'"):
        ask_fleet(folder, "dance")
    with pytest.raises(FramefleetError, match="KeyError: 'oops'"):
        ask_fleet(folder, "fail")


def test_no_fleet_there(tmp_path):
    with pytest.raises(ReplicaError, match="no fleet runs from this folder"):
        ask_fleet(tmp_path, "status")
    with pytest.raises(ReplicaError, match="no fleet runs from this folder"):
        ask_fleet(tmp_path / "nosuch", "status")
