"""Captions per second of a real vLLM, by who decodes; arms interleaved, every sample kept. See REPORT.md.

    python benchmarks/serve_e2e/run.py OUT --model FOLDER --gpus 0,1 --mps off,on      vLLM in this interpreter
    python benchmarks/serve_e2e/run.py OUT --cpu .venv-vllm/bin/python      to try it, with the bundled model

Each GPU is a lane with its share of the cores; lanes are measured at the same time. Ends by itself within --limit-s.
OUT gets the trials of each lane (JSON lines), facts.json and the servers' logs; `report.py OUT...` makes the report.
--diagnose-s keeps so many of the seconds for `framefleet diagnose` on the same servers (benchmarks/diagnose).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from arms import ServedArm
from bench import (
    MOST_ERRORS,
    STOP_S,
    Bench,
    arms_of,
    clip_folder,
    end_servers,
    line_of,
    parser,
    run_within,
    slots_of,
    stand,
    versions,
)
from lane import PROMPT, Clock, Lane, gauges_of_lanes, load_of, run_trial

from framefleet.bench import experiment as exp
from framefleet.bench.scheduler import Slot
from framefleet.bench.trial_log import TrialLog


def experiment_of(bench: Bench, lane: Lane, arms: Sequence[ServedArm]) -> exp.Experiment:
    return exp.Experiment(
        question=f"serve e2e {lane.name}: how much of the decode-free rate does each way of decoding reach?",
        workload=exp.Workload(
            clips=tuple(clip.digest for clip in bench.clips["as_is"]),
            frame_policy=bench.workload.frames,
            prompt=PROMPT,
            max_output_tokens=bench.workload.max_tokens,
        ),
        arms=tuple(described(lane, arm) for arm in arms),
        metric="requests_per_s",
        smallest_effect=0.05,
        versions=versions(),
    )


async def measure(bench: Bench, lane: Lane, arms: Sequence[ServedArm]) -> None:
    """Blocks of trials until the time is over; each trial is on disk before the next. An arm that fails is left out."""
    experiment = experiment_of(bench, lane, arms)
    served = {arm.name: arm for arm in arms}
    failed: set[str] = set()
    with TrialLog(bench.asked.out / lane.name, experiment) as log:
        for slot in slots_of(experiment):
            if bench.clock.left_s < bench.asked.trial_s + STOP_S + bench.asked.diagnose_s:
                return
            if slot.arm in failed:
                continue
            trial = await one_trial(bench, lane, served[slot.arm], slot)
            log.append(trial)
            bench.clock.say(f"{lane.name} block {slot.block} {line_of(trial)}")
            if trial.error_share > MOST_ERRORS:
                failed.add(slot.arm)


async def one_trial(bench: Bench, lane: Lane, arm: ServedArm, slot: Slot) -> exp.Trial:
    url = lane.servers[arm.kind].url
    load = load_of(bench.workload, url, arm, duration_s=bench.asked.trial_s, cut=True)
    gauges = gauges_of_lanes([lane], arm.kind)
    return await run_trial(load, bench.clips[arm.clips], gauges, slot=slot, arm=described(lane, arm))


def described(lane: Lane, arm: ServedArm) -> exp.Arm:
    """The arm as the log knows it."""
    settings = {"kind": arm.kind, "clips": arm.clips, "video": json.dumps(arm.video), "gpu": lane.gpu or ""}
    return exp.Arm(name=arm.name, settings={**settings, "mps": lane.mps is not None})


async def act(asked: argparse.Namespace, lanes: list[Lane], clock: Clock) -> None:
    """All lanes at the same time."""
    standing = await stand(asked, lanes, arms_of(asked), clock)
    runs = [(lane, standing.good[lane.name]) for lane in lanes if len(standing.good[lane.name]) > 1]
    await asyncio.gather(*(measure(standing.bench, lane, good) for lane, good in runs))
    if asked.diagnose_s:
        await asyncio.to_thread(end_servers, lanes[1:])  # others may have their GPUs
        await diagnose(asked, lanes[0], clock)


async def diagnose(asked: argparse.Namespace, lane: Lane, clock: Clock) -> None:
    """What limits vLLM with OpenCV, and ours, on the first lane."""
    sys.path.append(str(Path(__file__).parents[1] / "diagnose"))
    from served import ARMS, LOAD, diagnose_each

    clips = sorted(map(str, clip_folder(asked, lane.folder.parent).glob("as_is/*.mp4")))
    its_own = {**vars(asked), "out": asked.out / "diagnose", "arms": ARMS, "load_s": asked.diagnose_s, **LOAD}
    await diagnose_each(argparse.Namespace(**its_own), lane, clips, clock)


def main() -> int:
    asked = parser(__doc__)
    asked.add_argument("--diagnose-s", type=float, default=0, help="kept for diagnosing, both arms together")
    return run_within(asked.parse_args(), act)


if __name__ == "__main__":
    sys.exit(main())
