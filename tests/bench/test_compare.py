"""Recorded arms beside each other: answers first, then speed."""

import pytest
from bench_experiments import EXPERIMENT, trial

from framefleet.bench.compare import compare, metric_named, recorded, sentence
from framefleet.bench.trial_log import TrialLog
from framefleet.errors import ConfigError


def log_of(folder, rates, *, captions=None):
    """Three blocks of both arms."""
    with TrialLog(folder, EXPERIMENT) as log:
        for block in range(3):
            for position, arm in enumerate(("cpu", "nvdec", "nvdec", "cpu")):
                words = (captions or {}).get(arm, "x")
                log.append(trial(arm, block, position, rate=rates[arm] + 0.01 * block, caption=words))
        return str(log.path)


def held(first, second, **options):
    return compare(recorded(first), recorded(second), metric="requests_per_s", smallest_effect=0.05, **options)


def test_two_arms_of_a_recording(tmp_path):
    log = log_of(tmp_path, {"cpu": 10, "nvdec": 12})
    found = held(log, f"{log}:nvdec")
    assert found.comparison.claim == "better"
    assert found.comparison.gain.estimate == pytest.approx(0.2, rel=0.02)
    assert sentence(found).startswith(f"{found.second} is better than {found.first}: +20")


def test_two_recordings(tmp_path):
    first, second = (log_of(tmp_path / name, {"cpu": rate, "nvdec": 1}) for name, rate in (("a", 10), ("b", 8)))
    assert held(first, second).comparison.claim == "worse"


def test_other_answers_are_not_compared_unless_asked(tmp_path):
    log = log_of(tmp_path, {"cpu": 10, "nvdec": 12}, captions={"nvdec": "y"})
    found = held(log, f"{log}:nvdec")
    assert found.comparison is None
    assert sentence(found) == "Not compared: of 2 clips 2 have other captions."
    assert held(log, f"{log}:nvdec", may_differ=True).comparison.claim == "better"


def test_names_that_are_none(tmp_path):
    log = log_of(tmp_path, {"cpu": 10, "nvdec": 12})
    with pytest.raises(ConfigError, match="no trials of this arm"):
        recorded(f"{log}:gpu")
    with pytest.raises(ConfigError, match="did you mean 'requests_per_s'"):
        metric_named("request_per_s")
