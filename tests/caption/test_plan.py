import asyncio
from pathlib import Path

import pytest
from caption_fakes import InProcessReader, fake_engine, job_for, write_clip, write_clips
from caption_records import record

from framefleet.caption.job import CaptionJob, caption_job
from framefleet.caption.ledger import Ledger, RunRates, ledger_path
from framefleet.caption.plan import JobPlan, Survey, estimate, plan_job
from framefleet.engine.prompts import prompt_text
from framefleet.store.sink import open_store

RATES = RunRates(
    model="m",
    engine="e",
    windows=10,
    seconds=5.0,
    prompt_tokens=1000,
    completion_tokens=500,
    decode_s=1.0,
    caption_s=9.0,
)


def planned(job: CaptionJob, *, sample: int = 8, reader: InProcessReader | None = None) -> JobPlan:
    return asyncio.run(plan_job(job, sample=sample, engine=fake_engine(), reader=reader or InProcessReader()))


def ran(job: CaptionJob) -> None:
    asyncio.run(caption_job(job, engine=fake_engine(), reader=InProcessReader()))


def test_from_a_sample():
    survey = Survey(
        clips=1000, clip_bytes=5, sampled=5, sampled_windows=[2, 4, 3, 3],
        sample_failed={"SourceCorrupt": 1}, sample_s=2.0,
        records=[record(n, prompt_tokens=100, completion_tokens=10 * n) for n in range(1, 5)],
    )  # fmt: skip
    plan = estimate(survey, windows_per_clip_is_one=False)
    assert (plan.windows, plan.windows_done, plan.windows_basis) == (3000, 0, "4 sampled clips")
    assert (plan.prompt_tokens, plan.completion_tokens) == (300_000, 75_000)
    assert plan.seconds == pytest.approx(1500)
    assert plan.disk_bytes == 3000 * 2048
    assert (plan.sampled, plan.sample_failed) == (5, {"SourceCorrupt": 1})


def test_from_earlier_runs_and_the_store():
    survey = Survey(
        clips=100, known_clips=40, known_windows=80, known_done=60, sampled_windows=[3], earlier=RATES, store_rows=60,
        store_bytes=60 * 500,
    )  # fmt: skip
    plan = estimate(survey, windows_per_clip_is_one=False)
    left = 80 + 60 * 3 - 60
    assert (plan.windows, plan.windows_done) == (260, 60)
    assert (plan.prompt_tokens, plan.completion_tokens, plan.seconds) == (left * 100, left * 50, left / 2)
    assert plan.disk_bytes == left * 500
    assert "earlier run" in plan.seconds_basis
    assert "60 records" in plan.disk_basis


def test_what_cannot_be_told_is_not_made_up():
    plan = estimate(Survey(clips=7), windows_per_clip_is_one=True)
    assert (plan.windows, plan.windows_basis) == (7, "one a clip")
    assert (plan.prompt_tokens, plan.completion_tokens, plan.seconds) == (None, None, None)
    assert "assumed" in estimate(Survey(clips=7), windows_per_clip_is_one=False).windows_basis


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    write_clips(tmp_path / "clips", 20)
    return tmp_path / "clips"


def test_a_plan_leaves_nothing_behind(clips: Path, tmp_path: Path):
    write_clip(clips / "bad.mp4", scan_error="SourceCorrupt")
    reader = InProcessReader()
    plan = planned(job_for(clips, tmp_path / "out.jsonl", window="500ms"), sample=30, reader=reader)
    assert (plan.clips, plan.windows, plan.sampled, plan.sample_failed) == (21, 84, 21, {"SourceCorrupt": 1})
    assert plan.clip_bytes == sum(p.stat().st_size for p in clips.iterdir())
    assert plan.seconds is not None
    assert plan.prompt_tokens == 84 * len(prompt_text("general").split())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clips"]


def test_only_the_sample_is_read(clips: Path, tmp_path: Path):
    reader = InProcessReader()
    plan = planned(job_for(clips, tmp_path / "out.jsonl"), sample=4, reader=reader)
    assert (len(reader.digested), len(reader.decoded), plan.windows, plan.sampled) == (4, 4, 20, 4)
    same = InProcessReader()
    planned(job_for(clips, tmp_path / "out.jsonl"), sample=4, reader=same)
    assert sorted(same.digested) == sorted(reader.digested)  # a plan can be repeated


def test_without_a_sample_nothing_is_read(clips: Path, tmp_path: Path):
    reader = InProcessReader()
    plan = planned(job_for(clips, tmp_path / "out.jsonl", window="500ms"), sample=0, reader=reader)
    assert (reader.digested, reader.decoded, plan.clips, plan.seconds) == ([], [], 20, None)


def test_what_is_done_is_taken_off(clips: Path, tmp_path: Path):
    job = job_for(clips, tmp_path / "out.jsonl")
    ran(job)
    reader = InProcessReader()
    plan = planned(job, reader=reader)
    assert (plan.windows, plan.windows_done, plan.seconds, plan.prompt_tokens, reader.digested) == (20, 20, 0.0, 0, [])
    write_clips(tmp_path / "more", 5, width=176)
    both = planned(job_for([clips, tmp_path / "more"], tmp_path / "out.jsonl"), reader=reader)
    assert (both.windows, both.windows_done, len(reader.digested)) == (25, 20, 5)
    assert "20 windows of an earlier run" in both.tokens_basis
    with open_store(tmp_path / "out.jsonl") as store:
        assert len(store.statuses()) == 20


def test_a_plan_may_be_made_while_a_run_goes_on(clips: Path, tmp_path: Path):
    job = job_for(clips, tmp_path / "out.jsonl")
    ran(job)
    with Ledger(ledger_path(job.output)):  # as the run holds it
        assert planned(job).windows == 20
