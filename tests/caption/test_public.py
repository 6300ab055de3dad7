"""`framefleet.caption`, as a script or a notebook calls it."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from caption_fakes import write_clip

import framefleet
from framefleet.errors import ConfigError

FAKE = {"engine": "fake", "frames": {"num_frames": 2, "backend": "fake", "size": (160, 32)}, "decode_workers": 1}


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    (tmp_path / "clips").mkdir()
    for name in ("a.mp4", "b.mp4"):
        write_clip(tmp_path / "clips" / name)
    return tmp_path / "clips"


def test_a_folder_is_captioned_and_a_second_call_does_nothing(clips: Path, tmp_path: Path):
    store = tmp_path / "captions.lance"
    assert framefleet.caption(clips, store, **FAKE).ok == 2
    assert framefleet.caption([str(clips)], str(store), **FAKE).skipped == 2
    with framefleet.open_store(store) as opened:
        assert len(list(opened.records())) == 2


def test_inside_a_running_loop(clips: Path, tmp_path: Path):
    async def cell():
        return framefleet.caption(clips, tmp_path / "captions.lance", **FAKE)

    assert asyncio.run(cell()).ok == 2


def test_a_setting_that_is_none_is_told(clips: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="did you mean 'prompt'"):
        framefleet.caption(clips, tmp_path / "captions.lance", promt="av")


def test_the_environment_is_heard(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FRAMEFLEET_CAPTION_WINDOW", "1s")
    assert framefleet.caption(clips / "a.mp4", tmp_path / "captions.lance", **FAKE).windows == 2


def test_submodules_stay_reachable():
    code = "import framefleet.caption.job as job, framefleet; assert framefleet.caption.job is job"
    subprocess.run([sys.executable, "-c", f"{code}; assert callable(framefleet.caption)"], check=True)
