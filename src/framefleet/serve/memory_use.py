"""How much memory the processes of a fleet hold, on the host and on the GPUs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from framefleet.serve.short_command import output_of
from framefleet.units import MIB


def host_bytes(groups: Iterable[int]) -> int:
    """Of all processes in these process groups: what is theirs alone and their share of the rest (PSS)."""
    wanted, total = set(groups), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):  # gone meanwhile
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) in wanted:
                    total += _pss_bytes(entry)
    return total


async def gpu_bytes() -> dict[str, int]:
    """GPU index -> bytes in use there, by whomever; empty where there is no nvidia-smi that answers."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    query = (tool, "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
    output = await output_of(query) or ""
    rows = [line.split(", ") for line in output.splitlines()]
    return {row[0]: int(row[1]) * MIB for row in rows if len(row) == 2 and row[1].isdecimal()}


def _pss_bytes(entry: Path) -> int:
    for line in (entry / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
