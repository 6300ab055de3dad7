"""A store written by schema version 1 (fixtures/captions_v1, made with pylance 14) is read and brought up."""

import shutil
from pathlib import Path

import lance as pylance
import pytest
from caption_records import failed, record

from framefleet.errors import StoreUnreadable
from framefleet.store import migrate as module
from framefleet.store.lance import open_lance
from framefleet.store.schema import VERSION, VERSION_KEY, arrow_schema, version_of

BEFORE = [record(n, num_missing=0, attempts=1) for n in range(6)] + [failed(6, num_missing=0, attempts=1)]


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    return Path(shutil.copytree(Path(__file__).parent / "fixtures" / "captions_v1", tmp_path / "captions.lance"))


def test_version_1_is_read_as_it_is(version_1):
    with open_lance(str(version_1), "r") as store:
        assert version_of(store.dataset.schema) == 1
        assert list(store.records()) == BEFORE
        assert store.statuses().counts()["failed"] == 1
    assert version_of(pylance.dataset(str(version_1)).schema) == 1


def test_version_1_is_brought_up_and_written_to(version_1):
    with open_lance(str(version_1), "w") as store:
        assert version_of(store.dataset.schema) == VERSION
        assert set(store.dataset.schema.names) == set(arrow_schema().names)
        assert store.append(record(6), record(7), record(1)) == 2
    with open_lance(str(version_1), "r") as store:
        assert list(store.records()) == [*BEFORE[:6], record(6), record(7)]


def test_a_crash_between_the_two_commits_is_made_good(version_1, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(pylance.LanceDataset, "update_schema_metadata", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_lance(str(version_1), "w")
    with open_lance(str(version_1), "r") as store:
        assert list(store.records()) == BEFORE
    with open_lance(str(version_1), "w") as store:
        assert version_of(store.dataset.schema) == VERSION
        assert list(store.records()) == BEFORE


def test_the_present_version_is_left_alone(tmp_path):
    open_lance(str(tmp_path / "captions.lance"), "w").close()
    dataset = pylance.dataset(str(tmp_path / "captions.lance"))
    assert module.migrate(dataset, "here") is False


def test_a_newer_version_is_refused(version_1):
    pylance.dataset(str(version_1)).update_schema_metadata({VERSION_KEY: str(VERSION + 1)})
    for mode in ("r", "w"):
        with pytest.raises(
            StoreUnreadable, match=f"newer framefleet.*schema version {VERSION + 1}.*upgrade framefleet"
        ):
            open_lance(str(version_1), mode)
