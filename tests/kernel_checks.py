"""A Triton kernel's check in a process of its own: whether it is interpreted is settled when Triton is imported."""

import os
import subprocess
import sys


def run_check(code, device, **environ):
    """`code` with `device` as its argument; `TRITON_INTERPRET="1"` runs kernels on the CPU."""
    return subprocess.run(
        [sys.executable, "-c", code, device],
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
    )
