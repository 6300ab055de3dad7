"""Quarantine: who is refused, until when, and what a ledger is told."""

import pytest

from framefleet.decode.options import DecodeOptions
from framefleet.decode.quarantine import Quarantine
from framefleet.decode.tasks import Job
from framefleet.errors import DecoderLost, DecodeTimeout
from framefleet.media.source import VideoSource

LOST = DecoderLost("the decode worker died (SIGSEGV)", given="'a.mp4'")
LATE = DecodeTimeout("the clip's deadline passed", given="'a.mp4'")


def job(source="http://host/a.mp4", task="decode", **options):
    return Job(task, VideoSource.of(source), DecodeOptions(**options))


def test_a_clip_is_refused_from_the_second_worker_on():
    quarantine = Quarantine(2)
    quarantine.record(job(), LOST)
    quarantine.check(job())
    assert quarantine.clips == ()
    quarantine.record(job(), LOST)
    with pytest.raises(DecoderLost, match=r"quarantined: it cost 2 workers.*SIGSEGV"):
        quarantine.check(job())
    (offence,) = quarantine.clips
    assert (offence.clip, offence.num_kills, offence.error, offence.deadline_s) == (
        "http://host/a.mp4", 2, "DecoderLost", None,
    )  # fmt: skip
    assert "SIGSEGV" in offence.reason


def test_other_clips_tasks_and_backends_are_not_refused():
    quarantine = Quarantine(1)
    quarantine.record(job(backend="opencv"), LOST)
    quarantine.check(job())
    quarantine.check(job("http://host/b.mp4", backend="opencv"))
    quarantine.check(job(task="scan", backend="opencv"))
    with pytest.raises(DecoderLost):
        quarantine.check(job(backend="opencv", num_frames=3))


def test_a_longer_deadline_gives_a_slow_clip_another_chance():
    quarantine = Quarantine(1)
    quarantine.record(job(timeout_s=5), LATE)
    with pytest.raises(DecodeTimeout, match="longer timeout_s"):
        quarantine.check(job(timeout_s=5))
    quarantine.check(job(timeout_s=6))
    quarantine.record(job(timeout_s=6), LATE)
    quarantine.record(job(timeout_s=1), LATE)
    with pytest.raises(DecodeTimeout):
        quarantine.check(job(timeout_s=6))


@pytest.mark.parametrize("order", [(LOST, LATE), (LATE, LOST)])
def test_a_crash_is_not_forgiven_for_a_longer_deadline(order):
    quarantine = Quarantine(2)
    for error in order:
        quarantine.record(job(timeout_s=5), error)
    with pytest.raises(type(order[1])):
        quarantine.check(job(timeout_s=500))


def test_success_clears_what_was_held_against_a_clip():
    quarantine = Quarantine(2)
    quarantine.record(job(), LOST)
    quarantine.clear(job())
    quarantine.record(job(), LOST)
    quarantine.check(job())


def test_a_file_that_changes_is_another_clip(tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"one")
    quarantine = Quarantine(1)
    quarantine.record(job(path), LOST)
    with pytest.raises(DecoderLost):
        quarantine.check(job(path))
    path.write_bytes(b"another")
    quarantine.check(job(path))


def test_bytes_are_known_by_their_digest():
    quarantine = Quarantine(1)
    quarantine.record(job(b"clip"), LOST)
    with pytest.raises(DecoderLost):
        quarantine.check(job(b"clip"))
    quarantine.check(job(b"clap"))


def test_a_file_that_is_gone_is_known_by_its_path(tmp_path):
    quarantine = Quarantine(1)
    quarantine.record(job(tmp_path / "gone\0.mp4"), LOST)
    with pytest.raises(DecoderLost):
        quarantine.check(job(tmp_path / "gone\0.mp4"))


def test_offences_of_an_earlier_pool_count():
    first = Quarantine(1)
    first.record(job(), LOST)
    with pytest.raises(DecoderLost):
        Quarantine(1, first.clips).check(job())
