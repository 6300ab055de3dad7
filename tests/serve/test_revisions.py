"""Revisions on disk, and how the figures of two are compared."""

import msgspec
import pytest

from framefleet.errors import ConfigError, ReplicaError
from framefleet.serve.fleet_client import FleetFigures, WatchLimits, regressions
from framefleet.serve.fleet_settings import FleetSettings, VllmSettings
from framefleet.serve.revisions import Revisions, changes_between, digest_of, settings_of

ONE = FleetSettings(model="a")
TWO = FleetSettings(model="b", env={"X": "1"}, vllm=VllmSettings(media_io_kwargs={"video": {"fps": 2}}))


def put(revisions, settings, outcome="applied"):
    return revisions.write(msgspec.structs.replace(revisions.begin(settings, "a test"), outcome=outcome))


def test_they_are_kept_whole_and_only_for_their_owner(tmp_path):
    revisions = Revisions(tmp_path)
    assert revisions.current() is None
    put(revisions, TWO)
    (kept,) = Revisions(tmp_path).all()
    assert (kept.number, kept.settings, kept.digest) == (1, TWO, digest_of(TWO))
    assert (tmp_path / "1.json").stat().st_mode & 0o777 == 0o600


def test_what_was_rolled_back_or_cut_short_is_not_current(tmp_path):
    revisions = Revisions(tmp_path)
    put(revisions, ONE)
    put(revisions, TWO, "rolled_back")
    revisions.begin(TWO, "killed in the middle")
    (tmp_path / "9.json").write_text('{"number": 9, "torn')
    assert revisions.current().settings == ONE
    assert [one.number for one in revisions.all()] == [1, 2, 3]
    assert revisions.begin(ONE, "next").number == 10  # a torn one's number is not used again


def test_going_back_skips_the_same_settings(tmp_path):
    revisions = Revisions(tmp_path)
    with pytest.raises(ReplicaError, match="no earlier revision"):
        put(revisions, ONE) and revisions.before_current()
    for settings in (TWO, ONE, ONE):
        put(revisions, settings)
    assert revisions.before_current().number == 2
    with pytest.raises(ReplicaError, match="no such revision; got 7; allowed: 1, 2, 3, 4"):
        revisions.numbered(7)


def test_the_digest_is_of_values_not_of_how_they_were_written():
    again = settings_of(msgspec.to_builtins(TWO))
    assert digest_of(again) == digest_of(TWO)
    assert digest_of(FleetSettings()) == digest_of(msgspec.convert({"start_s": 900}, FleetSettings))
    assert digest_of(msgspec.json.decode(msgspec.json.encode(FleetSettings()), type=FleetSettings)) == digest_of(
        FleetSettings()
    )


def test_changes_are_named_by_their_dotted_names():
    assert changes_between(ONE, TWO) == {
        "model": ("a", "b"), "env": ({}, {"X": "1"}), "vllm.media_io_kwargs": ({}, {"video": {"fps": 2}}),
    }  # fmt: skip


def test_settings_that_are_none():
    with pytest.raises(ConfigError, match="not the settings of a fleet"):
        settings_of({"modle": "x"})


def figures(**more):
    usual = {
        "num_requests": 100, "num_failures": 0, "error_rate": 0.0, "answers_per_s": 1.0, "p50_s": 1.0, "p95_s": 2.0,
        "first_byte_p95_s": 1.0, "host_bytes": 10, "gpu_bytes": {"0": 100},
    }  # fmt: skip
    return FleetFigures(**{**usual, **more})


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({}, []),
        ({"p95_s": 2.3}, []),
        ({"p95_s": 2.5}, ["p95 2.00 -> 2.50 s"]),
        ({"p95_s": 9.0, "error_rate": 1.0, "num_requests": 5}, []),
        ({"error_rate": 0.02}, ["errors 0.0% -> 2.0%"]),
        ({"caption_difference": 0.4}, ["captions differ in 40% of words"]),
        ({"gpu_bytes": {"0": 126, "1": 5}}, ["GPU 0 memory 0.0 -> 0.0 GiB"]),
    ],
)
def test_regressions(after, said):
    assert regressions(figures(), figures(**after), WatchLimits()) == said
