"""Replicas on 1, 2, 4, 8 GPUs of one host behind our proxy, by who decodes. See REPORT.md.

    python benchmarks/multi_gpu/run.py OUT --model FOLDER --gpus all             vLLM in this interpreter
    python benchmarks/multi_gpu/run.py OUT --cpu .venv-vllm/bin/python --lanes 2    to try it, with the bundled model

Every GPU holds a server of each kind; a trial asks those of one kind on the first N GPUs, through a proxy of its own.
All servers share the host's CPU cores, as a fleet's do: one GPU has them all for itself.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "serve_e2e"))

from arms import ServedArm
from bench import MOST_ERRORS, STOP_S, Bench, arms_of, line_of, parser, run_within, slots_of, stand, versions
from lane import PROMPT, Clock, Lane, gauges_of_lanes, load_of, run_trial
from servers import Server, start, until_up

from framefleet.bench import experiment as exp
from framefleet.bench.scheduler import Slot
from framefleet.bench.trial_log import TrialLog
from framefleet.serve.fleet_plan import PORT, ProcessPlan

COUNTS = (1, 2, 4, 8)
COMPARED = ("vllm_opencv", "vllm_nvdec_best", "ours")
PROXY_UP_S = 60
PROXY = ("-c", "from framefleet.cli.app import main; main()", "proxy", "--quiet", "--port", PORT)


@dataclass(frozen=True)
class ScaledArm:
    """An arm on so many GPUs, and the proxy in front of them."""

    served: ServedArm
    lanes: list[Lane]
    proxy: Server

    @property
    def name(self) -> str:
        return f"{self.served.name} x{len(self.lanes)}"

    @property
    def urls(self) -> list[str]:
        return [lane.servers[self.served.kind].url for lane in self.lanes]

    @property
    def described(self) -> exp.Arm:
        """As the log knows it."""
        mps = self.lanes[0].mps is not None
        return exp.Arm(name=self.name, settings={"arm": self.served.name, "gpus": len(self.lanes), "mps": mps})


async def scaled(arms: Sequence[ServedArm], lanes: list[Lane]) -> list[ScaledArm]:
    """Every arm on 1, 2, 4 ... GPUs, with proxies that answer."""
    counts = [count for count in COUNTS if count <= len(lanes)]
    found = [ScaledArm(arm, lanes[:count], proxy_of(arm, lanes[:count])) for arm in arms for count in counts]
    up = await asyncio.gather(*(until_up(one.proxy, PROXY_UP_S) for one in found))
    return [one for one, is_up in zip(found, up, strict=True) if is_up]


def proxy_of(arm: ServedArm, lanes: list[Lane]) -> Server:
    """It stands in the first lane's `services`, so that it is ended with them."""
    name = f"proxy-{arm.name}-{len(lanes)}"
    upstreams = [word for lane in lanes for word in ("--upstream", lane.servers[arm.kind].url)]
    quiet = {"FRAMEFLEET_PROXY_PROBE_S": "0"}  # or idle proxies would send small requests to servers under test
    plan = ProcessPlan(name=name, command=(sys.executable, *PROXY, *upstreams), environ=quiet)
    lanes[0].services[name] = start(name, plan, lanes[0].folder, {})
    return lanes[0].services[name]


def experiment_of(bench: Bench, arms: Sequence[ScaledArm]) -> exp.Experiment:
    return exp.Experiment(
        question="multi gpu: how does the rate grow with replicas, by who decodes?",
        workload=exp.Workload(
            clips=tuple(clip.digest for clip in bench.clips["as_is"]),
            frame_policy=bench.workload.frames,
            prompt=PROMPT,
            max_output_tokens=bench.workload.max_tokens,
        ),
        arms=tuple(arm.described for arm in arms),
        metric="requests_per_s",
        smallest_effect=0.05,
        versions=versions(),
    )


async def measure(bench: Bench, arms: Sequence[ScaledArm]) -> None:
    """Blocks of trials until the time is over; each trial is on disk before the next. An arm that fails is left out."""
    experiment = experiment_of(bench, arms)
    named = {arm.name: arm for arm in arms}
    failed: set[str] = set()
    with TrialLog(bench.asked.out / "trials", experiment) as log:
        for slot in slots_of(experiment):
            if bench.clock.left_s < bench.asked.trial_s + STOP_S:
                return
            if slot.arm in failed:
                continue
            trial = await one_trial(bench, named[slot.arm], slot)
            log.append(trial)
            bench.clock.say(f"block {slot.block} {line_of(trial)}")
            if trial.error_share > MOST_ERRORS:
                failed.add(slot.arm)


async def one_trial(bench: Bench, arm: ScaledArm, slot: Slot) -> exp.Trial:
    load = load_of(bench.workload, arm.proxy.url, arm.served, duration_s=bench.asked.trial_s, cut=True)
    load = msgspec.structs.replace(load, concurrency=bench.workload.in_flight * len(arm.lanes))
    gauges = gauges_of_lanes(arm.lanes, arm.served.kind, proxy=arm.proxy)
    clips = bench.clips[arm.served.clips]
    return await run_trial(load, clips, gauges, arm=arm.described, slot=slot, engines=arm.urls)


async def act(asked: argparse.Namespace, lanes: list[Lane], clock: Clock) -> None:
    """Arms that are good on every lane."""
    wanted = [arm for arm in arms_of(asked) if arm.name in COMPARED]
    standing = await stand(asked, lanes, wanted, clock)
    good = [arm for arm in wanted if all(arm in standing.good[lane.name] for lane in lanes)]
    await measure(standing.bench, await scaled(good, lanes))


if __name__ == "__main__":
    told = parser(__doc__)
    told.set_defaults(cores="shared", mps="on")
    sys.exit(run_within(told.parse_args(), act))
