"""Whole files, and errors in our words."""

import errno
from pathlib import Path

import pytest

from framefleet.errors import ConfigError, StoreError, StoreFull
from framefleet.store.disk import store_errors, sync_newer, whole_file


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EFBIG, "File too large"),
        OSError(
            "LanceError(IO): Generic LocalFileSystem error: Unable to copy data: No space left on device (os error 28)"
        ),
        ValueError("LanceError(IO): StorageFull"),
    ],
)
def test_no_room_is_told_however_it_is_said(tmp_path, error):
    with (
        pytest.raises(StoreFull, match=r"no room to write; got '.*not there.*', .* free") as caught,
        store_errors(tmp_path / "not there"),
    ):
        raise error
    assert caught.value.__cause__ is error


def test_other_failures_keep_their_first_line(tmp_path):
    with pytest.raises(StoreError, match=r"\(boom\)") as caught, store_errors(tmp_path):
        raise RuntimeError("boom\nat some.rs:12")
    assert type(caught.value) is StoreError


def test_ours_and_bugs_pass(tmp_path):
    for error in (ConfigError("ours"), TypeError("bug"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, store_errors(tmp_path):
            raise error
        assert caught.value is error


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "file"
    with whole_file(target) as temporary:
        temporary.write_bytes(b"first")
        assert not target.exists()
    assert target.read_bytes() == b"first"
    with pytest.raises(KeyboardInterrupt), whole_file(target) as temporary:  # noqa: PT012
        temporary.write_bytes(b"second")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_newer_is_synced_and_one_folder_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import os

    old, new, ours = tmp_path / "old", tmp_path / "in" / "new", tmp_path / "mine" / "x"
    for path in (old, new, ours):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    os.utime(old, (1_000, 1_000))
    synced = []
    monkeypatch.setattr("framefleet.store.disk.sync_file", synced.append)
    monkeypatch.setattr("framefleet.store.disk.sync_directory", synced.append)
    sync_newer(tmp_path, 10**15, passing_over="mine")
    assert {new, new.parent} <= set(synced)
    assert not {old, ours, ours.parent} & set(synced)
