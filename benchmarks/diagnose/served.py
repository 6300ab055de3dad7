"""`diagnose` of servers of benchmarks/serve_e2e that are up; that folder is on the path of whoever imports this."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from arms import SIZE, ServedArm
from bench import arms_of, workload_of
from lane import PROMPT, Clock, Lane

from framefleet.bench.diagnosis import DiagnoseSettings, Diagnosis, run_diagnosis
from framefleet.bench.diagnosis_report import advice, diagnosis_report, sentence
from framefleet.bench.report import write_report
from framefleet.bench.trial_log import read_log

ARMS = "vllm_opencv,ours"
LOAD = {"in_flight": 12, "max_tokens": 64}
NUM_CLIPS = 4
"""Of the copies; no two requests are alike all the same."""
BESIDE_LOAD_S, LONGER = 25, 1.3
"""Preparing clips; and by how much longer loads take than asked, for their last requests."""
LEAST_S = 20


async def diagnose_each(asked: argparse.Namespace, lane: Lane, clips: Sequence[str], clock: Clock) -> None:
    """One arm after the other, as long as there is time, on servers that are up."""
    up = [arm for arm in arms_of(asked) if arm.kind in lane.servers]
    for number, arm in enumerate(up):
        time_limit_s = min(asked.load_s, (clock.left_s / (len(up) - number) - BESIDE_LOAD_S) / LONGER)
        if time_limit_s < LEAST_S:
            clock.say(f"{arm.name}: no time left")
            continue
        settings = settings_of(asked, lane, arm, clips, time_limit_s)
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
