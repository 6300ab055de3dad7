"""CUDA MPS: a daemon of our own, with private folders; one that somebody else runs is never spoken to.

The daemon runs in the foreground as a child like any other. A client's fatal fault is every client's: the server says
FAULT, or dies, and all of them must be started anew.
"""

from __future__ import annotations

from framefleet.serve.fleet_plan import MpsPlan
from framefleet.serve.host import MPS_CONTROL
from framefleet.serve.short_command import output_of


class MpsDaemon:
    """What is asked of the daemon of a plan."""

    def __init__(self, plan: MpsPlan) -> None:
        self.plan = plan

    def make_folders(self) -> None:
        """Where it keeps its pipes and logs; nobody else gets in."""
        for folder in (self.plan.pipe_folder, self.plan.log_folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def is_well(self) -> bool:
        """Whether it answers, and none of its servers has failed. Before the first client there is no server."""
        servers = await self.ask("get_server_list")
        if servers is None or "Cannot find" in servers:  # whatever its exit code
            return False
        states = [await self.ask(f"get_server_status {pid}") for pid in servers.split() if pid.isdecimal()]
        return not any(state is None or "FAULT" in state for state in states)

    async def quit(self) -> None:
        """Tell it to end. Its clients must have ended; if any is left it waits, so this does not."""
        await self.ask("quit -t 5")

    async def ask(self, command: str) -> str | None:
        """The daemon's answer to a command; None when it gives none."""
        return await output_of([MPS_CONTROL], say=f"{command}\n", environ=self.plan.environ)
