import asyncio
import gc
import pickle
import weakref
from pathlib import Path

import msgspec
import pytest
from caption_fakes import InProcessReader, fake_engine, request_for, write_clip

from framefleet.caption.inputs import local_source
from framefleet.caption.ledger import stamp_of
from framefleet.caption.step import Patience, Work, copied, error_class_of, patiently, step, storable
from framefleet.engine.captioner import CaptionRecord
from framefleet.errors import ConfigError, DecoderLost, EngineBusy, EngineLost, SeekFailed, SourceUnavailable
from framefleet.media.digest import content_digest
from framefleet.telemetry import Occupancy
from framefleet.units import NS_PER_S, Span

QUICK = Patience(attempts=3, first_pause_s=0.001)


def work_on(path: Path, **changes: object) -> Work:
    source = local_source(path)
    request = request_for(clip=str(path), content=content_digest(source), **changes)
    return Work(request=request, source=source, stamp=stamp_of(path))


def done(work: Work, reader: InProcessReader | None = None, engine=None, patience: Patience = QUICK) -> CaptionRecord:
    return asyncio.run(
        step(work, reader=reader or InProcessReader(), engine=engine or fake_engine(), patience=patience)
    )


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "a.mp4", num_frames=60, fps=30.0)


def test_a_window_becomes_a_record_of_its_own_frames(clip: Path):
    work = work_on(clip, span=Span(NS_PER_S, 2 * NS_PER_S))
    record = done(work)
    assert (record.digest, record.clip, record.status, record.attempts) == (work.request.digest, str(clip), "ok", 1)
    assert record.text == "Frames 30 59."
    assert (record.start_s, record.end_s, record.num_frames, record.backend) == (1.0, 2.0, 2, "fake")
    assert {"read", "wait_engine", "caption", "total", "decode", "generate"} <= record.seconds.keys()
    assert record.seconds["total"] >= record.seconds["read"]


def test_a_whole_clip_tells_its_own_span(clip: Path):
    record = done(work_on(clip))
    assert (record.start_s, record.end_s) == (0.0, pytest.approx(2.0))


def test_what_cannot_be_read_becomes_a_failed_record(tmp_path: Path):
    record = done(work_on(write_clip(tmp_path / "a.mp4", scan_error="SourceCorrupt"), span=Span(0, NS_PER_S)))
    assert (record.status, record.reason, record.text) == ("failed", "SourceCorrupt", "")
    assert str(tmp_path / "a.mp4") in record.message
    assert (record.start_s, record.end_s) == (0.0, 1.0)


def test_retry_never_and_elsewhere_are_not_tried_again(clip: Path):
    reader = InProcessReader()

    def lost(_source: object) -> None:
        raise DecoderLost("the decoder died")

    reader.before_decode = lost
    record = done(work_on(clip), reader)
    assert (record.reason, record.attempts, len(reader.decoded)) == ("DecoderLost", 1, 1)


def test_retry_later_is_tried_again_with_the_same_frames(clip: Path):
    reader, engine = InProcessReader(), fake_engine(faults=("busy", "lost", ""))
    record = done(work_on(clip), reader, engine)
    assert (record.status, record.attempts) == ("ok", 3)
    assert (len(reader.decoded), engine.num_asked) == (1, 3)


def test_patience_ends(clip: Path):
    engine = fake_engine(faults=("lost",))
    record = done(work_on(clip), engine=engine)
    assert (record.status, record.reason, record.attempts, engine.num_asked) == ("failed", "EngineLost", 3, 3)


def test_a_refused_request_is_rejected_and_not_retried(clip: Path):
    engine = fake_engine(faults=("rejected",))
    record = done(work_on(clip), engine=engine)
    assert (record.status, record.reason, engine.num_asked) == ("rejected", "CaptionRejected", 1)


@pytest.mark.parametrize(("fault", "status"), [("cut", "truncated"), ("empty", "rejected"), ("looping", "rejected")])
def test_spoilt_answers_keep_their_status(clip: Path, fault: str, status: str):
    assert done(work_on(clip), engine=fake_engine(faults=(fault,))).status == status


def test_a_fault_of_our_own_is_recorded_and_logged(clip: Path, caplog: pytest.LogCaptureFixture):
    reader = InProcessReader()

    def broken(_source: object) -> None:
        raise ZeroDivisionError("one\nover \ud800 nothing\0")

    reader.before_decode = broken
    record = done(work_on(clip), reader)
    assert (record.status, record.reason) == ("failed", "ZeroDivisionError")
    assert "please report" in record.message
    assert record.message.encode()
    assert "\n" not in record.message
    assert "ZeroDivisionError" in caplog.text


def test_a_file_that_changes_while_it_is_read_is_not_captioned(clip: Path):
    work = work_on(clip)
    reader = InProcessReader()
    reader.before_decode = lambda _source: write_clip(clip, num_frames=61)
    record = done(work, reader)
    assert (record.status, record.reason) == ("failed", "SourceUnavailable")
    assert "changed" in record.message
    gone = InProcessReader()
    gone.after_decode = lambda source: Path(source.location).unlink()
    assert "changed" in done(work_on(clip), gone, patience=Patience(attempts=1)).message


def test_an_engine_that_reads_clips_itself_gets_no_frames_but_for_windows(clip: Path):
    reader = InProcessReader()
    whole = done(work_on(clip), reader, fake_engine(needs_frames=False))
    assert (whole.text, reader.decoded) == (f"A clip called {clip}.", [])
    window = done(work_on(clip, span=Span(0, NS_PER_S)), reader, fake_engine(needs_frames=False))
    assert window.num_frames == 2
    assert len(reader.decoded) == 1


def test_a_scan_that_is_there_is_used(clip: Path):
    reader = InProcessReader()
    work = work_on(clip, span=Span(0, NS_PER_S))
    scanned = asyncio.run(reader.scan(work.source, work.request.frames))
    clip.unlink()
    again = msgspec.structs.replace(work, scanned=scanned, stamp="")
    assert done(again, reader).reason == "SourceNotFound"  # the fake reads its description anew; its index it had
    assert reader.scanned == [str(clip)]


def test_the_engine_is_entered_through_its_slot(clip: Path):
    async def main() -> None:
        places, occupancy = asyncio.Semaphore(1), Occupancy()
        async with places:
            running = asyncio.create_task(
                step(
                    work_on(clip),
                    reader=InProcessReader(),
                    engine=fake_engine(),
                    engine_slot=lambda: places,
                    occupancy=occupancy,
                )
            )
            while not occupancy.now.get("ready"):
                await asyncio.sleep(0)
            assert occupancy.now == {"decode": 0, "ready": 1}
        assert (await running).status == "ok"
        assert occupancy.now == {"decode": 0, "ready": 0, "caption": 0}

    asyncio.run(main())


@pytest.mark.parametrize("faults", [("",), ("lost",)])
def test_frames_are_let_go_when_the_record_is_made(clip: Path, faults: tuple[str, ...]):
    seen = []

    class Watching(InProcessReader):
        async def decode(self, source, options):
            frames = await super().decode(source, options)
            seen.append(weakref.ref(frames.data))
            return frames

    async def main() -> None:
        gc.disable()  # by counting alone: their bytes are waited for
        try:
            record = await step(work_on(clip), reader=Watching(), engine=fake_engine(faults=faults), patience=QUICK)
            assert record.clip == str(clip)
            assert [ref() for ref in seen] == [None]
        finally:
            gc.enable()

    asyncio.run(main())


def test_cancelling_is_not_swallowed(clip: Path):
    async def main() -> None:
        engine = fake_engine(delay_s=60.0)
        running = asyncio.create_task(step(work_on(clip), reader=InProcessReader(), engine=engine))
        while not engine.num_asked:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert engine.num_cancelled == 1

    asyncio.run(main())


def test_patience_pauses_grow_and_are_bounded():
    patience = Patience(first_pause_s=1.0, max_pause_s=5.0)
    for tries, low in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (9, 5.0)]:
        assert low <= patience.pause_s(tries) <= 1.5 * low


def test_patiently_raises_what_is_not_for_later_at_once():
    calls = []

    async def act() -> None:
        calls.append(1)
        raise SeekFailed("no")

    with pytest.raises(SeekFailed):
        asyncio.run(patiently(act, QUICK))
    assert len(calls) == 1


def test_records_name_their_error_class():
    named = request_record("EngineLost")
    assert error_class_of(named) is EngineLost
    assert error_class_of(request_record("ConfigError")).blame == "config"
    assert error_class_of(request_record("KeyError")).blame == "bug"
    assert error_class_of(request_record("Any")).blame == "bug"  # a name of the module that is no error
    assert issubclass(SourceUnavailable, Exception)
    assert ConfigError.blame == "config"
    assert EngineBusy.retry == "later"


def request_record(reason: str) -> CaptionRecord:
    request = request_for()
    return CaptionRecord(
        digest=request.digest,
        clip="c",
        content_digest="",
        start_s=0,
        end_s=0,
        prompt="",
        status="failed",
        reason=reason,
    )


def test_a_copy_is_of_the_words_not_of_the_work():
    record = msgspec.structs.replace(request_record(""), status="ok", text="words", seconds={"total": 3.0}, attempts=2)
    twin = request_for(clip="/elsewhere/b.mp4")
    copy = copied(record, twin)
    assert (copy.digest, copy.clip, copy.text, copy.attempts, copy.seconds) == (twin.digest, twin.clip, "words", 0, {})


def test_an_engine_cannot_file_its_record_under_another_window(clip: Path):
    engine, work = fake_engine(), work_on(clip)
    caption = engine.caption

    async def careless(request, frames):
        return msgspec.structs.replace(await caption(request, frames), digest="00" * 16, clip="elsewhere")

    engine.caption = careless
    record = done(work, engine=engine)
    assert (record.digest, record.clip) == (work.request.digest, str(clip))


def test_work_travels(clip: Path):
    work = work_on(clip, span=Span(0, 5))
    assert pickle.loads(pickle.dumps(work)) == work


def test_messages_are_one_line_of_bounded_length():
    assert storable("a\n  b\tc\0d") == "a b c\\0d"
    assert len(storable("x" * 10_000)) == 2000
