"""`diagnose` on real vLLM servers, one after the other: vLLM with OpenCV, and with our decoder. See REPORT.md.

    python benchmarks/diagnose/servers.py OUT --model FOLDER --gpus 0          on a GPU, vLLM in this interpreter
    python benchmarks/diagnose/servers.py OUT --cpu .venv-vllm/bin/python      to try it, with the bundled model

Both servers stand on the same GPU and only the one under diagnosis is asked. Takes the servers of benchmarks/serve_e2e,
whose `run.py --diagnose-s` does the same after its trials; ends by itself within --limit-s. OUT/ARM gets report.html,
report.md, report.json and the trials.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serve_e2e"))

from bench import arms_of, kinds_of, parser, run_within, workload_of
from footage import make_footage
from lane import Clock, Lane
from served import ARMS, LOAD, diagnose_each

from framefleet.engine.embedded.frame_policy import frame_policy_for


async def act(asked: argparse.Namespace, lanes: list[Lane], clock: Clock) -> None:
    """Start both, then diagnose each for as long as there is time."""
    lane, workload, arms = lanes[0], workload_of(asked), arms_of(asked)
    lane.start(kinds_of(asked, workload, lane, arms))
    folder = asked.clips or lane.folder / "clips"
    folder.mkdir(parents=True, exist_ok=True)
    made = await asyncio.to_thread(make_footage, folder, frame_policy_for(workload.model), is_quick=bool(asked.cpu))
    await lane.until_up(asked.up_s)
    await diagnose_each(asked, lane, [str(path) for path in made["as_is"]], clock)


def main() -> int:
    asked = parser(__doc__)
    asked.add_argument("--load-s", type=float, default=110, help="of one diagnosis")
    asked.set_defaults(arms=ARMS, **LOAD)
    return run_within(asked.parse_args(), act)


if __name__ == "__main__":
    sys.exit(main())
