"""`diagnose` on real vLLM servers, one after the other: vLLM with OpenCV, and with our decoder. See REPORT.md.

    python benchmarks/diagnose/servers.py OUT --model FOLDER --gpus 0          on a GPU, vLLM in this interpreter
    python benchmarks/diagnose/servers.py OUT --cpu .venv-vllm/bin/python      to try it, with the bundled model

Both servers stand on the same GPU and only the one under diagnosis is asked. Takes the servers of benchmarks/serve_e2e;
ends by itself within --limit-s. OUT/ARM gets report.html, report.md, report.json and the trials.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serve_e2e"))

from arms import SIZE, ServedArm
from bench import arms_of, kinds_of, parser, run_within, workload_of
from footage import make_footage
from lane import PROMPT, Clock, Lane

from framefleet.bench.diagnosis import DiagnoseSettings, Diagnosis, run_diagnosis
from framefleet.bench.diagnosis_report import advice, diagnosis_report, sentence
from framefleet.bench.report import write_report
from framefleet.bench.trial_log import read_log
from framefleet.engine.embedded.frame_policy import frame_policy_for

ARMS = "vllm_opencv,ours"
NUM_CLIPS = 4
"""Of the copies; no two requests are alike all the same."""
BESIDE_LOAD_S, LONGER = 25, 1.5
"""Preparing clips; and by how much longer loads take than asked, for their last requests."""
LEAST_S = 20


async def act(asked: argparse.Namespace, lanes: list[Lane], clock: Clock) -> None:
    """Start both, then diagnose each for as long as there is time."""
    lane, workload, arms = lanes[0], workload_of(asked), arms_of(asked)
    lane.start(kinds_of(asked, workload, lane, arms))
    folder = asked.clips or lane.folder / "clips"
    folder.mkdir(parents=True, exist_ok=True)
    made = await asyncio.to_thread(make_footage, folder, frame_policy_for(workload.model), is_quick=bool(asked.cpu))
    await lane.until_up(asked.up_s)
    up = [arm for arm in arms if arm.kind in lane.servers]
    for number, arm in enumerate(up):
        time_limit_s = min(asked.load_s, (clock.left_s / (len(up) - number) - BESIDE_LOAD_S) / LONGER)
        if time_limit_s < LEAST_S:
            clock.say(f"{arm.name}: no time left")
            continue
        settings = settings_of(asked, lane, arm, [str(path) for path in made["as_is"]], time_limit_s)
        clock.say(f"{arm.name}: {time_limit_s:.0f} s of load")
        found = await asyncio.to_thread(run_diagnosis, settings, asked.out / arm.name, clock.say)
        write_report(diagnosis_report(found, read_log(Path(found.log))[1]), asked.out / arm.name, found)
        tell(arm, found, clock)


def settings_of(
    asked: argparse.Namespace, lane: Lane, arm: ServedArm, clips: Sequence[str], time_limit_s: float
) -> DiagnoseSettings:
    workload = workload_of(asked)
    size = {} if asked.cpu else {"total_pixels": SIZE["longest_edge"], "min_total_pixels": SIZE["shortest_edge"]}
    return DiagnoseSettings(
        endpoint=lane.servers[arm.kind].url,
        inputs=tuple(clips),
        model_files=workload.model,
        frames={**workload.frames, **size},
        extra_body={"media_io_kwargs": {"video": arm.video}} if arm.video else {},
        prompt=PROMPT,
        max_tokens=workload.max_tokens,
        concurrency=workload.in_flight,
        time_limit_s=time_limit_s,
        max_clips=NUM_CLIPS,
        gpus=None if lane.gpu is None else (int(lane.gpu),),
    )


def tell(arm: ServedArm, found: Diagnosis, clock: Clock) -> None:
    clock.say(f"{arm.name}: {sentence(found.verdict)} [{found.verdict.reason}]")
    for line in advice(found):
        clock.say(f"  {line}")


def main() -> int:
    asked = parser(__doc__)
    asked.add_argument("--load-s", type=float, default=110, help="of one diagnosis")
    asked.set_defaults(arms=ARMS, in_flight=10, max_tokens=64)
    return run_within(asked.parse_args(), act)


if __name__ == "__main__":
    sys.exit(main())
