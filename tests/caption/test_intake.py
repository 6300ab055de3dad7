import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from caption_fakes import SMALL, InProcessReader, write_clip

from framefleet.caption.copies import LocalCopies
from framefleet.caption.inputs import local_source
from framefleet.caption.intake import ClipIntake, Intake, Question
from framefleet.caption.ledger import Ledger
from framefleet.caption.step import Patience
from framefleet.caption.windowing import WindowRule
from framefleet.engine.captioner import GenerationSettings
from framefleet.errors import SourceUnavailable
from framefleet.media.digest import content_digest
from framefleet.media.source import VideoSource
from framefleet.store.statuses import Statuses
from framefleet.units import NS_PER_S

QUESTION = Question(prompt="p", schema=None, model="m", frames=SMALL, generation=GenerationSettings())
HALF_SECONDS = WindowRule(length_ns=NS_PER_S // 2)


class Made:
    """An intake over an in-process reader, with a store of statuses that a test fills."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger, self.reader, self.statuses = ledger, InProcessReader(), Statuses()
        self.copies = LocalCopies(str(folder))

    def take(self, path: Path, *, rule: WindowRule | None = None, retry_failed: bool = False) -> ClipIntake:
        return asyncio.run(self.intake(rule, retry_failed=retry_failed).take(local_source(path)))

    def intake(self, rule: WindowRule | None = None, *, retry_failed: bool = False) -> Intake:
        return Intake(
            reader=self.reader,
            ledger=self.ledger,
            copies=self.copies,
            statuses=self.statuses,
            question=QUESTION,
            rule=rule,
            engine="fake",
            patience=Patience(attempts=2, first_pause_s=0.001),
            retry_failed=retry_failed,
        )

    def settle(self, taken: ClipIntake, status: str = "ok") -> None:
        for work in taken.work:
            self.statuses.put(work.request.digest, status)
        if taken.failed is not None:
            self.statuses.put(taken.failed.digest, taken.failed.status)


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with Ledger(":memory:") as ledger:
        yield Made(ledger, tmp_path_factory.mktemp("copies"))


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "a.mp4", num_frames=60, fps=30.0)


def test_a_clip_is_one_window_and_needs_no_scan(made: Made, clip: Path):
    taken = made.take(clip)
    (work,) = taken.work
    assert (work.request.span, work.request.clip, work.scanned) == (None, str(clip), None)
    assert work.request.content_digest == content_digest(local_source(clip))
    assert made.reader.scanned == []


def test_a_rule_cuts_the_clip_and_the_scan_goes_along(made: Made, clip: Path):
    taken = made.take(clip, rule=HALF_SECONDS)
    assert [(w.request.span.start_ns, w.request.span.end_ns) for w in taken.work] == [
        (n * NS_PER_S // 2, (n + 1) * NS_PER_S // 2) for n in range(4)
    ]
    assert len(made.reader.scanned) == 1
    assert all(w.scanned is taken.work[0].scanned for w in taken.work)


def test_what_is_known_is_not_read_again(made: Made, clip: Path):
    made.settle(made.take(clip, rule=HALF_SECONDS))
    again = made.take(clip, rule=HALF_SECONDS)
    assert (again.work, again.skipped) == ([], {"ok": 4})
    assert (len(made.reader.digested), len(made.reader.scanned)) == (1, 1)


def test_windows_that_are_left_are_scanned_for_once(made: Made, clip: Path):
    first = made.take(clip, rule=HALF_SECONDS)
    made.statuses.put(first.work[0].request.digest, "ok")
    again = made.take(clip, rule=HALF_SECONDS)
    assert [w.request for w in again.work] == [w.request for w in first.work[1:]]
    assert all(w.scanned is not None for w in again.work)
    assert len(made.reader.scanned) == 2


@pytest.mark.parametrize(
    ("status", "retry_failed", "is_work"),
    [
        ("ok", True, False),
        ("truncated", True, False),
        ("rejected", True, False),
        ("failed", False, False),
        ("failed", True, True),
    ],
)
def test_only_failed_ones_are_done_again_and_only_when_asked(
    made: Made, clip: Path, status: str, retry_failed: bool, is_work: bool
):
    made.settle(made.take(clip), status)
    again = made.take(clip, retry_failed=retry_failed)
    assert (len(again.work), again.skipped) == ((1, {}) if is_work else (0, {status: 1}))


def test_a_changed_file_is_new(made: Made, clip: Path):
    before = made.take(clip)
    made.settle(before)
    write_clip(clip, num_frames=61)
    after = made.take(clip)
    assert len(after.work) == 1
    assert after.work[0].request.digest != before.work[0].request.digest


def test_a_change_that_keeps_size_and_time_is_seen_while_the_file_is_fresh(made: Made, tmp_path: Path):
    clip = write_clip(tmp_path / "fresh.mp4", seed=1, settled=False)
    stat = clip.stat()
    made.settle(made.take(clip))
    write_clip(clip, seed=2, settled=False)
    os.utime(clip, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    assert clip.stat().st_size == stat.st_size
    assert len(made.take(clip).work) == 1


@pytest.mark.parametrize("rule", [None, HALF_SECONDS])
def test_a_missing_clip_is_one_failed_record(made: Made, tmp_path: Path, rule: WindowRule | None):
    taken = made.take(tmp_path / "gone.mp4", rule=rule)
    assert taken.work == []
    record = taken.failed
    assert (record.status, record.reason, record.content_digest) == ("failed", "SourceNotFound", "")
    assert (record.start_s, record.end_s) == (0.0, 0.0)
    made.settle(taken)
    again = made.take(tmp_path / "gone.mp4", rule=rule)
    assert (again.failed, again.skipped) == (None, {"failed": 1})
    assert made.take(tmp_path / "gone.mp4", rule=rule, retry_failed=True).failed.digest == record.digest


def test_a_clip_that_cannot_be_cut_is_one_failed_record_and_not_scanned_again(made: Made, tmp_path: Path):
    clip = write_clip(tmp_path / "bad.mp4", scan_error="SourceCorrupt")
    taken = made.take(clip, rule=HALF_SECONDS)
    assert (taken.failed.reason, taken.failed.content_digest) == ("SourceCorrupt", content_digest(local_source(clip)))
    made.settle(taken)
    assert made.take(clip, rule=HALF_SECONDS).skipped == {"failed": 1}
    assert len(made.reader.scanned) == 1
    assert made.take(clip, rule=HALF_SECONDS, retry_failed=True).failed is not None
    assert len(made.reader.scanned) == 2
    assert len(made.take(clip).work) == 1  # without windows it is another matter


def test_too_many_windows_is_a_failure_that_says_so(made: Made, clip: Path):
    taken = made.take(clip, rule=WindowRule(length_ns=NS_PER_S // 30, max_windows=59))
    assert (taken.failed.reason, "max_windows" in taken.failed.message) == ("SourceTooLarge", True)


def test_a_failure_as_a_whole_never_hides_behind_the_caption_of_the_whole_clip(made: Made, clip: Path):
    made.settle(made.take(clip))  # captioned without windows
    made.reader.scan = None  # cutting it breaks
    taken = made.take(clip, rule=HALF_SECONDS)
    assert taken.failed is not None
    assert taken.failed.digest not in made.statuses


def test_what_may_pass_is_tried_again(made: Made, clip: Path):
    digest, calls = made.reader.digest, []

    async def flaky(source):
        calls.append(source)
        if len(calls) == 1:
            raise SourceUnavailable("the network is down")
        return await digest(source)

    made.reader.digest = flaky
    assert len(made.take(clip).work) == 1
    assert len(calls) == 2


def test_a_file_that_changes_while_it_is_hashed_is_failed_and_new_next_time(made: Made, clip: Path):
    digest = made.reader.digest

    async def slow(source):
        found = await digest(source)
        write_clip(clip, num_frames=60 + len(made.reader.digested))
        return found

    made.reader.digest = slow
    taken = made.take(clip)
    assert taken.failed.reason == "SourceUnavailable"
    made.settle(taken)
    made.reader.digest = digest
    assert len(made.take(clip).work) == 1


def test_a_fault_of_our_own_is_one_failed_record(made: Made, clip: Path, caplog: pytest.LogCaptureFixture):
    made.reader.digest = lambda source: 1 / 0
    assert made.take(clip).failed.reason == "ZeroDivisionError"
    assert "a fault of framefleet's own" in caplog.text


def test_a_glance_reads_nothing(made: Made, clip: Path, tmp_path: Path):
    intake = made.intake(HALF_SECONDS)
    assert intake.glance(local_source(clip)) is None
    made.settle(made.take(clip, rule=HALF_SECONDS))
    made.reader = InProcessReader()
    assert made.intake(HALF_SECONDS).glance(local_source(clip)).skipped == {"ok": 4}
    assert len(made.intake().glance(local_source(clip)).work) == 1
    assert intake.glance(local_source(tmp_path / "gone.mp4")) is None
    assert made.reader.digested == []


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "other"},
        {"model": "other"},
        {"schema": {"type": "object"}},
        {"frames": SMALL.__class__(num_frames=3)},
        {"generation": GenerationSettings(max_tokens=9)},
    ],
)
def test_other_settings_do_everything_again(made: Made, clip: Path, changes: dict[str, object]):
    import msgspec

    made.settle(made.take(clip))
    intake = made.intake()
    intake.question = msgspec.structs.replace(QUESTION, **changes)
    assert len(asyncio.run(intake.take(local_source(clip))).work) == 1


def test_how_frames_are_decoded_is_no_other_setting(made: Made, clip: Path):
    import msgspec

    made.settle(made.take(clip))
    intake = made.intake()
    frames = msgspec.structs.replace(SMALL, backend="auto", timeout_s=5.0, num_ffmpeg_threads=4)
    intake.question = msgspec.structs.replace(QUESTION, frames=frames)
    assert asyncio.run(intake.take(local_source(clip))).work == []


def test_a_remote_clip_is_fetched_once_for_all_its_windows(made: Made, clip: Path):
    memory, url = fsspec.filesystem("memory"), "memory://bucket/a.mp4"
    memory.pipe("/bucket/a.mp4", clip.read_bytes())
    source = VideoSource.of(url)
    try:
        taken = asyncio.run(made.intake(HALF_SECONDS).take(source))
        assert [w.request.clip for w in taken.work] == [url] * 4
        (copy,) = {w.source for w in taken.work}
        assert (copy.kind, copy.name) == ("file", url)
        assert Path(copy.location).read_bytes() == clip.read_bytes()
        made.intake().done(url)
        assert list(made.copies.folder.iterdir()) == []

        made.settle(taken)
        made.reader = InProcessReader()
        again = asyncio.run(made.intake(HALF_SECONDS).take(source))
        assert (again.work, again.skipped, made.reader.scanned) == ([], {"ok": 4}, [])

        memory.pipe("/bucket/a.mp4", clip.read_bytes() + b" ")  # another version
        assert len(asyncio.run(made.intake(HALF_SECONDS).take(source)).work) == 4
    finally:
        memory.rm("/bucket", recursive=True)
    missing = asyncio.run(made.intake(HALF_SECONDS).take(source))
    assert (missing.failed.reason, missing.failed.clip) == ("SourceNotFound", url)
    assert list(made.copies.folder.iterdir()) == []
