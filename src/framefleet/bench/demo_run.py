"""The demo run: the sample clips captioned by the bundled model, judged by their truth, and found again.

`framefleet demo` shows it; `python -m framefleet.bench.demo_run` (`make bench`) times it, in a folder of its own, and
then decoding alone, and prints one JSON line last.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from framefleet.caption.job import CaptionJob, run_caption_job
from framefleet.caption.local import OnProgress
from framefleet.caption.progress import Summary
from framefleet.caption.settings import CaptionSettings
from framefleet.engine.captioner import CaptionRecord
from framefleet.engine.prompts import prompt_text
from framefleet.scenes import SampleClip, Truth, mean_score, sample_clips, score
from framefleet.search.searcher import Searcher
from framefleet.store.sink import open_store
from framefleet.store.where import Where

PROMPT = "av"
LEAST_SCORE = 0.9
_OURS = Where(prompt=prompt_text(PROMPT))


class DemoCaption(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of a sample clip, beside the truth."""

    clip: str
    caption: str
    truth: str
    status: str

    @property
    def is_exact(self) -> bool:
        """Word for word."""
        return self.caption == self.truth


class DemoSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search, and whether its first hits are the clips that the truth names."""

    query: str
    hits: list[str]
    """As many of the first hits as there are right clips."""
    expected: list[str]
    is_right: bool


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that the demo has to show."""

    store: str
    summary: Summary
    captions: list[DemoCaption]
    attributes: dict[str, float]
    """Attribute -> share right."""
    score: float
    """Mean of these."""
    searches: list[DemoSearch]
    seconds: dict[str, float]
    """caption, search: wall clock."""

    @property
    def is_passed(self) -> bool:
        """Good captions, and every search right."""
        return self.score >= LEAST_SCORE and all(search.is_right for search in self.searches)


class _Query(msgspec.Struct, frozen=True):
    words: str
    is_right: Callable[[Truth], bool]


def _has(truth: Truth, colour: str, kind: str) -> bool:
    return any((vehicle.colour, vehicle.kind) == (colour, kind) for vehicle in truth.vehicles)


QUERIES = (
    _Query("blue bus at night in fog", lambda t: _has(t, "blue", "bus") and (t.light, t.weather) == ("night", "fog")),
    _Query('"changes from green to red"', lambda t: t.traffic_light == "changes from green to red"),
)
"""The second one needs frames in their order: the same words say the opposite change."""


def run_demo(folder: Path, on_progress: OnProgress | None = None) -> DemoResult:
    """Caption the sample clips into `folder`/captions.lance (what is there already is not done again), judge, search.

    Raises what the caption job and the store raise.
    """
    store = str(folder / "captions.lance")
    samples = sample_clips()
    started_s = time.perf_counter()
    settings = CaptionSettings(engine="embedded", prompt=PROMPT, retry_failed=True)
    summary = run_caption_job(CaptionJob([str(s.path) for s in samples], store, settings), on_progress=on_progress)
    captioned_s = time.perf_counter()
    records = _records(store)
    with open_store(store) as kept:
        searcher = Searcher(kept)
        searches = [_search(searcher, query, samples) for query in QUERIES]
    attributes = mean_score(score(s.truth, _text(records, s)) for s in samples)
    return DemoResult(
        store=store,
        summary=summary,
        captions=[_beside_truth(records, sample) for sample in samples],
        attributes={name: round(share, 4) for name, share in attributes.items()},
        score=round(sum(attributes.values()) / len(attributes), 4),
        searches=searches,
        seconds={"caption": captioned_s - started_s, "search": time.perf_counter() - captioned_s},
    )


def _search(searcher: Searcher, query: _Query, samples: list[SampleClip]) -> DemoSearch:
    expected = [str(sample.path) for sample in samples if query.is_right(sample.truth)]
    hits = [hit.clip for hit in searcher.search(query.words, limit=len(expected), where=_OURS)]
    return DemoSearch(query=query.words, hits=hits, expected=expected, is_right=sorted(hits) == sorted(expected))


def _records(store: str) -> dict[str, CaptionRecord]:
    """The newest record of each clip for the demo's prompt."""
    with open_store(store) as kept:
        return {record.clip: record for record in kept.records(_OURS)}


def _text(records: dict[str, CaptionRecord], sample: SampleClip) -> str:
    record = records.get(str(sample.path))
    return record.text if record else ""


def _beside_truth(records: dict[str, CaptionRecord], sample: SampleClip) -> DemoCaption:
    record = records.get(str(sample.path))
    return DemoCaption(
        clip=str(sample.path),
        caption=record.text if record else "",
        truth=sample.caption,
        status=record.status if record else "failed",
    )


def main() -> None:
    """Time a demo run in a fresh folder, then decoding alone; one JSON line last."""
    from framefleet.bench.decode_alone import headline, measure_decode

    with tempfile.TemporaryDirectory() as folder:
        result = run_demo(Path(folder))
    decoding = measure_decode([sample.path for sample in sample_clips()])
    sys.stderr.write(f"demo: {result.summary.windows_per_s:.2f} clips/s, score {result.score:.3f}\n")
    line = {"benchmark": "demo", **_timings(result), "decode": headline(decoding)}
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")


def _timings(result: DemoResult) -> dict[str, Any]:
    summary = result.summary
    return {
        "clips": summary.clips,
        "clips_per_s": round(summary.windows_per_s, 3),
        "seconds": {name: round(s, 3) for name, s in {"run": summary.seconds, **result.seconds}.items()},
        "seconds_by_phase": summary.seconds_by_phase,
        "score": result.score,
        "is_passed": result.is_passed,
    }


if __name__ == "__main__":
    main()
