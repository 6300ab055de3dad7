"""The faster patchify gives what the stock processor gives, to the bit, and takes over only where it may."""

import sys
from pathlib import Path

import pytest
from patchify_report import check_patchify

TORCHVISION = Path(sys.prefix) / "torchvision-for-tests"


def test_beside_the_transformers_of_these_tests():
    if not TORCHVISION.exists():
        pytest.skip(f"{TORCHVISION} is missing (`make test` installs it)")
    check_patchify(sys.executable, "--declare-operators", PYTHONPATH=str(TORCHVISION))
