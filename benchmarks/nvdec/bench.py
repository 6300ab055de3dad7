"""NVDEC decoding, ours beside the peers: 16 uniformly spaced RGB frames of each clip, clips/s, CPU, VRAM.

    python benchmarks/nvdec/bench.py --clips DIR --out DIR [--seconds 3] [--budget-s 480] [--only workload:arm,...]

Before a workload is timed, its frames from our reader are compared with PyAV's (rows equal, mean difference < 2
levels); one that fails is not timed. The arms of `PLANS` run in turn (A B .. B A), each trial in a process of its own,
and every trial is written as it ends. GPU memory, NVDEC utilisation and the machine's CPU time are sampled meanwhile.

OUT/trials.json of the same machine, versions, commit, clips and settings is gone on with, so that several short calls
make one run; another one's is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from arms import ARMS, IN_FLIGHT, LADDER_GIB, LAST, NUM_FRAMES, SIZE, Ours, opencv, pynv_simple

COMPARED = [
    # (workload, arms): there and back, so that a drift of the machine falls on all of them
    ("hevc_1080p_10s", ["ours_nvdec", "ours_nvdec_14", "ours_both", "pynv_simple_16", "torchcodec_cuda_8"]),
    ("hevc_4k_10s", ["ours_nvdec", "ours_both", "pynv_simple_16", "torchcodec_cuda_8"]),
    ("h264_1080p_20s", ["ours_nvdec", "ours_both", "torchcodec_cuda_8", "pynv_simple_16"]),
    ("h264_1080p_ip_10s", ["ours_both", "ours_nvdec", "torchcodec_cuda_8", "pynv_simple_8"]),
    ("h264_720p_5min", ["ours_nvdec", "ours_both", "pynv_simple_16", "torchcodec_cuda_8"]),
]
ONCE = [
    ("av1_1080p_10s", ["ours_both", "pyav_16p", "opencv_16p", "torchcodec_16p"]),
    ("h264_1080p_20s", ["opencv_16p", "torchcodec_16p", "dali_8", "pynv_simple_2", "pynv_simple_4", "pynv_simple_8"]),
    ("hevc_1080p_10s", ["opencv_16p", "torchcodec_16p", "dali_8", "deepstream_pool_8"]),
    ("hevc_4k_10s", ["opencv_16p", "torchcodec_16p", "dali_8", "deepstream_pool_8"]),
    ("h264_1080p_20s", [f"ours_budget_{g}" for g in LADDER_GIB]),
    ("h264_1080p_ip_10s", ["opencv_16p", "torchcodec_16p", "dali_8", "pynv_simple_16"]),
    ("h264_720p_5min", ["opencv_16p", "torchcodec_16p", "dali_8"]),
    ("vp9_1080p_10s", ["ours_nvdec", "ours_both", "torchcodec_cuda_8", "pynv_simple_8", "opencv_16p"]),
    ("h264_1080p_20s", ["deepstream_pool_8", "dali_16"]),
    ("h264_1080p_ip_10s", ["deepstream_pool_8"]),
    ("h264_720p_5min", ["deepstream_pool_8"]),
    ("h264_1080p_20s", ["pyav_16p", "deepstream_ours_8", "ours_full_size", "ours_nvdec_7"]),
    ("hevc_1080p_10s", ["deepstream_ours_8"]),
    ("hevc_4k_10s", ["deepstream_ours_8"]),
]
PLANS = {"compared": [(workload, [*arms, *arms[::-1]]) for workload, arms in COMPARED], "once": ONCE}
PLANS["all"] = [*PLANS["compared"], *ONCE]
"""What matters most comes first, since the time may run out."""
GPU = int(os.environ.get("CUDA_VISIBLE_DEVICES") or 0)
"""The one whose memory and NVDEC are watched."""
WARM_S = 30
"""For the first clip of every worker."""
RAMP_S = 1.5
"""After the common start, before the window: until the workers are out of step."""
STARTED_S = time.monotonic()
SLOW = {("h264_720p_5min", "opencv_16p"), ("h264_720p_5min", "torchcodec_16p"), ("hevc_4k_10s", "opencv_16p")}
"""One clip a process, no warm-up: a clip takes longer than a whole trial of the others."""


class Closed:
    """A closed loop of `count` workers. The rate is that of a window in which all of them are busy.

    A clip counts by the share of its time that lies in the window, so that neither those under way at its ends nor
    workers in lockstep distort it; the load is kept up until every clip that touches the window is done.
    """

    def __init__(self, make_worker, count: int, path: str, window_s: float) -> None:
        self.make_worker, self.count, self.path, self.window_s = make_worker, count, path, window_s
        self.barrier, self.lock = threading.Barrier(count + 1), threading.Lock()
        self.clips, self.failures, self.past_window = [], [], 0

    def run(self) -> dict:
        for _ in range(self.count):
            threading.Thread(target=self._work, daemon=True).start()
        try:
            self.barrier.wait(WARM_S)
            self.from_s = time.monotonic() + RAMP_S
            self.to_s = self.from_s + self.window_s
            self.barrier.wait(5)
        except threading.BrokenBarrierError:
            return {"clips": 0, "seconds": 0, "failures": self.failures[:2] or ["warm-up took too long"]}
        while self.past_window < self.count and not self.failures and time.monotonic() < self.to_s + 15:
            time.sleep(0.02)
        clips, window = round(self._clips_in_window(), 2), (self.from_s, self.to_s)
        ready_s = round(self.from_s - RAMP_S - STARTED_S, 1)
        facts = {"clips": clips, "seconds": self.window_s, "ready_s": ready_s, "window": window}
        return facts | {"failures": self.failures[:2]}

    def _clips_in_window(self) -> float:
        return sum(max(0.0, min(end, self.to_s) - max(begin, self.from_s)) / (end - begin) for begin, end in self.clips)

    def _work(self) -> None:
        try:
            clip = self.make_worker()
            clip(self.path)
            self.barrier.wait(WARM_S)
            self.barrier.wait(5)
            is_past = False
            while True:
                begin = time.monotonic()
                got = clip(self.path)
                end = time.monotonic()
                with self.lock:
                    self.clips += [(begin, end)] * (got // NUM_FRAMES)
                    self.past_window += end > self.to_s and not is_past
                is_past = is_past or end > self.to_s
        except BaseException as error:  # noqa: BLE001 - a trial reports whatever happened
            self.failures.append(repr(error)[:300])
            self.barrier.abort()


def _pool_clip(job: tuple[str, str]) -> int:
    arm, path = job
    if arm not in _WORKERS:
        _WORKERS[arm] = ARMS[arm].open(1)()
    return _WORKERS[arm](path)


_WORKERS: dict = {}


def run_processes(arm: str, path: str, seconds: float, *, is_slow: bool) -> dict:
    import multiprocessing

    count = ARMS[arm].count
    ARMS[arm].open(1)  # libraries that its workers must be started with
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        if not is_slow:
            pool.map(_pool_clip, [(arm, path)] * count, chunksize=1)
        start, clips = time.monotonic(), 0
        while time.monotonic() - start < seconds:
            jobs = [(arm, path)] * (count if is_slow else 2 * count)
            clips += sum(got == NUM_FRAMES for got in pool.map(_pool_clip, jobs, chunksize=1))
        took = time.monotonic() - start
    return {"clips": clips, "seconds": took, "window": (start, start + took), "failures": []}


def run_arm(name: str, path: str, seconds: float, *, is_slow: bool) -> dict:
    arm = ARMS[name]
    if arm.kind == "processes":
        return run_processes(name, path, seconds, is_slow=is_slow)
    facts = Closed(arm.open(arm.count), arm.count, path, seconds).run()
    return facts | (LAST[0].facts() if LAST else {})


def cpu_seconds() -> float:
    """Spent by the cores that this process may use, whoever spent them."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    return sum(sum(map(int, fields[1:4])) for fields in lines if fields[0] in mine) / os.sysconf("SC_CLK_TCK")


class CardWatch:
    """Peak memory and NVDEC utilisation of the card, and CPU seconds, sampled every 50 ms."""

    def __enter__(self) -> CardWatch:
        try:
            import pynvml

            pynvml.nvmlInit()
            self.nvml, self.card = pynvml, pynvml.nvmlDeviceGetHandleByIndex(GPU)
            self.base = self._used()
        except Exception:  # noqa: BLE001 - the CPU mode of this script has no card
            self.nvml, self.base = None, 0
        self.decoder, self.cpu, self.memory = [], [], [(0.0, self.base)]
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._sample)
        self.thread.start()
        return self

    def _used(self) -> int:
        return self.nvml.nvmlDeviceGetMemoryInfo(self.card).used

    def _sample(self) -> None:
        while not self.stop.wait(0.05):
            self.cpu.append((time.monotonic(), cpu_seconds()))
            if self.nvml:
                self.memory.append((time.monotonic(), self._used()))
                busy = self.nvml.nvmlDeviceGetDecoderUtilization(self.card)[0]
                self.decoder.append((time.monotonic(), busy))

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def facts(self, window: tuple[float, float]) -> dict:
        """Of the window; the peak of memory also of the whole trial, and when it came, from the window's start on.

        CPU is that of all cores it may use, its own included.
        """
        at_s, peak = max(self.memory, key=lambda one: one[1])
        steady = max((used for at, used in self.memory if window[0] <= at <= window[1]), default=self.base)
        cpu = [one for one in self.cpu if window[0] <= one[0] <= window[1]] or self.cpu[-2:]
        busy = [one[1] for one in self.decoder if window[0] <= one[0] <= window[1]]
        return {
            "vram_peak_mib": (peak - self.base) >> 20,
            "vram_peak_at_s": round(at_s - window[0], 1) if at_s else None,
            "vram_window_mib": (steady - self.base) >> 20,
            "nvdec_percent": round(float(np.mean(busy)), 1) if busy else None,
            "cpu_cores": round((cpu[-1][1] - cpu[0][1]) / max(cpu[-1][0] - cpu[0][0], 1e-3), 2),
        }


def trial(arm: str, workload: str, path: str, seconds: float) -> dict:
    is_slow = (workload, arm) in SLOW
    command = [sys.executable, __file__, "--one", arm, "--clip", path, "--seconds", str(0.1 if is_slow else seconds)]
    command += ["--slow"] * is_slow
    with CardWatch() as watch:
        try:
            limit_s = 75 if is_slow else 60
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
            lines = done.stdout.strip().splitlines()
            facts = json.loads(lines[-1]) if lines else {"failures": [done.stderr[-300:]]}
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            facts = {"failures": [f"{type(error).__name__}"]}
    rate = facts["clips"] / facts["seconds"] if facts.get("clips") else 0.0
    seen = watch.facts(facts.pop("window", (0, 0)))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"arm": arm, "workload": workload, "clips_per_s": round(rate, 2), "at": at, **facts, **seen}


def check(name: str, path: str) -> dict[str, dict]:
    """Our frames of a workload on NVDEC beside PyAV's on one lane and spread over several."""
    import framefleet

    ours, report = reader_of_checks(), {}
    cpu = framefleet.decode(path, num_frames=NUM_FRAMES, size=SIZE, backend="pyav")
    for prefer in ("throughput", "latency"):
        gpu = ours.decode(path, prefer=prefer)
        same = np.array_equal(gpu.indices, cpu.indices) and np.array_equal(gpu.pts_s, cpu.pts_s)
        error = float(np.abs(gpu.data.astype(int) - cpu.data).mean()) if same else None
        report[f"{name} {prefer}"] = {
            "equal": bool(same and error < 2), "mean_abs_difference": error, "backend": gpu.stats.backend,
            "refusals": gpu.stats.refusals, "walked": gpu.stats.frames_walked, "missing": gpu.stats.num_missing,
        }  # fmt: skip
        print(json.dumps({f"{name} {prefer}": report[f"{name} {prefer}"]}), flush=True)
    return report


@cache
def reader_of_checks() -> Ours:
    return Ours(lanes=4)


def latency(path: str) -> dict:
    """Seconds for one clip, 32 frames, alone on the machine; the median of five."""
    import framefleet

    reader = Ours()
    peers = cache(lambda open_: open_(1)())
    ways = {
        "ours, one lane": lambda: reader.decode(path, num_frames=32, backend="pynvvideocodec"),
        "ours, spread": lambda: reader.decode(path, num_frames=32, backend="pynvvideocodec", prefer="latency"),
        "pynv_simple": lambda: peers(pynv_simple)(path, 32),
        "opencv": lambda: peers(opencv)(path, 32),
        "ours, CPU, 16 threads": lambda: framefleet.decode(
            path, num_frames=32, size=SIZE, backend="pyav", num_ffmpeg_threads=16
        ),
    }
    out = {}
    for name, way in ways.items():
        took = []
        for _ in range(2 if name == "opencv" else 5):
            start = time.monotonic()
            try:
                way()
            except Exception as error:  # noqa: BLE001
                out[name] = repr(error)[:200]
                break
            took.append(time.monotonic() - start)
        if took:
            out[name] = round(sorted(took)[len(took) // 2], 4)
    return out


def machine() -> dict:
    def asked(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            return ""

    from importlib.metadata import PackageNotFoundError, version

    def version_of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return ""

    names = ("PyNvVideoCodec", "torch", "triton", "av", "torchcodec", "nvidia-deepstream-videodecode-cu13")
    return {
        "card": asked("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version_of(name) for name in names} | {"python": sys.version.split()[0]},
        "commit": os.environ.get("COMMIT", ""),
    }


def begun(out: Path, paths: dict[str, str], seconds: float) -> dict:
    """The run in `out`, or a new one. Only like trials stand beside each other."""
    sizes = {name: Path(paths[name]).stat().st_size for name, _ in PLANS["all"] if name in paths}
    key = {"machine": machine(), "settings": {"seconds": seconds, "in_flight": IN_FLIGHT, "clip_bytes": sizes}}
    kept = out / "trials.json"
    if not kept.exists():
        return key | {"check": {}, "trials": []}
    facts = json.loads(kept.read_text())
    if different := [name for name in key if facts[name] != key[name]]:
        sys.exit(f"{kept} is of another {' and '.join(different)}; give another --out")
    return facts


def still_to_run(plan: list[tuple[str, str]], trials: list[dict]) -> list[tuple[str, str]]:
    """The plan without what has been run, each trial once."""
    done = Counter((trial["workload"], trial["arm"]) for trial in trials)
    left = []
    for one in plan:
        if done[one]:
            done[one] -= 1
        else:
            left.append(one)
    return left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--budget-s", type=float, default=480)
    parser.add_argument("--only", default="", help="workload:arm,... in this order, in place of a plan")
    parser.add_argument("--plan", choices=sorted(PLANS), default="all")
    parser.add_argument("--no-check", action="store_true", help="the outputs were compared before, on these clips")
    parser.add_argument("--one")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--clip")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run_arm(asked.one, asked.clip, asked.seconds, is_slow=asked.slow)), flush=True)
        os._exit(0)
    started = time.monotonic()
    paths = {p.stem: str(p) for p in sorted(asked.clips.iterdir()) if p.suffix in (".mp4", ".mkv", ".webm")}
    asked.out.mkdir(parents=True, exist_ok=True)
    facts = begun(asked.out, paths, asked.seconds)

    def keep() -> None:
        (asked.out / "trials.json").write_text(json.dumps(facts, indent=1))

    def is_sound(workload: str) -> bool:
        """Whether its frames are right, looked at before it is timed; a 5 minute clip is also decoded alone."""
        names = [f"{workload} {prefer}" for prefer in ("throughput", "latency")]
        if not asked.no_check and names[0] not in facts["check"]:
            facts["check"] |= check(workload, paths[workload])
            if "5min" in workload:
                facts["latency_s"] = {workload: latency(paths[workload])}
                print(json.dumps({"latency_s": facts["latency_s"]}), flush=True)
            keep()
        return asked.no_check or all(facts["check"][name]["equal"] for name in names)

    named = [tuple(one.split(":")) for one in asked.only.split(",") if one]
    plan = named or still_to_run([(w, a) for w, arms in PLANS[asked.plan] for a in arms], facts["trials"])
    facts["not_run"] = []
    for workload, arm in plan:
        if workload not in paths:
            continue
        if time.monotonic() - started > asked.budget_s:
            facts["not_run"].append(f"{workload} {arm}")
            continue
        if not is_sound(workload):
            continue
        facts["trials"].append(trial(arm, workload, paths[workload], asked.seconds))
        print(json.dumps(facts["trials"][-1]), flush=True)
        keep()
    keep()
    print(json.dumps({"took_s": round(time.monotonic() - started, 1)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
