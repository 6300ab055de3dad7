"""A disk of 6 MB, where this user may mount one."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no right to mount a tmpfs; the file-size limit in tests/contract/test_sink.py stands for it")
    yield place
    subprocess.run(["umount", "-l", place], check=True)
