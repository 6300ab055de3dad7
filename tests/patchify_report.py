"""Runs `vllm_plugin/patchify_cases.py` in some Python and judges its report."""

import json
import os
import subprocess
from pathlib import Path

CASES = Path(__file__).parent / "vllm_plugin" / "patchify_cases.py"
SLOW = {"to be resized", "too large", "too large for the cap", "not normalised", "grey"}


def check_patchify(python, *arguments, **variables):
    """To the bit what the stock processor gives, the fast way where it may be taken and nowhere else."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [str(python), str(CASES), *arguments]
    done = subprocess.run(command, env=environment, check=True, timeout=280, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert all(case["same"] for case in report.values()), report
    assert {name for name, case in report.items() if not case["fast"]} == SLOW
    assert [name for name, case in report.items() if case["error"]] == []
