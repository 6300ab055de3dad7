"""The faster patchify gives what the stock processor gives, to the bit, and takes over only where it may."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "patchify_cases.py"
TORCHVISION = Path(sys.prefix) / "torchvision-for-tests"
VLLM_PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"


def check(command, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, env=environment, check=True, timeout=240, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert all(case["same"] for case in report.values()), report
    slow = {"to be resized", "too large", "too large for the cap", "not normalised", "grey"}
    assert {name for name, case in report.items() if not case["fast"]} == slow
    assert [name for name, case in report.items() if case["error"]] == []


def test_beside_the_transformers_of_these_tests():
    if not TORCHVISION.exists():
        pytest.skip(f"{TORCHVISION} is missing (`make test` installs it)")
    check([sys.executable, CASES, "--declare-operators"], PYTHONPATH=str(TORCHVISION))


@pytest.mark.vllm
def test_beside_the_transformers_that_vllm_brought():
    if not VLLM_PYTHON.exists():
        pytest.skip(f"no {VLLM_PYTHON}; try: make vllm")
    check([VLLM_PYTHON, CASES])
