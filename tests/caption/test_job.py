"""The whole job over fake clips and the fake engine, in one process."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from caption_fakes import SMALL, InProcessReader, fake_engine, job_for, write_clip, write_clips

from framefleet.caption.job import CaptionJob, caption_job, engine_for, pool_for
from framefleet.caption.ledger import ledger_path
from framefleet.caption.progress import Progress, Summary
from framefleet.caption.settings import CaptionSettings
from framefleet.engine.captioner import CaptionRecord
from framefleet.engine.fake import FakeEngine
from framefleet.errors import ConfigError, EngineLost, SourceNotFound, StoreFull, StoreLocked
from framefleet.store.sink import open_store

Change = Callable[[FakeEngine, InProcessReader], None]


class Ran(msgspec.Struct):
    """A run and what it did."""

    summary: Summary
    engine: FakeEngine
    reader: InProcessReader
    looks: list[Progress]
    commits: list[list[CaptionRecord]]


def run(job: CaptionJob, *, change: Change = lambda *_: None, on_commit=None, signals: bool = False, **fake) -> Ran:
    engine, reader = fake_engine(**fake), InProcessReader()
    looks: list[Progress] = []
    commits: list[list[CaptionRecord]] = []
    change(engine, reader)

    def committed(records: list[CaptionRecord]) -> None:
        commits.append(records)
        if on_commit:
            on_commit(records)

    summary = asyncio.run(
        caption_job(
            job,
            engine=engine,
            reader=reader,
            on_progress=looks.append,
            on_commit=committed,
            catch_signals=signals,
        )
    )
    return Ran(summary, engine, reader, looks, commits)


def stored(path: Path) -> list[CaptionRecord]:
    with open_store(path) as store:
        return list(store.records())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "captions.jsonl"


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    write_clips(tmp_path / "clips", 10)
    return tmp_path / "clips"


def test_every_clip_gets_one_record_and_a_second_run_does_nothing(clips: Path, out: Path):
    ran = run(job_for(clips, out))
    assert (ran.summary.clips, ran.summary.windows, ran.summary.ok, ran.summary.exit_code) == (10, 10, 10, 0)
    records = stored(out)
    assert Counter(r.clip for r in records) == Counter(map(str, clips.iterdir()))
    assert {r.text for r in records} == {"Frames 0 59."}
    assert [r for group in ran.commits for r in group] == records  # in order of arrival
    again = run(job_for(clips, out), change=refuses_to_start)
    assert (again.summary.windows, again.summary.skipped, again.engine.num_asked) == (0, 10, 0)
    assert (again.reader.digested, again.reader.decoded) == ([], [])
    assert stored(out) == records


def refuses_to_start(engine: FakeEngine, _reader: InProcessReader) -> None:
    async def start() -> None:
        raise AssertionError("a run with nothing to do starts no engine")

    engine.start = start


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "Something else?"},
        {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        {"frames": msgspec.structs.replace(SMALL, num_frames=3)},
        {"generation": {"max_tokens": 9}},
        {"window": "1s"},
    ],
)
def test_other_settings_do_everything_again_beside_what_is_there(clips: Path, out: Path, changes: dict[str, object]):
    run(job_for(clips, out))
    if "generation" in changes:
        changes = {"generation": msgspec.convert(changes["generation"], CaptionSettings().generation.__class__)}
    again = run(job_for(clips, out, **changes))
    assert (again.summary.skipped, again.summary.failed) == (0, 0)
    assert again.summary.windows == (20 if "window" in changes else 10)
    assert len(stored(out)) == 10 + again.summary.windows
    assert run(job_for(clips, out)).summary.skipped == 10


def test_another_model_does_everything_again(clips: Path, out: Path):
    run(job_for(clips, out))
    assert run(job_for(clips, out), model="fake-2").summary.windows == 10


def test_other_weights_under_the_same_name_do_everything_again(clips: Path, out: Path):
    def trained(revision: str) -> Change:
        return lambda engine, _reader: setattr(engine, "revision", revision)

    run(job_for(clips, out), change=trained("a"))
    assert run(job_for(clips, out), change=trained("a")).summary.skipped == 10
    assert run(job_for(clips, out), change=trained("b")).summary.windows == 10
    assert Counter(r.versions["model"] for r in stored(out)) == {"a": 10, "b": 10}


def test_new_changed_and_moved_clips(clips: Path, out: Path):
    run(job_for(clips, out))
    write_clip(clips / "clip_000.mp4", seed=1000)
    write_clip(clips / "new.mp4", seed=1001)
    (clips / "clip_001.mp4").rename(clips / "moved.mp4")
    again = run(job_for(clips, out))
    assert (again.summary.skipped, again.summary.windows, again.summary.copied) == (8, 3, 1)
    assert again.engine.num_asked == 2  # the moved one has its answer already
    assert {r.clip.rsplit("/", 1)[1]: r.attempts for group in again.commits for r in group} == {
        "clip_000.mp4": 1,
        "new.mp4": 1,
        "moved.mp4": 0,
    }


def test_equal_content_is_asked_about_once_and_recorded_everywhere(tmp_path: Path, out: Path):
    for name in ("a/clip.mp4", "b/clip.mp4", "b/other.mp4"):
        write_clip(tmp_path / "clips" / name, seed=1)
    write_clip(tmp_path / "clips/c/clip.mp4", seed=2)
    ran = run(job_for(tmp_path / "clips", out))
    assert (ran.summary.ok, ran.summary.copied, ran.engine.num_asked) == (4, 2, 2)
    assert len({r.digest for r in stored(out)}) == 4
    assert run(job_for(tmp_path / "clips", out)).summary.skipped == 4


def test_bad_clips_are_recorded_and_the_run_goes_on(clips: Path, out: Path):
    write_clip(clips / "bad_a.mp4", scan_error="SourceCorrupt")
    write_clip(clips / "bad_b.mp4", fault="error")
    write_clip(clips / "bad_c.mp4", scan_error="SourceUnsupported")
    (clips / "gone.mp4").symlink_to(clips / "nowhere")
    ran = run(job_for(clips, out))
    assert (ran.summary.ok, ran.summary.failed, ran.summary.exit_code) == (10, 4, 3)
    assert ran.summary.failed_by_reason == {
        "SourceCorrupt": 1,
        "DecodeError": 1,
        "SourceUnsupported": 1,
        "SourceNotFound": 1,
    }
    assert Counter(r.clip for r in stored(out)) == Counter(map(str, clips.iterdir()))
    again = run(job_for(clips, out))
    assert (again.summary.windows, again.summary.skipped_failed, again.summary.exit_code) == (0, 4, 3)


def test_failed_ones_are_tried_again_when_asked_and_replaced(clips: Path, out: Path, tmp_path: Path):
    write_clip(clips / "flaky.mp4", fault="error", once=str(tmp_path / "struck"))
    assert run(job_for(clips, out)).summary.failed == 1
    again = run(job_for(clips, out, retry_failed=True))
    assert (again.summary.windows, again.summary.ok, again.summary.skipped, again.summary.exit_code) == (1, 1, 10, 0)
    assert Counter(r.clip for r in stored(out)) == Counter(map(str, clips.iterdir()))
    assert run(job_for(clips, out)).summary.exit_code == 0


def test_answers_that_are_worth_nothing_are_rejected_and_final(clips: Path, out: Path):
    ran = run(job_for(clips, out), faults=("empty", "looping", "cut", "rejected", ""))
    assert (ran.summary.rejected, ran.summary.truncated, ran.summary.ok, ran.summary.exit_code) == (6, 2, 2, 3)
    assert run(job_for(clips, out, retry_failed=True)).summary.skipped == 10


def test_windows_and_clips_are_told_apart_in_progress(clips: Path, out: Path):
    ran = run(job_for(clips, out, window="500ms"))
    assert (ran.summary.clips, ran.summary.windows) == (10, 40)
    last = ran.looks[-1]
    assert (last.clips_total, last.clips_done, last.windows_done, last.in_flight) == (10, 10, 40, 0)
    spans = sorted((r.start_s, r.end_s) for r in stored(out) if r.clip.endswith("clip_003.mp4"))
    assert spans == [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5), (1.5, 2.0)]
    assert [r.text for r in sorted(stored(out), key=lambda r: r.start_s) if r.clip.endswith("clip_003.mp4")] == [
        "Frames 0 14.",
        "Frames 15 29.",
        "Frames 30 44.",
        "Frames 45 59.",
    ]


def test_the_engine_is_never_asked_too_much_at_once(clips: Path, out: Path):
    ran = run(job_for(clips, out, concurrency=3, window="100ms"), delay_s=0.001)
    assert ran.summary.ok == 200
    assert ran.engine.most_at_once == 3


def test_decoding_runs_ahead_of_a_slow_engine_but_only_so_far(clips: Path, out: Path):
    ahead = []

    def watch(engine: FakeEngine, reader: InProcessReader) -> None:
        reader.after_decode = lambda _source: ahead.append(len(reader.decoded) - engine.num_asked)

    ran = run(job_for(clips, out, concurrency=2, decode_workers=2, window="100ms"), change=watch, delay_s=0.002)
    assert ran.summary.ok == 200
    assert 2 <= max(ahead) <= 2 + 2 * 2  # engine places, decode workers, as many again


def test_a_slow_store_holds_the_engine_back(clips: Path, out: Path, monkeypatch: pytest.MonkeyPatch):
    unkept = []
    kept = [0]
    engines = []

    def slow(real):
        def append(*records: CaptionRecord) -> int:
            time.sleep(0.01)
            unkept.append(engines[0].num_asked - kept[0])
            kept[0] += len(records)
            return real(*records)

        return append

    monkeypatch.setattr("framefleet.caption.local._RECORDS_AT_ONCE", 2)
    with monkeypatch.context() as patched:
        patched.setattr("framefleet.caption.job.open_store", wrapped_store(slow))
        ran = run(
            job_for(clips, out, concurrency=2, window="100ms"), change=lambda engine, _reader: engines.append(engine)
        )
    assert ran.summary.ok == 200
    assert max(unkept) < 100
    assert "store" in {look.bottleneck for look in ran.looks}


def wrapped_store(wrap):
    def opened(path: str, mode: str):
        store = open_store(path, mode)
        store.append = wrap(store.append)
        return store

    return opened


def test_a_store_that_fails_ends_the_run_with_its_error_and_loses_nothing(clips: Path, out: Path, monkeypatch):
    def full_after_4(real):
        def append(*records: CaptionRecord) -> int:
            if len(stored(out)) + len(records) > 4:
                raise StoreFull("no room")
            return real(*records)

        return append

    monkeypatch.setattr("framefleet.caption.local._RECORDS_AT_ONCE", 2)
    acknowledged: list[CaptionRecord] = []
    with monkeypatch.context() as patched:
        patched.setattr("framefleet.caption.job.open_store", wrapped_store(full_after_4))
        with pytest.raises(StoreFull):
            run(job_for(clips, out), on_commit=acknowledged.extend)
    assert stored(out) == acknowledged
    assert 1 <= len(acknowledged) <= 4
    again = run(job_for(clips, out))
    assert (again.summary.skipped, again.summary.ok) == (len(acknowledged), 10 - len(acknowledged))


def test_an_engine_that_is_down_ends_the_run_and_marks_no_clip(clips: Path, out: Path):
    with pytest.raises(EngineLost, match="none of them recorded"):
        run(job_for(clips, out), faults=("lost",))
    assert stored(out) == []
    assert run(job_for(clips, out)).summary.ok == 10


def test_an_engine_that_goes_down_keeps_what_it_said(tmp_path: Path, out: Path):
    write_clips(tmp_path / "clips", 100)
    with pytest.raises(EngineLost, match=r"\d+ windows in a row"):
        run(job_for(tmp_path / "clips", out), faults=("",) * 20 + ("lost",) * 1000)
    kept = stored(out)
    assert (len(kept), {r.status for r in kept}) == (20, {"ok"})
    assert run(job_for(tmp_path / "clips", out)).summary.ok == 80


def test_an_engine_that_stumbles_leaves_failed_records(clips: Path, out: Path):
    ran = run(job_for(clips, out), faults=("", "lost"))
    assert (ran.summary.ok, ran.summary.failed, ran.summary.failed_by_reason) == (5, 5, {"EngineLost": 5})
    assert run(job_for(clips, out, retry_failed=True)).summary.ok == 5


def test_an_engine_that_does_not_start_is_an_error_of_the_run(clips: Path, out: Path):
    def fails(engine: FakeEngine, _reader: InProcessReader) -> None:
        async def start() -> None:
            raise ConfigError("no such model", given="x")

        engine.start = start

    with pytest.raises(ConfigError, match="no such model"):
        run(job_for(clips, out), change=fails)
    assert stored(out) == []


def test_clips_are_decoded_while_the_engine_starts(clips: Path, out: Path):
    def slow(engine: FakeEngine, reader: InProcessReader) -> None:
        async def start() -> None:
            while len(reader.decoded) < 4:
                await asyncio.sleep(0.001)

        engine.start = start

    assert run(job_for(clips, out), change=slow).summary.ok == 10


def test_interrupting_while_the_engine_starts_ends_at_once(clips: Path, out: Path):
    def hangs(engine: FakeEngine, _reader: InProcessReader) -> None:
        async def start() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)

        engine.start = start

    summary = run(job_for(clips, out), change=hangs, signals=True).summary
    assert (summary.interrupted, summary.windows) == (True, 0)
    assert run(job_for(clips, out)).summary.ok == 10


def test_faults_of_our_own_cost_their_clip_only(clips: Path, out: Path):
    def broken(_engine: FakeEngine, reader: InProcessReader) -> None:
        def act(source) -> None:
            if source.location.endswith("3.mp4"):
                raise ZeroDivisionError

        reader.before_decode = act

    ran = run(job_for(clips, out), change=broken)
    assert (ran.summary.ok, ran.summary.failed_by_reason) == (9, {"ZeroDivisionError": 1})


def test_wrong_input_is_told_before_anything_is_made(tmp_path: Path, out: Path):
    with pytest.raises(SourceNotFound):
        run(job_for(tmp_path / "nowhere", out))
    with pytest.raises(ConfigError, match="no progress"):
        run(job_for(tmp_path, out, window="0s"))
    with pytest.raises(ConfigError, match="not a JSON schema"):
        run(job_for(tmp_path, out, schema={"type": "nonsense"}))
    assert not out.exists()
    assert not Path(ledger_path(str(out))).exists()


def test_a_manifest_that_breaks_keeps_what_was_done(clips: Path, out: Path, tmp_path: Path):
    rows = "".join(f'{{"path": "{path}"}}\n' for path in sorted(clips.iterdir()))
    (tmp_path / "list.jsonl").write_text(rows + '{"path": \n')
    with pytest.raises(ConfigError, match="line 11"):
        run(job_for(tmp_path / "list.jsonl", out))
    (tmp_path / "list.jsonl").write_text(rows)
    again = run(job_for(tmp_path / "list.jsonl", out))
    assert again.summary.skipped + again.summary.ok == 10
    assert len(stored(out)) == 10


def test_missing_rows_of_a_manifest_are_failed_records(clips: Path, out: Path, tmp_path: Path):
    (tmp_path / "list.csv").write_text("path\nclips/clip_000.mp4\nclips/none.mp4\n")
    ran = run(job_for(tmp_path / "list.csv", out))
    assert (ran.summary.ok, ran.summary.failed_by_reason) == (1, {"SourceNotFound": 1})


def test_a_display_that_breaks_does_not_break_the_run(clips: Path, out: Path, caplog: pytest.LogCaptureFixture):
    def shows(_look: Progress) -> None:
        raise BrokenPipeError

    job = job_for(clips, out)
    summary = asyncio.run(caption_job(job, engine=fake_engine(), reader=InProcessReader(), on_progress=shows))
    assert summary.ok == 10
    assert caplog.text.count("progress could not be shown") == 1


def test_two_runs_into_one_store_are_kept_apart(clips: Path, out: Path):
    def second(_records: list[CaptionRecord]) -> None:
        with pytest.raises(StoreLocked):
            open_store(out, "w")

    assert run(job_for(clips, out), on_commit=second).summary.ok == 10


def test_interrupting_lets_windows_in_flight_end(tmp_path: Path, out: Path):
    write_clips(tmp_path / "clips", 200)
    job = job_for(tmp_path / "clips", out)
    ran = run(job, on_commit=interrupt_once(), signals=True, delay_s=0.01)
    assert (ran.summary.interrupted, ran.summary.exit_code) == (True, 130)
    assert ran.engine.num_cancelled == 0
    assert ran.summary.ok == ran.engine.num_asked == len(stored(out)) < 200
    again = run(job)
    assert (again.summary.skipped, again.summary.ok) == (ran.summary.ok, 200 - ran.summary.ok)


def interrupt_once(times: int = 1) -> Callable[[list[CaptionRecord]], None]:
    left = [times]

    def act(_records: list[CaptionRecord]) -> None:
        if left[0]:
            left[0] -= 1
            os.kill(os.getpid(), signal.SIGINT)

    return act


def test_interrupting_twice_ends_at_once_and_keeps_what_is_done(tmp_path: Path, out: Path):
    write_clips(tmp_path / "clips", 50)
    slow = write_clip(tmp_path / "clips/slow.mp4", seed=999)

    def hang_on_slow(engine: FakeEngine, _reader: InProcessReader) -> None:
        ask = engine.ask

        async def act(question, on_text=None):
            if question.clip == str(slow):
                await asyncio.sleep(3600)
            return await ask(question, on_text)

        engine.ask = act

    job = job_for([slow, tmp_path / "clips"], out)
    ran = run(job, change=hang_on_slow, on_commit=interrupt_once(2), signals=True, delay_s=0.005)
    assert ran.summary.interrupted
    assert 1 <= len(stored(out)) == ran.summary.windows < 51
    again = run(job)
    assert again.summary.skipped + again.summary.ok == 51


def test_windows_that_do_not_end_are_dropped_after_the_drain(tmp_path: Path, out: Path):
    write_clips(tmp_path / "clips", 5)
    job = job_for(tmp_path / "clips", out, drain_s=0.1, concurrency=1)
    engine = fake_engine(delay_s=3600.0)

    async def main() -> Summary:
        running = asyncio.create_task(caption_job(job, engine=engine, reader=InProcessReader(), catch_signals=True))
        while not engine.num_asked:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        return await running

    summary = asyncio.run(main())
    assert (summary.interrupted, summary.windows, engine.num_cancelled) == (True, 0, 1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert run(job).summary.ok == 5


def test_cancelling_the_job_keeps_what_is_done(tmp_path: Path, out: Path):
    write_clips(tmp_path / "clips", 50)
    job = job_for(tmp_path / "clips", out)
    committed = asyncio.Event()

    async def main() -> None:
        coming = caption_job(
            job, engine=fake_engine(delay_s=0.01), reader=InProcessReader(), on_commit=lambda _: committed.set()
        )
        running = asyncio.create_task(coming)
        await committed.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    kept = len(stored(out))
    assert 1 <= kept < 50
    again = run(job)
    assert (again.summary.skipped, again.summary.ok) == (kept, 50 - kept)


def test_the_engine_that_settings_name():
    assert engine_for(CaptionSettings(engine="fake", model="m", engine_options={"delay_s": 1.0})).model == "m"
    assert engine_for(CaptionSettings(endpoint="http://127.0.0.1:9/v1", model="m")).name == "openai_http"
    assert engine_for(CaptionSettings()).name == "embedded"
    with pytest.raises(ConfigError, match="did you mean 'fake'"):
        engine_for(CaptionSettings(engine="fak"))
    with pytest.raises(ConfigError, match="delay_s"):
        engine_for(CaptionSettings(engine="fake", engine_options={"delay": 1.0}))


def test_the_pool_that_settings_ask_for():
    pool = pool_for(CaptionSettings(decode_workers=1, frame_budget="64MiB"), SMALL)
    assert (pool.settings.num_workers, pool.settings.max_bytes_in_flight) == (1, 64 << 20)
