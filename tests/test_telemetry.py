import contextlib
import io
import json
import logging

import pytest

from framefleet import telemetry
from framefleet.telemetry import Occupancy, PhaseClock, set_up_logging


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    class Clock:
        now_s = 100.0

        def perf_counter(self) -> float:
            return self.now_s

    made = Clock()
    monkeypatch.setattr(telemetry, "time", made)
    return made


def test_phases_add_up_also_when_they_raise(clock):
    phases = PhaseClock()
    for seconds in (1.0, 2.0):
        with phases.phase("decode"):
            clock.now_s += seconds
    with contextlib.suppress(KeyError), phases.phase("caption"):
        clock.now_s += 0.5
        {}["missing"]
    clock.now_s += 4
    assert phases.as_seconds() == {"decode": 3.0, "caption": 0.5, "total": 7.5}


def test_occupancy_is_weighted_by_time(clock):
    occupancy = Occupancy()
    with occupancy.at("decode"):
        clock.now_s += 3
        with occupancy.at("decode"), occupancy.at("engine"):
            assert occupancy.now == {"decode": 2, "engine": 1}
            clock.now_s += 1
        assert occupancy.averages() == {"decode": pytest.approx(1.25), "engine": pytest.approx(0.25)}
        clock.now_s += 2
    clock.now_s += 2
    assert occupancy.averages() == {"decode": pytest.approx(0.5), "engine": 0.0}
    clock.now_s += 2
    assert occupancy.averages() == {"decode": 0.0, "engine": 0.0}


@pytest.fixture
def quiet_logger():
    logger = logging.getLogger(telemetry.LOGGER)
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before[0], before[1], before[2]


@pytest.mark.usefixtures("quiet_logger")
def test_log_lines_for_people_and_for_programs():
    plain, lines = io.StringIO(), io.StringIO()
    set_up_logging("info", stream=plain)
    logging.getLogger("framefleet.part").info("seen %d", 3)
    set_up_logging("warning", as_json=True, stream=lines)
    logging.getLogger("framefleet.part").info("not seen")
    try:
        {}["x"]
    except KeyError:
        logging.getLogger("framefleet.part").exception("broken")
    assert plain.getvalue().count("seen 3") == 1
    line = json.loads(lines.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("error", "framefleet.part", "broken")
    assert "KeyError" in line["traceback"]
    assert len([h for h in logging.getLogger(telemetry.LOGGER).handlers if getattr(h, "is_framefleet", False)]) == 1
