"""One process of a fleet, held through its keeper (`keeper.py`): started, waited for, stopped with all it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from framefleet.config import FILE_VARIABLE
from framefleet.errors import ReplicaError
from framefleet.serve import keeper
from framefleet.serve.fleet_plan import ProcessPlan

_TAIL_BYTES = 4096
_START_MARK = "--- "


class Child:
    """A running command. `Child.start` makes one."""

    def __init__(self, process: asyncio.subprocess.Process, pid: int) -> None:
        self._keeper = process
        self.pid = pid
        """Of the command; also its process group."""
        self.started_s = time.monotonic()

    @classmethod
    async def start(cls, plan: ProcessPlan, *, log: Path, environ: Mapping[str, str], grace_s: float) -> Child:
        """Start the plan's command; its output is appended to `log`, after a line that tells it.

        Raises ReplicaError when the command cannot be started.
        """
        cores = ",".join(map(str, plan.cores)) or "-"
        inherited = {name: value for name, value in os.environ.items() if name != FILE_VARIABLE}
        with log.open("ab") as output:
            output.write(f"{_START_MARK}{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {plan}\n".encode())
            output.flush()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", keeper.__file__, str(grace_s), cores, *plan.command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env={**inherited, **plan.environ, **environ},
                start_new_session=True,
            )
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            line = await process.stdout.readline()
        except asyncio.CancelledError:
            process.stdin.close()
            await process.wait()
            raise
        if not line:
            await process.wait()
            raise ReplicaError("a process cannot be started", given=f"{plan.name}: {tail_of(log)}")
        return cls(process, int(line))

    async def ended(self) -> str:
        """Wait for its end, and say how it ended: `exit code 1`, `signal 9`."""
        code = await self._keeper.wait()
        if code < 0:
            return f"its keeper ended by signal {-code}"
        return f"signal {code - 128}" if code > 128 else f"exit code {code}"

    async def stop(self) -> None:
        """Tell it to end, and wait until nothing of it is left; after its grace it is killed. Idempotent."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        if await self._keeper.wait() < 0:
            self._kill_session()

    async def kill(self) -> None:
        """End it at once, and wait until nothing of it is left."""
        if self._keeper.returncode is None:  # else the number may be somebody else's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        await self.stop()

    def _kill_session(self) -> None:
        """The keeper itself was killed: what it kept lives on in its session."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self._keeper.pid and fields[0] != "Z":
                        os.kill(int(entry.name), signal.SIGKILL)


def tail_of(log: Path, num_lines: int = 8) -> str:
    """The last lines of a log, none from before the last start."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    starts = [number for number, line in enumerate(lines) if line.startswith(_START_MARK)]
    return "\n".join(lines[starts[-1] + 1 if starts else 0 :][-num_lines:])
