"""The demo, as `make demo` runs it: real clips, a real model, a real store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FRAMEFLEET = str(Path(sys.executable).with_name("framefleet"))


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # As if there were no hub: whatever is needed ships with the package.
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "no-hub")}
    command = [FRAMEFLEET, "demo", "--output", str(folder / "out"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=offline)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The first run's folder and answer."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo(folder, "--json")


def test_all_clips_are_captioned_found_and_drawn(first):
    folder, answer = first
    assert answer.returncode == 0, answer.stderr
    facts = json.loads(answer.stdout)
    assert facts["summary"]["ok"] == len(facts["captions"]) == 24
    assert facts["score"] >= 0.9
    assert min(facts["attributes"].values()) >= 0.75
    assert all(search["is_right"] and search["expected"] for search in facts["searches"])
    assert len(facts["searches"]) == 2
    assert (folder / "out" / "sheet.png").stat().st_size > 100_000
    assert (folder / "out" / "captions.lance").is_dir()


def test_a_second_run_captions_nothing_and_shows_the_same(first):
    folder, answer = first
    again = demo(folder)
    assert again.returncode == 0, again.stderr
    assert "they were there from an earlier run" in again.stdout
    for caption in json.loads(answer.stdout)["captions"]:
        assert caption["caption"] in again.stdout


def test_its_store_is_searched_like_any_other(first):
    folder, _ = first
    store = str(folder / "out" / "captions.lance")
    command = [FRAMEFLEET, "search", "pedestrian at dusk", "--store", store, "--json", "--limit", "1"]
    hit = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "pedestrian" in json.loads(hit)["text"]
