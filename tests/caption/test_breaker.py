import pytest
from caption_records import record

from framefleet.caption.breaker import Breaker, is_engines_fault
from framefleet.errors import ConfigError, EngineLost


def lost(number: int, reason: str = "EngineLost"):
    return record(number, status="failed", reason=reason, message=f"down {number}", text="")


def test_only_the_engine_and_the_settings_count():
    assert [
        is_engines_fault(lost(1, reason)) for reason in ("EngineLost", "EngineBusy", "ConfigError", "DeviceError")
    ] == [True] * 4
    for reason in ("SourceCorrupt", "DecoderLost", "BudgetTimeout", "KeyError", "CaptionError"):
        assert not is_engines_fault(lost(1, reason))
    assert not is_engines_fault(record(1))
    assert not is_engines_fault(record(1, status="rejected", reason="CaptionRejected"))


def test_failures_are_kept_once_the_engine_has_answered_since():
    breaker = Breaker(streak=5)
    corrupt = lost(2, "SourceCorrupt")
    assert breaker.sift([lost(1), corrupt]) == [corrupt]
    breaker.check()
    assert breaker.sift([record(3)]) == [lost(1), record(3)]
    assert breaker.sift([lost(4)]) == []
    assert breaker.release() == [lost(4)]
    assert breaker.release() == []


def test_a_row_of_failures_ends_the_run_and_is_not_kept():
    breaker = Breaker(streak=3)
    assert breaker.sift([record(0)]) == [record(0)]
    assert breaker.sift([lost(n) for n in range(1, 4)]) == []
    with pytest.raises(EngineLost, match=r"3 windows in a row.*down 3.*again"):
        breaker.check()


def test_an_engine_that_never_answered_fails_the_run_at_its_end():
    breaker = Breaker(streak=100)
    assert breaker.sift([lost(1, "ConfigError"), record(2, attempts=0)]) == [
        record(2, attempts=0)
    ]  # a copy proves nothing
    with pytest.raises(ConfigError, match="down 1"):
        breaker.release()


def test_nothing_held_nothing_said():
    assert Breaker(3).release() == []
