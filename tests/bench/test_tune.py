"""`tune` on a fleet that is a stub with a known speed: it changes no more than it must, and puts back what was."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from chat_server import ChatServer
from http_server import serving

from framefleet.bench.ladder import Ladder
from framefleet.bench.trial_log import read_log
from framefleet.bench.tune import TuneSettings, run_tune
from framefleet.bench.tune_report import tune_report
from framefleet.errors import ConfigError
from framefleet.serve.fleet_settings import FleetSettings

CLIP = str(Path(__file__).parents[1] / "corpus" / "files" / "base.mp4")
LADDERS = [
    Ladder(name="embedded.max_batch", rungs=(1, 4)),
    Ladder(name="concurrency", rungs=(2, 4), restarts=False),
]


class StubFleet:
    """Has FleetClient's methods; its server is as quick as its settings say."""

    def __init__(self, server, url):
        self.server, self.url, self.running = server, url, FleetSettings(replicas=1)
        self.applied = []
        self._obey()

    def status(self):
        return {"address": self.url, "engine": "embedded", "services": [], "replicas": [{"gpu": None}]}

    def settings(self):
        return self.running

    def apply(self, settings, *, origin, is_judged=True, on_note=None):
        self.applied.append(settings.embedded.max_batch)
        if settings.embedded.max_batch == 16:
            raise ConfigError("too large a batch")
        before, self.running = self.running, settings
        self._obey()
        back = lambda: self.apply(before, origin="rollback")  # noqa: E731
        return SimpleNamespace(is_applied=True, reasons=(), keep=lambda: None, rollback=back)

    def _obey(self):
        self.server.first_s = 0.1 if self.running.embedded.max_batch == 1 else 0.02
        self.server.salt = "other" if self.running.embedded.max_batch == 2 else ""


@pytest.fixture
def fleet():
    server = ChatServer(lanes=64)
    with serving(server.app()) as url:
        yield StubFleet(server, url)


def tuned(fleet, folder, ladders=LADDERS, **options):
    settings = TuneSettings(inputs=(CLIP,), max_tokens=2, trial_s=0.1, time_limit_s=5, most_in_flight=4)
    return run_tune(settings, fleet, folder, ladders=ladders, **options)


def test_the_faster_setting_is_found_and_what_was_is_put_back(fleet, tmp_path):
    fleet.running = msgspec.convert({"replicas": 1, "embedded": {"max_batch": 1}}, FleetSettings)
    fleet._obey()
    found = tuned(fleet, tmp_path)
    assert found.chosen["embedded.max_batch"] == 4
    assert found.gain is not None
    assert fleet.running.embedded.max_batch == 1
    assert "max_batch = 4" in found.fleet_toml
    assert len(fleet.applied) <= 8  # settings that need the same servers are measured together
    assert found.num_trials >= len(read_log(Path(found.log))[1]) - 3


def test_settings_that_say_other_things_or_do_not_come_up_are_out(fleet, tmp_path):
    ladders = [Ladder(name="embedded.max_batch", rungs=(2, 8, 16), costs=True), LADDERS[1]]
    found = tuned(fleet, tmp_path, ladders)
    assert found.chosen["embedded.max_batch"] == 8
    reasons = {point.settings["embedded.max_batch"]: point.failure for point in found.points if point.failure}
    assert "captions are others" in reasons[2]
    assert "too large a batch" in reasons[16]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_broken_off_it_puts_back_what_was(fleet, tmp_path, number):
    def tell(step):
        if fleet.running.embedded.max_batch != 8 and not fleet.told:
            fleet.told = os.kill(os.getpid(), number) or True

    fleet.told = False
    with pytest.raises(KeyboardInterrupt):
        tuned(fleet, tmp_path, on_step=tell)
    assert fleet.applied[-1] == fleet.running.embedded.max_batch == 8


def test_without_a_ladder_of_requests_in_flight_all_meet_todays_load(fleet, tmp_path):
    found = tuned(fleet, tmp_path, LADDERS[:1])
    assert {point.settings["concurrency"] for point in found.points} == {found.knee.concurrency}
    assert found.chosen["concurrency"] == found.today["concurrency"] == found.knee.concurrency
    assert "Throughput against concurrency" in [section.title for section in tune_report(found).sections]


def test_a_search_that_was_run_already_measures_nothing_again(fleet, tmp_path):
    first = tuned(fleet, tmp_path)
    fleet.server.bodies.clear()
    again = tuned(fleet, tmp_path)
    assert fleet.server.bodies == []
    assert again.chosen == first.chosen


def test_applying_measures_before_and_after_and_keeps(fleet, tmp_path):
    found = tuned(fleet, tmp_path, apply=True)
    assert found.applied.kept == (not found.applied.reasons)
    assert len(found.applied.before) == 6
    assert fleet.running.embedded.max_batch == found.chosen["embedded.max_batch"]
