import pytest
from caption_records import record

from framefleet.caption.inputs import PassedOver
from framefleet.caption.progress import Standing, Summary, Tally, find_bottleneck


def test_counts_rate_and_time_left():
    tally = Tally(started_s=100.0)
    tally.clips_total = 12
    for n in range(4):
        tally.add(record(n))
        tally.clips_done += 1
    tally.add(record(5, status="failed", reason="SourceCorrupt"))
    tally.add(record(6, attempts=0))
    tally.clips_done += 2
    tally.skipped.update({"ok": 2, "failed": 1})
    look = tally.progress(110.0, in_flight=3, bottleneck="engine")
    assert (look.windows_done, look.ok, look.failed, look.copied, look.skipped) == (6, 5, 1, 1, 3)
    assert (look.windows_per_s, look.eta_s, look.elapsed_s) == (0.6, 10.0, 10.0)
    assert (look.in_flight, look.bottleneck) == (3, "engine")


def test_nothing_is_promised_before_anything_is_known():
    tally = Tally(started_s=0.0)
    assert tally.progress(0.0, in_flight=0, bottleneck="").eta_s is None
    tally.clips_total = 5
    assert tally.progress(1.0, in_flight=0, bottleneck="").eta_s is None  # no clip is done yet


def test_the_rate_is_of_the_last_minute():
    tally = Tally(started_s=0.0)
    tally.clips_total = 1_000_000
    for second in range(1, 600):
        tally.clips_done += 1 if second < 300 else 10  # skipping made way for work, or the other way round
        look = tally.progress(float(second), in_flight=0, bottleneck="")
    assert look.eta_s == pytest.approx((1_000_000 - tally.clips_done) / 10, rel=0.01)
    assert len(tally._clips._looks) < 70


def test_the_summary_adds_up():
    tally = Tally(started_s=0.0)
    tally.clips_seen = 4
    tally.add(record(1, prompt_tokens=10, completion_tokens=2, seconds={"decode": 1.0}))
    tally.add(record(2, prompt_tokens=10, completion_tokens=2, seconds={"decode": 0.5}, status="truncated"))
    tally.add(record(3, attempts=0, prompt_tokens=10, seconds={}))
    tally.add(record(4, status="rejected", reason="CaptionRejected", prompt_tokens=0, completion_tokens=0, seconds={}))
    tally.skipped.update({"ok": 7, "failed": 1, "rejected": 2})
    over = PassedOver(hidden=1, not_video=2, duplicates=3, unreadable=["x: no"])
    summary = tally.summary(2.0, interrupted=False, passed_over=over)
    assert (summary.ok, summary.truncated, summary.rejected, summary.failed, summary.copied) == (2, 1, 1, 0, 1)
    assert (summary.prompt_tokens, summary.completion_tokens) == (20, 4)  # a copy costs none
    assert summary.seconds_by_phase == {"decode": 1.5}
    assert summary.failed_by_reason == {"CaptionRejected": 1}
    assert (summary.skipped, summary.skipped_failed, summary.windows_per_s) == (10, 3, 2.0)
    assert summary.passed_over == {"hidden": 1, "not_video": 2, "duplicates": 3}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"truncated": 1, "skipped": 3}, 0),
        ({"failed": 1}, 3),
        ({"rejected": 1}, 3),
        ({"skipped": 3, "skipped_failed": 1}, 3),
        ({"unreadable_folders": ["a: no"]}, 3),
        ({"failed": 1, "interrupted": True}, 130),
    ],
)
def test_exit_codes(changes: dict[str, object], code: int):
    assert Summary(**{"clips": 3, "windows": 3, **changes}).exit_code == code


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        ({"caption": 8.0, "ready": 3.0, "decode": 1.0}, "engine"),
        ({"caption": 7.0, "ready": 0.0, "decode": 1.0}, "engine"),
        ({"caption": 0.0, "ready": 4.0, "decode": 2.0}, "engine"),  # it is starting
        ({"caption": 2.0, "decode": 3.9, "open": 4.0}, "decode"),
        ({"caption": 1.0, "decode": 0.1, "open": 4.0}, "input"),
        ({"caption": 0.5, "decode": 0.0, "open": 0.0}, "engine"),  # few windows are left: who still has one
        ({"commit": 8.0, "caption": 8.0}, "store"),
        ({}, ""),
    ],
)
def test_the_bottleneck_is_who_the_others_wait_for(standing: dict[str, float], expected: str):
    assert find_bottleneck(standing, engine_slots=8) == expected


def test_one_odd_look_does_not_change_the_bottleneck():
    standing = Standing(engine_slots=4)
    for _ in range(10):
        standing.look({"caption": 4.0, "decode": 2.0})
    standing.look({"caption": 2.0, "decode": 2.0})
    assert standing.bottleneck == "engine"
    for _ in range(10):
        standing.look({"caption": 2.0, "decode": 2.0})
    assert standing.bottleneck == "decode"
