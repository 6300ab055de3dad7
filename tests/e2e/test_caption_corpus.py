"""The whole corpus, broken files included, through the real pool, the fake engine and a Lance store."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from framefleet.caption.inputs import VIDEO_SUFFIXES
from framefleet.caption.job import CaptionJob, run_caption_job
from framefleet.caption.settings import CaptionSettings
from framefleet.decode.options import DecodeOptions
from framefleet.store.sink import open_store

CORPUS = Path(__file__).parents[1] / "corpus"
TRUTH = json.loads((CORPUS / "truth.json").read_text())
FILES = {path: facts for path, facts in TRUTH.items() if Path(path).suffix.lower() in VIDEO_SUFFIXES}


def run(store: Path, **changes: object):
    frames = DecodeOptions(num_frames=8, max_pixels=320 * 240, timeout_s=60)
    settings = CaptionSettings(**{"engine": "fake", "frames": frames, "decode_workers": 2, **changes})
    return run_caption_job(CaptionJob([str(CORPUS / "files")], str(store), settings))


def records(store: Path):
    with open_store(store) as sink:
        return list(sink.records())


def test_one_record_for_every_file_whatever_is_wrong_with_it(tmp_path: Path):
    store = tmp_path / "captions.lance"
    summary = run(store)
    assert summary.exit_code == 3
    kept = records(store)
    assert Counter(r.clip for r in kept) == Counter(str(CORPUS / "files" / path) for path in FILES)
    by_path = {str(Path(r.clip).relative_to(CORPUS / "files")): r for r in kept}
    broken = {path for path, facts in FILES.items() if facts["ok"] is False}
    whole = {path for path, facts in FILES.items() if facts["ok"] is True}
    failed = {path for path, record in by_path.items() if record.status == "failed"}
    assert broken <= failed
    assert failed & whole == set()
    assert all(by_path[path].reason.startswith("Source") for path in broken)
    assert all(record.message and record.reason for record in kept if record.status == "failed")
    assert {by_path[path].status for path in whole} == {"ok"}

    again = run(store)
    assert (again.windows, again.skipped, again.exit_code) == (0, len(FILES), 3)
    assert records(store) == kept

    other = run(store, prompt="Something else?")
    assert (other.windows, other.skipped) == (len(FILES), 0)


@pytest.mark.slow
def test_windows_of_every_file_cover_it(tmp_path: Path):
    store = tmp_path / "captions.lance"
    summary = run(store, window="1s")
    assert summary.clips == len(FILES)
    by_clip: dict[str, list] = {}
    for record in records(store):
        by_clip.setdefault(record.clip, []).append(record)
    assert len(by_clip) == len(FILES)
    for path, facts in FILES.items():
        windows = sorted(by_clip[str(CORPUS / "files" / path)], key=lambda r: r.start_s)
        if facts["ok"] is False:
            assert [w.status for w in windows] == ["failed"]
        elif facts["ok"] is True:
            assert all(a.end_s == b.start_s for a, b in pairwise(windows)), path
            assert {w.status for w in windows} == {"ok"}, path
            times_s = [time for time in facts["pts_s"] or () if time is not None]
            if times_s:
                assert windows[0].start_s == pytest.approx(times_s[0], abs=1e-6), path
                assert windows[-1].end_s >= times_s[-1], path
    assert run(store, window="1s").windows == 0
