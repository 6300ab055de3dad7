"""NVDEC decoding, ours beside the peers: 16 uniformly spaced RGB frames of each clip, clips/s, CPU, VRAM.

    python benchmarks/nvdec/bench.py --clips DIR --out DIR [--seconds 4] [--rounds 2] [--arms a,b] [--check-only]

First every workload's frames from our NVDEC backend are compared with PyAV's (rows equal, mean difference < 2
levels); a workload that fails is not timed. Then the arms run in turn (A B .. B A), each trial in a process of its
own, and every trial is written as it ends. GPU memory and NVDEC utilisation are sampled by NVML during the trial.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

NUM_FRAMES = 16
SIZE = (1024, 576)
WARM_CLIPS_PER_WORKER = 1

ARMS = {
    "opencv_16p": ("opencv", 16),
    "pyav_16p": ("pyav", 16),
    "pynv_simple_2": ("pynv_simple", 2),
    "pynv_simple_4": ("pynv_simple", 4),
    "pynv_simple_8": ("pynv_simple", 8),
    "pynv_simple_16": ("pynv_simple", 16),
    "ours_7": ("ours", 7),
    "ours_14": ("ours", 14),
    "ours_21": ("ours", 21),
    "ours_42": ("ours", 42),
    "ours_21_full_size": ("ours_full_size", 21),
    "ours_21_one_process": ("ours_one_process", 21),
}


def rows_of(num_frames: int) -> list[int]:
    return np.linspace(0, num_frames - 1, min(NUM_FRAMES, num_frames)).round().astype(int).tolist()


def opencv_clip(path: str) -> int:
    """As vLLM's opencv loader: grab through the stream, retrieve the wanted frames."""
    import cv2

    cv2.setNumThreads(1)
    capture = cv2.VideoCapture(path)
    rows = rows_of(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    wanted, got = set(rows), 0
    for index in range(rows[-1] + 1):
        if not capture.grab():
            break
        if index in wanted:
            ok, frame = capture.retrieve()
            got += ok and cv2.cvtColor(frame, cv2.COLOR_BGR2RGB) is not None
    return got


def pyav_clip(path: str) -> int:
    import framefleet

    return len(framefleet.decode(path, num_frames=NUM_FRAMES, size=SIZE, backend="pyav"))


class PyNvSimple:
    """As vLLM's pynvvideocodec loader: a kept SimpleDecoder, reconfigured; full-size RGB to pinned memory."""

    def __init__(self) -> None:
        import torch

        self.stream, self.decoder = torch.cuda.Stream(), None

    def clip(self, path: str) -> int:
        import PyNvVideoCodec as nvc  # noqa: N813
        import torch

        with torch.cuda.stream(self.stream):
            if self.decoder is None:
                self.decoder = nvc.SimpleDecoder(
                    path,
                    gpu_id=0,
                    cuda_stream=self.stream.cuda_stream,
                    use_device_memory=True,
                    output_color_type=nvc.OutputColorType.RGB,
                )
            else:
                self.decoder.reconfigure_decoder(path)
            frames = self.decoder.get_batch_frames_by_index(rows_of(len(self.decoder)))
            stacked = torch.stack([torch.from_dlpack(f) for f in frames]).contiguous()
            host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
            host.copy_(stacked, non_blocking=True)
            self.stream.synchronize()
        return len(host)


class Ours:
    """framefleet's backend. Scanning and packing in `packers` worker processes (0: in this one); frames pinned."""

    def __init__(self, lanes: int, size: tuple[int, int] | None, packers: int = 0) -> None:
        from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
        from framefleet.decode.options import DecodeOptions
        from framefleet.decode.pool import DecodePool
        from framefleet.units import GIB
        from framefleet.vram.budget import MemoryBudget

        self.options = DecodeOptions(num_frames=NUM_FRAMES, size=size)
        budget_gib = float(os.environ.get("BUDGET_GIB", "8"))
        self.backend = PyNvVideoCodecBackend(
            lanes=lanes, budget=MemoryBudget(int(budget_gib * GIB), name="NVDEC memory")
        )
        self.pool = DecodePool(workers=packers, threads=1) if packers else None
        if self.pool:
            self.pool.open()

    def clip(self, path: str, **changes: object) -> int:
        return len(self.decode(path, **changes))

    def decode(self, path: str, **changes: object):
        import msgspec

        options = msgspec.structs.replace(self.options, **changes)
        if self.pool:
            return self.backend.decode_parcel(self.pool.run("pack", path, options), options)
        from framefleet.decode.session import make_plan, scan_timed
        from framefleet.media.source import VideoSource

        clip, _ = scan_timed(VideoSource.of(path), options)
        if reason := self.backend.refuse(clip.info, clip.index):
            raise SystemExit(f"refused {path}: {reason}")
        return self.backend.decode(clip, make_plan(clip, options), options)


def cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def run_threads(make_worker, count: int, path: str, seconds: float) -> dict:
    """`count` threads, each with a worker of its own; warm clips are not counted."""
    done, failures, lock = [0], [], threading.Lock()
    barrier, times = threading.Barrier(count), {}

    def work() -> None:
        clip = make_worker()
        try:
            for _ in range(WARM_CLIPS_PER_WORKER):
                clip(path)
        except BaseException as error:  # noqa: BLE001 - a trial reports whatever happened
            failures.append(repr(error)[:300])
            barrier.abort()
            return
        try:
            barrier.wait(120)
        except threading.BrokenBarrierError:
            return
        start = times.setdefault("start", time.monotonic())
        times.setdefault("cpu", cpu_seconds())
        while time.monotonic() - start < seconds:
            try:
                got = clip(path)
            except BaseException as error:  # noqa: BLE001
                failures.append(repr(error)[:300])
                return
            with lock:
                done[0] += got == NUM_FRAMES
        times["end"] = time.monotonic()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = times.get("end", 0) - times.get("start", 0)
    return {"clips": done[0], "seconds": took, "cpu_s": cpu_seconds() - times.get("cpu", 0), "failures": failures[:2]}


def _pool_clip(job: tuple[str, str]) -> int:
    return {"opencv": opencv_clip, "pyav": pyav_clip}[job[0]](job[1])


def run_processes(kind: str, count: int, path: str, seconds: float) -> dict:
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(count) as pool:
        pool.map(_pool_clip, [(kind, path)] * count, chunksize=1)
        start, clips, before = time.monotonic(), 0, cpu_seconds()
        while time.monotonic() - start < seconds:
            clips += sum(got == NUM_FRAMES for got in pool.map(_pool_clip, [(kind, path)] * (2 * count), chunksize=1))
        took = time.monotonic() - start
    pool.join()
    return {"clips": clips, "seconds": took, "cpu_s": cpu_seconds() - before, "failures": []}


def run_arm(arm: str, path: str, seconds: float) -> dict:
    kind, count = ARMS[arm]
    if kind in ("opencv", "pyav"):
        return run_processes(kind, count, path, seconds)
    if kind == "pynv_simple":
        return run_threads(lambda: PyNvSimple().clip, count, path, seconds)
    ours = Ours(count, None if kind == "ours_full_size" else SIZE, 0 if kind == "ours_one_process" else 12)
    return run_threads(lambda: ours.clip, count, path, seconds)


class GpuWatch:
    """Peak memory and NVDEC utilisation of the card, sampled every 50 ms."""

    def __enter__(self) -> GpuWatch:
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.card = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.base = pynvml.nvmlDeviceGetMemoryInfo(self.card).used
        self.peak, self.decoder = self.base, []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._sample)
        self.thread.start()
        return self

    def _sample(self) -> None:
        while not self.stop.wait(0.05):
            self.peak = max(self.peak, self.nvml.nvmlDeviceGetMemoryInfo(self.card).used)
            self.decoder.append(self.nvml.nvmlDeviceGetDecoderUtilization(self.card)[0])

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def facts(self) -> dict:
        busy = sorted(self.decoder)[len(self.decoder) // 2 :]
        return {
            "vram_peak_mib": (self.peak - self.base) >> 20,
            "nvdec_percent_upper_half_mean": round(float(np.mean(busy)), 1) if busy else None,
        }


def trial(arm: str, workload: str, path: str, seconds: float) -> dict:
    command = [sys.executable, __file__, "--one", arm, "--clip", path, "--seconds", str(seconds)]
    with GpuWatch() as watch:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 6 + 30, check=False)
            lines = done.stdout.strip().splitlines()
            facts = json.loads(lines[-1]) if lines else {"failures": [done.stderr[-300:]]}
        except subprocess.TimeoutExpired:
            facts = {"failures": ["timeout"]}
    rate = facts["clips"] / facts["seconds"] if facts.get("clips") else 0.0
    return {"arm": arm, "workload": workload, "clips_per_s": round(rate, 2), **facts, **watch.facts()}


def check(paths: dict[str, str]) -> dict[str, dict]:
    import framefleet

    ours, report = Ours(4, SIZE), {}
    for name, path in paths.items():
        for prefer in ("throughput", "latency"):
            gpu = ours.decode(path, prefer=prefer)
            cpu = framefleet.decode(path, num_frames=NUM_FRAMES, size=SIZE, backend="pyav")
            same = np.array_equal(gpu.indices, cpu.indices)
            error = float(np.abs(gpu.data.astype(int) - cpu.data).mean()) if same else None
            report[f"{name} {prefer}"] = {
                "equal": bool(same and error < 2), "mean_abs_difference": error, "walked": gpu.stats.frames_walked,
                "missing": gpu.stats.num_missing, "rows": gpu.indices.tolist()[:4],
            }  # fmt: skip
            print(json.dumps({name: report[f"{name} {prefer}"], "prefer": prefer}), flush=True)
    return report


def latency(path: str) -> dict:
    """One clip, 32 frames, alone on the card: on one lane and spread over all."""
    out = {}
    ours = Ours(21, SIZE, 4)
    for prefer in ("throughput", "latency"):
        ours.clip(path, prefer=prefer, num_frames=32)
        took = []
        for _ in range(5):
            start = time.monotonic()
            ours.clip(path, prefer=prefer, num_frames=32)
            took.append(time.monotonic() - start)
        out[prefer] = round(sorted(took)[2], 4)
    return out


def machine() -> dict:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    import av
    import PyNvVideoCodec
    import torch

    return {
        "card": subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip(),
        "cores": os.cpu_count(),
        "versions": {
            "pynvvideocodec": PyNvVideoCodec.__version__, "torch": torch.__version__, "av": av.__version__,
            "python": sys.version.split()[0],
        },
        "commit": os.environ.get("COMMIT", ""),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget-s", type=float, default=400)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--workloads", default="", help="names, comma-separated; default: all clips found")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--one")
    parser.add_argument("--clip")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run_arm(asked.one, asked.clip, asked.seconds)), flush=True)
        os._exit(0)
    started = time.monotonic()
    paths = {p.stem: str(p) for p in sorted(asked.clips.iterdir()) if p.suffix in (".mp4", ".mkv", ".webm")}
    paths = {name: path for name, path in paths.items() if not asked.workloads or name in asked.workloads.split(",")}
    asked.out.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine(), "check": check(paths), "trials": []}
    sound = [name for name in paths if all(r["equal"] for k, r in facts["check"].items() if k.split()[0] == name)]
    arms = asked.arms.split(",")
    for turn in range(0 if asked.check_only else asked.rounds):
        for workload in sound:
            for arm in arms if turn % 2 == 0 else arms[::-1]:
                if time.monotonic() - started > asked.budget_s:
                    break
                facts["trials"].append(trial(arm, workload, paths[workload], asked.seconds))
                print(json.dumps(facts["trials"][-1]), flush=True)
                (asked.out / "trials.json").write_text(json.dumps(facts, indent=1))
    facts["latency_s"] = {name: latency(paths[name]) for name in sound if "5min" in name}
    (asked.out / "trials.json").write_text(json.dumps(facts, indent=1))
    print(json.dumps({"latency_s": facts["latency_s"], "took_s": round(time.monotonic() - started, 1)}))


if __name__ == "__main__":
    main()
