import msgspec

from framefleet.bench import demo_run
from framefleet.bench.demo_run import QUERIES, DemoResult, DemoSearch
from framefleet.caption.progress import Summary
from framefleet.scenes import sample_clips


def result(score: float, is_right: bool) -> DemoResult:
    searches = [DemoSearch(query="q", hits=["a"], expected=["b"], is_right=is_right)]
    return DemoResult(
        store="s",
        summary=Summary(clips=1, windows=1),
        captions=[],
        attributes={},
        score=score,
        searches=searches,
        seconds={},
    )


def test_passing_takes_good_captions_and_right_searches():
    assert result(0.95, is_right=True).is_passed
    assert not result(0.5, is_right=True).is_passed
    assert not result(0.95, is_right=False).is_passed


def test_each_query_is_true_of_some_clips_and_not_of_most():
    for query in QUERIES:
        count = sum(query.is_right(sample.truth) for sample in sample_clips())
        assert 1 <= count <= 4, query.words


def test_captions_that_are_wrong_are_counted_wrong(monkeypatch, tmp_path):
    """The judging itself, with an engine that says the same of every clip."""
    samples = sample_clips()[:2]
    monkeypatch.setattr(demo_run, "sample_clips", lambda: samples)
    settings = demo_run.CaptionSettings(
        engine="fake", engine_options={"answers": [samples[0].caption]}, prompt="av", decode_workers=1
    )
    monkeypatch.setattr(demo_run, "CaptionSettings", lambda **_: settings)
    monkeypatch.setattr(
        demo_run, "QUERIES", (msgspec.structs.replace(QUERIES[0], is_right=lambda t: t == samples[1].truth),)
    )
    judged = demo_run.run_demo(tmp_path)
    assert [caption.is_exact for caption in judged.captions] == [True, False]
    assert 0.1 < judged.score < 0.9
    assert not judged.is_passed
