import json

import pytest

from framefleet.caption.progress import Progress, Summary
from framefleet.cli.caption import exit_code_of_run, summary_text
from framefleet.cli.progress import ProgressLine, clock, progress_text
from framefleet.engine.captioner import CaptionRecord


@pytest.fixture
def caption(framefleet, tmp_path):
    """Caption with the fake engine into `captions.jsonl`; the answer and the store's path."""
    store = tmp_path / "captions.jsonl"

    def call(*arguments):
        fake = ("--engine", "fake", "--output", store, "--decode-workers", 1)
        return framefleet("caption", *fake, *arguments)

    return call


def test_captions_then_does_nothing_then_with_another_prompt_all_again(caption, base):
    first = caption(base, "--json")
    assert (first.code, first.json["ok"], first.json["windows"]) == (0, 1, 1)
    again = caption(base, "--json")
    assert (again.code, again.json["ok"], again.json["skipped"]) == (0, 0, 1)
    other = caption(base, "--prompt", "short", "--json")
    assert (other.code, other.json["ok"], other.json["skipped"]) == (0, 1, 0)


def test_some_failed_is_code_3_and_each_is_named(caption, corpus):
    answer = caption(corpus / "base.mp4", corpus / "zero_bytes.mp4")
    assert answer.code == 3
    assert "1 ok, 1 failed" in answer.out
    assert [line for line in answer.err.splitlines() if "zero_bytes.mp4: SourceCorrupt" in line]


def test_none_usable_is_code_4(caption, corpus):
    assert caption(corpus / "zero_bytes.mp4").code == 4


def test_windows(caption, corpus):
    answer = caption(corpus / "base.mp4", "--window", "500ms", "--num-frames", 2, "--json")
    assert answer.json["windows"] == 4


def test_a_plan_does_no_work(caption, base, tmp_path):
    answer = caption(base, "--plan", "--json")
    assert (answer.code, answer.json["clips"], answer.json["windows"]) == (0, 1, 1)
    assert not (tmp_path / "captions.jsonl").exists()
    assert "clips:" in caption(base, "--plan").out


def test_a_settings_file_is_read_and_flags_win(caption, base, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('[caption]\nprompt = "short"\nwindow = "1s"\n')
    assert caption(base, "--config", file, "--json").json["windows"] == 2
    assert caption(base, "--config", file, "--window", "500ms", "--json").json["windows"] == 4


@pytest.mark.parametrize(
    "wrong",
    [
        ("--window", "soon"),
        ("--window", "1s", "--overlap", "2s"),
        ("--engine", "nope"),
        ("--engine-option", "max_batch"),
        ("--engine-option", "nope=1"),
        ("--schema", "no-such-schema.json"),
        ("--backend", "nope"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(caption, base, wrong):
    answer = caption(base, *wrong)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1


def test_no_such_input(caption):
    answer = caption("no-such-folder")
    assert answer.code == 4
    assert "no-such-folder" in answer.err


def test_a_schema_that_is_no_json(caption, base, tmp_path):
    (tmp_path / "schema.json").write_text("{")
    assert "no JSON object" in caption(base, "--schema", tmp_path / "schema.json").err


def test_the_code_of_a_run():
    assert exit_code_of_run(Summary(clips=2, windows=2, ok=2)) == 0
    assert exit_code_of_run(Summary(clips=2, windows=2, ok=1, failed=1)) == 3
    assert exit_code_of_run(Summary(clips=2, windows=2, failed=2)) == 4
    assert exit_code_of_run(Summary(clips=2, windows=0, skipped=2, skipped_failed=1)) == 3
    assert exit_code_of_run(Summary(clips=2, windows=1, ok=1, interrupted=True)) == 130


def test_one_clip_is_not_clips():
    assert summary_text(Summary(clips=1, windows=1, ok=1), "s.lance").startswith("1 clip, 1 window in ")
    assert summary_text(Summary(clips=2, windows=0), "s.lance").startswith("2 clips, 0 windows in ")


def test_a_summary_says_what_to_do_after_an_interruption():
    assert "the same command goes on" in summary_text(Summary(clips=2, windows=1, ok=1, interrupted=True), "s.lance")


@pytest.mark.parametrize(("interrupted", "words"), [(True, "nothing done"), (False, "nothing to do")])
def test_a_run_broken_off_before_its_first_answer_was_not_done(interrupted, words):
    assert summary_text(Summary(clips=2, windows=0, interrupted=interrupted), "s.lance").splitlines()[0].endswith(words)


PROGRESS = Progress(
    clips_total=24, clips_done=12, windows_done=12, ok=10, truncated=1, rejected=0, failed=1, copied=0, skipped=0,
    in_flight=4, windows_per_s=3.44, eta_s=7.2, elapsed_s=4.0, bottleneck="engine",
)  # fmt: skip


def test_the_progress_line():
    assert progress_text(PROGRESS) == "12/24 clips, 11 captioned, 1 failed, 3.4/s, 0:07 left, waits for the engine"


def test_away_from_a_terminal_progress_is_rare_and_quiet_is_silent(capsys):
    with ProgressLine(is_quiet=False) as line:
        line.update(PROGRESS)
    assert capsys.readouterr().err == ""


def test_in_a_terminal_the_line_is_rewritten_and_ended(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with ProgressLine(is_quiet=False) as line:
        line.update(PROGRESS)
        line.update(PROGRESS)
    shown = capsys.readouterr().err
    assert shown.count("\r") == 3
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")


def test_hostile_names_among_failures_are_escaped_and_many_are_cut_short(capsys):
    record = CaptionRecord(
        digest="0" * 32, clip="\x1b[2J", content_digest="", start_s=0, end_s=0, prompt="", status="failed"
    )
    with ProgressLine(is_quiet=True) as line:
        line.tell_failures([record] * 30)
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 21


@pytest.mark.parametrize(("seconds", "text"), [(7.2, "0:07"), (750, "12:30"), (10805, "3:00:05")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_records_are_in_the_store(caption, base, tmp_path):
    caption(base)
    record = json.loads((tmp_path / "captions.jsonl").read_text().splitlines()[0])
    assert record["clip"] == str(base)
