"""What a run stands on: arguments, lanes of servers that are up, clips, and arms that were seen to answer alike."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
from arms import ARMS, Kind, ServedArm, Tuning, Workload, cpu_kinds, gpu_kinds
from footage import make_footage
from lane import Clock, Lane, gpu_memory, load_of
from servers import Mps, stop

from framefleet.bench import experiment as exp
from framefleet.bench.clips import LoadClip, load_clips
from framefleet.bench.load import run_load
from framefleet.bench.scheduler import Slot, block_order
from framefleet.bench.stats import percentile
from framefleet.decode.options import DecodeOptions
from framefleet.engine.embedded.checkpoint import bundled_folder
from framefleet.engine.embedded.frame_policy import frame_policy_for
from framefleet.serve.host import visible_gpus

STOP_S = 25
MOST_ERRORS = 0.2
"""Share of failed requests from which an arm is not asked again."""
SAME_PROMPT = 0.02
"""Relative difference of prompt lengths up to which two arms saw as much."""
Clips = dict[str, list[LoadClip]]
Act = Callable[[argparse.Namespace, list[Lane], Clock], Awaitable[None]]


@dataclass(frozen=True)
class Bench:
    """What all trials of a run have in common."""

    asked: argparse.Namespace
    clock: Clock
    workload: Workload
    clips: Clips
    """Set of clips -> clips."""


def parser(about: str | None) -> argparse.ArgumentParser:
    """What every run may be told."""
    asked = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("out", type=Path)
    asked.add_argument("--limit-s", type=float, default=560)
    asked.add_argument("--up-s", type=float, default=170, help="a server that is not up by then is given up")
    asked.add_argument("--gate-s", type=float, default=60, help="of a request of the gate")
    asked.add_argument("--model", default="", help="folder of the model; its weights are random")
    asked.add_argument("--cpu", type=Path, help="an interpreter with vLLM for the CPU")
    asked.add_argument("--gpus", default="0", help="their numbers, or all")
    asked.add_argument("--mps", default="off", help="off or on, for each GPU; the last holds for the rest")
    asked.add_argument("--lanes", type=int, default=1, help="on the CPU")
    asked.add_argument("--cores", choices=["split", "shared"], default="split", help="each GPU its own, or all for all")
    asked.add_argument("--arms", default="", help="their names, comma-separated; all")
    asked.add_argument("--trial-s", type=float, default=40)
    asked.add_argument("--in-flight", type=int, default=24)
    asked.add_argument("--max-tokens", type=int, default=150)
    asked.add_argument("--clips", type=Path, help="folder that has the clip, or is given it")
    asked.add_argument("--kv-gib", type=float, default=Tuning.kv_gib)
    asked.add_argument("--batched-tokens", type=int, default=Tuning.batched_tokens)
    asked.add_argument("--best-api-servers", type=int, default=Tuning.best_api_servers)
    asked.add_argument("--decode-args", default="", help="more flags of the decode service")
    asked.add_argument("--ours-env", default="", help="NAME=VALUE ... of our servers")
    return asked


def workload_of(asked: argparse.Namespace) -> Workload:
    frames = {"min_frames": 16, "max_frames": 16}
    model = str(bundled_folder()) if asked.cpu else asked.model
    return Workload(model, frames, asked.max_tokens, asked.in_flight)


def kinds_of(asked: argparse.Namespace, workload: Workload, lane: Lane, arms: Sequence[ServedArm]) -> list[Kind]:
    """The kinds of server that the arms need."""
    workers = max(1, len(os.sched_getaffinity(0)) // len(gpus_of(asked)))
    env = dict(pair.split("=", 1) for pair in asked.ours_env.split())
    tuning = Tuning(
        kv_gib=asked.kv_gib,
        batched_tokens=asked.batched_tokens,
        best_api_servers=asked.best_api_servers,
        decode_args=("--cpu-workers", str(workers), *asked.decode_args.split()),
        ours_env=env,
    )
    if asked.cpu:
        kinds = cpu_kinds(workload, asked.cpu.absolute(), lane.cores[0], tuning)
    else:
        kinds = gpu_kinds(workload, len(lane.cores), tuning)
    return [kind for kind in kinds if kind.name in {arm.kind for arm in arms}]


def arms_of(asked: argparse.Namespace) -> list[ServedArm]:
    named = asked.arms.split(",") if asked.arms else [arm.name for arm in ARMS]
    return [arm for arm in ARMS if arm.name in named]


def lanes_of(asked: argparse.Namespace, scratch: Path) -> list[Lane]:
    """The GPUs with their cores. Those with MPS share one daemon."""
    cores = sorted(os.sched_getaffinity(0))
    gpus = gpus_of(asked)
    switches = asked.mps.split(",")
    mps = Mps(scratch / "mps") if "on" in switches and not asked.cpu else None
    if mps and not mps.start():
        print("MPS does not start here; the run goes on without it", flush=True)
        mps = None
    lanes = []
    for i, gpu in enumerate(gpus):
        part = slice(len(cores) * i // len(gpus), len(cores) * (i + 1) // len(gpus))
        share = tuple(cores if asked.cores == "shared" else cores[part])
        is_on = switches[min(i, len(switches) - 1)] == "on"
        folder = scratch / ((f"gpu{gpu}" if gpu else f"cpu{i}") + "-mps" * bool(mps and is_on))
        lanes.append(Lane(folder.name, gpu, share, folder, mps if is_on else None))
    return lanes


def gpus_of(asked: argparse.Namespace) -> list[str | None]:
    """One per lane."""
    if asked.cpu:
        return [None] * asked.lanes
    if asked.gpus == "all":
        return [gpu.device for gpu in visible_gpus()]
    return list(asked.gpus.split(","))


def clip_folder(asked: argparse.Namespace, scratch: Path) -> Path:
    """Where the clips are."""
    return asked.clips or scratch / "clips"


def footage_of(asked: argparse.Namespace, workload: Workload, scratch: Path) -> Clips:
    policy: DecodeOptions = msgspec.structs.replace(frame_policy_for(workload.model), **workload.frames)
    folder = clip_folder(asked, scratch)
    folder.mkdir(parents=True, exist_ok=True)
    made = make_footage(folder, policy, is_quick=bool(asked.cpu))
    return {name: load_clips([str(path) for path in paths], "url") for name, paths in made.items()}


async def gated(
    bench: Bench, lane: Lane, arms: Sequence[ServedArm]
) -> tuple[list[ServedArm], dict[str, dict[str, object]]]:
    """Ask each arm a few clips, which also warms it: those that answer all and saw as much as the first, and why."""
    good: list[ServedArm] = []
    seen: dict[str, dict[str, object]] = {}
    for arm in arms:
        if arm.kind not in lane.servers:
            seen[arm.name] = {"is_good": False, "why": f"no server: {lane.failed.get(arm.kind, '')}"}
            continue
        load = load_of(bench.workload, lane.servers[arm.kind].url, arm, num_requests=12, timeout_s=bench.asked.gate_s)
        load = msgspec.structs.replace(load, max_tokens=16, concurrency=12)
        result = await run_load(load, bench.clips[arm.clips])
        errors = sorted({f"{one.error} {one.caption[:300]}" for one in result.measurements if one.error})
        tokens = [one.prompt_tokens for one in result.measurements if not one.error]
        length = percentile(tokens, 0.5) if tokens else 0.0
        first = next((value["prompt_tokens"] for value in seen.values() if value["is_good"]), length)
        is_same = length > 0 and abs(length - float(str(first))) <= SAME_PROMPT * length
        why = "; ".join(errors) or ("" if is_same else f"{length:.0f} prompt tokens, not {first}")
        seen[arm.name] = {"is_good": not why, "why": why, "prompt_tokens": length}
        good += [] if why else [arm]
        bench.clock.say(f"{lane.name} {arm.name}: {why or 'good'}, {length:.0f} prompt tokens")
    return good, seen


def versions() -> dict[str, str]:
    """Of what may change the answer."""
    found = {"python": platform.python_version()}
    for name in ("vllm", "torch", "transformers", "PyNvVideoCodec", "av", "opencv-python-headless"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def slots_of(experiment: exp.Experiment) -> Iterator[Slot]:
    """Every trial of every block in its turn."""
    for block in range(experiment.max_blocks):
        for position, name in enumerate(block_order(experiment, block)):
            yield Slot(name, block, position)


def line_of(trial: exp.Trial) -> str:
    """One trial in words."""
    gauges, ttft = trial.gauges, trial.phases_s.get("ttft", {})
    rate = exp.metric_value(trial, "requests_per_s") or 0.0
    seen = {"cores": "cpu/lane", "gpu": "gpu/busy", "nvdec": "gpu/nvdec", "kv": "engine/kv_use"}
    shown = " ".join(f"{word} {gauges[name]:.2f}" for word, name in seen.items() if name in gauges)
    return (
        f"{trial.arm}: {rate:.2f} captions/s, ttft p50 {ttft.get('p50', 0):.1f} p95 {ttft.get('p95', 0):.1f} s, "
        f"{shown}, errors {trial.error_share:.2f}"
    )


def write_facts(out: Path, lanes: Sequence[Lane], seen: dict[str, object], asked: argparse.Namespace) -> None:
    facts = {
        "commit": os.environ.get("COMMIT", ""),  # of code that came without its history; else the report asks git
        "versions": versions(),
        "machine": f"{', '.join(gpu.name for gpu in visible_gpus()) or 'no GPU'}; {os.cpu_count()} cores",
        "arguments": {name: str(value) for name, value in vars(asked).items()},
        "lanes": {
            lane.name: {
                "gpu": lane.gpu,
                "mps": lane.mps is not None,
                "cores": len(lane.cores),
                "commands": lane.commands,
                "failed": lane.failed,
                "servers": {kind: server.facts() for kind, server in lane.servers.items()},
                "gpu_bytes": gpu_memory(lane),
            }
            for lane in lanes
        },
        "gate": seen,
    }
    (out / "facts.json").write_text(json.dumps(facts, indent=1))


def keep_logs(out: Path, scratch: Path) -> None:
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        for log in sorted(scratch.glob("*/*.log")):
            archive.add(log, log.name)


@dataclass(frozen=True)
class Standing:
    """Servers that are up."""

    bench: Bench
    lanes: list[Lane]
    good: dict[str, list[ServedArm]]
    """Lane -> arms that passed the gate there."""


async def stand(asked: argparse.Namespace, lanes: list[Lane], arms: Sequence[ServedArm], clock: Clock) -> Standing:
    """Start the servers of every lane, make the clips meanwhile, wait, and ask each arm a few clips."""
    workload = workload_of(asked)
    for lane in lanes:
        lane.start(kinds_of(asked, workload, lane, arms))
    clock.say(f"{sum(len(lane.servers) for lane in lanes)} servers started")
    clips = await asyncio.to_thread(footage_of, asked, workload, lanes[0].folder.parent)
    clock.say("clips are made")
    await asyncio.gather(*(lane.until_up(asked.up_s) for lane in lanes))
    clock.say("up: " + ", ".join(f"{lane.name} {' '.join(lane.servers)}" for lane in lanes))
    bench = Bench(asked, clock, workload, clips)
    gates = await asyncio.gather(*(gated(bench, lane, arms) for lane in lanes))
    write_facts(asked.out, lanes, {lane.name: said for lane, (_, said) in zip(lanes, gates, strict=True)}, asked)
    return Standing(bench, lanes, {lane.name: good for lane, (good, _) in zip(lanes, gates, strict=True)})


def end_servers(lanes: Sequence[Lane]) -> None:
    """Of these lanes, their services too."""
    stop([server for lane in lanes for server in (*lane.servers.values(), *lane.services.values())])


def run_within(asked: argparse.Namespace, act: Act) -> int:
    """Act on lanes, and end everything that was started, whatever happens, before the limit."""
    clock = Clock(asked.limit_s)
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="e2e", dir="/tmp", ignore_cleanup_errors=True) as folder:
        lanes = lanes_of(asked, Path(folder))
        try:
            asyncio.run(asyncio.wait_for(act(asked, lanes, clock), asked.limit_s - STOP_S))
        except TimeoutError:
            clock.say("the time is over")
        finally:
            end_servers(lanes)
            for mps in {lane.mps for lane in lanes if lane.mps}:
                mps.stop()
            keep_logs(asked.out, Path(folder))
    clock.say("done")
    return 0
