"""Trials survive a kill at any byte, and a file never mixes two experiments."""

import os

import pytest
from bench_experiments import EXPERIMENT, changed, trial

from framefleet.bench.trial_log import TrialLog, log_path, read_log
from framefleet.errors import StoreFull, StoreLocked, StoreUnreadable

TRIALS = [trial("cpu"), trial("nvdec", position=1), trial("nvdec", position=2)]


@pytest.fixture
def written(tmp_path):
    with TrialLog(tmp_path, EXPERIMENT) as log:
        for one in TRIALS:
            log.append(one)
    return log.path


def test_each_trial_is_on_disk_as_soon_as_it_is_appended(tmp_path):
    with TrialLog(tmp_path, EXPERIMENT) as log:
        for count, one in enumerate(TRIALS, start=1):
            log.append(one)
            assert read_log(log.path) == (EXPERIMENT, TRIALS[:count])


def test_name_has_the_question_and_the_digest(tmp_path):
    assert log_path(tmp_path, EXPERIMENT).name == f"does-nvdec-pay-on-these-clips-{EXPERIMENT.digest}.jsonl"
    assert log_path(tmp_path, changed(question="?")).name == f"{changed(question='?').digest}.jsonl"


def test_killed_at_any_byte_it_goes_on_with_the_whole_lines(tmp_path, written):
    content = written.read_bytes()
    for size in range(0, len(content) + 1, 7):
        written.write_bytes(content[:size])
        with TrialLog(tmp_path, EXPERIMENT) as log:
            kept = max(content[:size].count(b"\n") - 1, 0)
            assert list(log.trials) == TRIALS[:kept]
            log.append(TRIALS[2])
        assert read_log(written) == (EXPERIMENT, [*TRIALS[:kept], TRIALS[2]])


def test_another_setting_is_another_file(tmp_path, written):
    with TrialLog(tmp_path, changed(smallest_effect=0.1)) as log:
        assert log.trials == ()
        assert log.path != written


def test_a_file_with_another_experiment_is_refused_and_let_be(tmp_path, written):
    other = changed(smallest_effect=0.1)
    content = written.read_bytes()
    written.rename(log_path(tmp_path, other))
    with pytest.raises(StoreUnreadable, match="another experiment"):
        TrialLog(tmp_path, other)
    assert log_path(tmp_path, other).read_bytes() == content


def test_a_damaged_line_is_named(tmp_path, written):
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join([*lines[:2], b"{}\n", *lines[2:]]))
    with pytest.raises(StoreUnreadable, match="line 3"):
        TrialLog(tmp_path, EXPERIMENT)


def test_one_writer_at_a_time(tmp_path, written):
    with TrialLog(tmp_path, EXPERIMENT), pytest.raises(StoreLocked):
        TrialLog(tmp_path, EXPERIMENT)
    TrialLog(tmp_path, EXPERIMENT).close()


def test_a_full_disk_leaves_the_trials_before(tmp_path, written, monkeypatch):
    def half_then_full(descriptor, content, offset, write=os.pwrite):
        write(descriptor, content[:20], offset)
        raise OSError(28, "No space left on device")

    with TrialLog(tmp_path, EXPERIMENT) as log:
        monkeypatch.setattr(os, "pwrite", half_then_full)
        with pytest.raises(StoreFull):
            log.append(TRIALS[0])
        assert list(log.trials) == TRIALS
    assert read_log(written) == (EXPERIMENT, TRIALS)


def test_no_file_and_an_empty_one_are_told_apart(tmp_path):
    with pytest.raises(StoreUnreadable, match="no trials here"):
        read_log(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(StoreUnreadable, match="no experiment"):
        read_log(tmp_path / "empty.jsonl")
