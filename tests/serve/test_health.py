"""Looks and probes: what makes a replica lost, and what only looks like it."""

import asyncio

import pytest
from stub_replicas import StubReplica, until

from framefleet.serve.admission import Admission
from framefleet.serve.dispatch import Dispatch
from framefleet.serve.health import HealthWatch, tiny_question
from framefleet.serve.proxy import Proxy
from framefleet.serve.proxy_settings import ProxySettings
from framefleet.serve.replica import Replica, StaticFleet


class Watched:
    """A watch whose looks and probes end as a test says."""

    def __init__(self, **settings):
        self.now_s = 1000.0
        settings = ProxySettings(**{"probe_s": 15, "health_s": 2, **settings})
        self.dispatch = Dispatch(StaticFleet.of_urls(["http://a:1"]), settings, now_s=lambda: self.now_s)
        admission = Admission(self.dispatch.capacity, max_queue=1, timeout_s=1)
        self.watch = HealthWatch(None, self.dispatch, admission, settings)
        self.watch._is_healthy, self.watch._answers = self._is_healthy, self._answers
        self.look, self.probe, self.num_probes, self.is_busy = "ok", "ok", 0, False

    async def _is_healthy(self, _):
        self._work()
        if self.look == "late":
            raise TimeoutError
        return self.look == "ok"

    async def _answers(self, _):
        self.num_probes += 1
        self._work()
        return self.probe == "ok"

    def _work(self):
        """A real request is answered meanwhile."""
        if self.is_busy:
            self.dispatch.answered_s["r0"] = self.now_s

    async def turns(self, num_turns, **changes):
        """So many looks, two seconds apart; the state after them."""
        for name, value in changes.items():
            setattr(self, name, value)
        for _ in range(num_turns):
            self.now_s += 2
            await self.watch.look(self.dispatch.fleet.replicas()[0])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return str(self.dispatch.fleet.replicas()[0].state)


def run(story):
    asyncio.run(story)


def test_ready_after_a_look_and_a_real_answer():
    async def story():
        watched = Watched()
        assert await watched.turns(3, probe="bad") == "starting"
        assert await watched.turns(2, probe="ok") == "ready"

    run(story())


def test_without_probes_a_look_will_do():
    async def story():
        watched = Watched(probe_s=0)
        assert await watched.turns(1, probe="bad") == "ready"
        assert watched.num_probes == 0

    run(story())


@pytest.mark.parametrize("trouble", ["bad", "late"])
def test_lost_after_three_bad_looks_and_back_once_proven(trouble):
    async def story():
        watched = Watched()
        assert await watched.turns(2) == "ready"
        assert await watched.turns(2, look=trouble) == "ready"
        assert await watched.turns(1) == "lost"
        assert await watched.turns(3, look="ok", probe="bad") == "lost"
        assert await watched.turns(2, probe="ok") == "ready"

    run(story())


def test_one_bad_look_among_good_ones_is_nothing():
    async def story():
        watched = Watched()
        await watched.turns(2)
        for _ in range(5):
            await watched.turns(2, look="bad")
            assert await watched.turns(1, look="ok") == "ready"

    run(story())


def test_lost_after_two_bad_probes_though_looks_are_good():
    async def story():
        watched = Watched()
        assert await watched.turns(2) == "ready"
        before = watched.num_probes
        assert await watched.turns(40, probe="bad") == "lost"
        assert watched.num_probes >= before + 2
        assert await watched.turns(3, probe="ok") == "ready"

    run(story())


def test_a_busy_replica_is_late_but_not_lost():
    """The trap of a cascade: a loaded replica taken for dead throws its load on the next."""

    async def story():
        watched = Watched()
        await watched.turns(2)
        assert await watched.turns(40, look="late", probe="bad", is_busy=True) == "ready"
        assert await watched.turns(3, look="bad") == "lost"  # it says itself that it is not well

    run(story())


def test_a_replica_that_answers_is_not_probed():
    async def story():
        watched = Watched()
        await watched.turns(2)
        probes = watched.num_probes
        await watched.turns(20, is_busy=True)
        assert watched.num_probes == probes
        await watched.turns(10, is_busy=False)
        assert watched.num_probes > probes

    run(story())


def test_the_tiny_question_is_a_clip_of_two_frames():
    (message,) = tiny_question("m")["messages"]
    url = message["content"][1]["video_url"]["url"]
    assert url.startswith("data:video/jpeg;base64,/9j/")
    assert url.count(",") == 2


def test_a_probe_is_a_request_that_any_server_takes():
    """vLLM answers 400 to JSON that is not called so, and its engine is never asked."""

    async def story():
        stub = StubReplica("r0")
        await stub.start()
        try:
            async with Proxy(StaticFleet.of_urls([stub.url]), ProxySettings(health_s=0.05)) as proxy:
                await until(lambda: proxy.fleet.replicas()[0].state == "ready")
        finally:
            await stub.stop()
        assert {tuple(asked.header("content-type")) for asked in stub.chats} == {("application/json",)}

    run(story())


def test_a_replica_started_anew_proves_itself_anew():
    class Moving(StaticFleet):
        """Its replica is another process at each address."""

        def restart(self, base_url):
            self._replicas = {"r0": Replica("r0", base_url)}

    async def story():
        watched = Watched()
        fleet = watched.dispatch.fleet = Moving([Replica("r0", "http://a:1")])
        assert await watched.turns(2, probe="ok") == "ready"
        old = fleet.replicas()[0]
        fleet.restart("http://a:2")
        assert await watched.turns(1, probe="bad") == "starting"  # a look alone will not do
        await watched.watch.look(old)
        assert str(fleet.replicas()[0].state) == "starting"  # nor what the old one says
        assert await watched.turns(2, probe="ok") == "ready"

    run(story())
