"""The `deepstream` backend on a GPU: equal frames, a hang that costs its clip only, clips/s by pool size; peers beside.

    python benchmarks/nvdec/deepstream_check.py --clips DIR --out DIR [--corpus DIR] [--only equal,odd,hang,rates,arms]
    python benchmarks/nvdec/deepstream_check.py ... --fake   # the software pool, to try the script without a GPU

1. Every clip of --clips and every corpus file that the backend takes: rows equal to PyAV's, mean difference in levels.
2. Streams tagged and coded in ways that the backend refuses, or that its converter may get wrong, decoded all
   the same: what it would give.
3. The pool's process stopped (SIGSTOP) under a clip: the deadline must end it, and the next clip be whole.
4. Clips/s of each clip at each pool size, then the arms of `peers.py` named by --arms, each in a process of its own;
   `torchcodec_equal` among them compares our torchcodec backend on CUDA with PyAV.

Writes OUT/deepstream.json after each step; one JSON line per fact.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "tests")]

from framefleet.decode.backends.deepstream import POOL, DeepStreamBackend  # noqa: E402
from framefleet.decode.backends.pyav import PyAvBackend  # noqa: E402
from framefleet.decode.options import DecodeOptions  # noqa: E402
from framefleet.decode.session import make_plan, scan_timed  # noqa: E402
from framefleet.errors import DecodeTimeout, FramefleetError  # noqa: E402
from framefleet.media.source import VideoSource  # noqa: E402

FAKE = "framefleet.decode.deepstream.fake:FakePool"
SIZE = (1024, 576)
ODD = {
    "bt601": {"matrix": 6},
    "bt709": {"matrix": 1, "size": (1280, 720)},
    "untagged_sd": {},
    "untagged_hd": {"size": (1280, 720)},
    "full_range": {"pix_fmt": "yuvj420p", "matrix": 6},
    "crop_322x178": {"size": (322, 178)},
    "hevc": {"codec": "libx265"},
    "hevc_main10": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "av1": {"codec": "libsvtav1", "options": {"preset": "8"}},
    "vp9": {"codec": "libvpx-vp9"},
}


def planned(path: str, **asked):
    options = DecodeOptions(**{"num_frames": 16, "pool_size": 4, "timeout_s": 20, **asked})
    clip, _ = scan_timed(VideoSource.of(path), options)
    return clip, make_plan(clip, options), options


def compare(backend: DeepStreamBackend, path: str, **asked) -> dict:
    try:
        clip, plan, options = planned(path, **asked)
        refusal = backend.refuse(clip.info, clip.index)
        start = time.monotonic()
        gpu = backend.decode(clip, plan, options)
        took = time.monotonic() - start
        cpu = PyAvBackend().decode(clip, plan, options)
    except FramefleetError as error:
        return {"clip": Path(path).name, "error": str(error)[:300]}
    same = np.array_equal(gpu.indices, cpu.indices)
    off = np.abs(gpu.data.astype(int) - cpu.data)
    return {
        "clip": Path(path).name, "refused": refusal, "equal": bool(same and off.mean() < 2), "rows_same": bool(same),
        "mean": round(float(off.mean()), 3), "p999": float(np.percentile(off, 99.9)),
        "channel_bias": np.round((gpu.data.astype(int) - cpu.data).mean(axis=(0, 1, 2)), 2).tolist(),
        "walked": gpu.stats.frames_walked, "s": round(took, 3),
    }  # fmt: skip


def odd_clips(folder: Path) -> list[str]:
    from barcode_clips import write_clip

    paths = []
    for name, options in ODD.items():
        suffix = "webm" if name == "vp9" else "mp4"
        try:
            paths.append(str(write_clip(folder / f"{name}.{suffix}", 24, **options)))
        except Exception as error:  # noqa: BLE001 - an encoder that this FFmpeg lacks
            tell({"clip": name, "error": f"not encoded: {error}"})
    return paths


def hang(backend: DeepStreamBackend, path: str) -> dict:
    """Stop the warm process, decode with 3 s; then decode again."""
    backend.decode(*planned(path))
    pid = backend._hosts["shared"].pid  # noqa: SLF001
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    try:
        backend.decode(*planned(path, timeout_s=3.0))
        outcome = "frames from a stopped process"
    except DecodeTimeout as error:
        outcome = str(error)
    took = time.monotonic() - start
    start = time.monotonic()
    frames = backend.decode(*planned(path))
    is_gone = not Path(f"/proc/{pid}").exists()
    return {
        "hang": outcome, "ended_after_s": round(took, 2), "process_gone": is_gone, "frames_after": len(frames),
        "restart_and_decode_s": round(time.monotonic() - start, 2),
    }  # fmt: skip


class Vram:
    """Highest use of the card while the block lasts, above what it was before; None without NVML."""

    def __enter__(self) -> Vram:
        self.peak_mib, self._stop = None, threading.Event()
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # noqa: BLE001 - no NVML, no figure
            return self
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._used = lambda: pynvml.nvmlDeviceGetMemoryInfo(card).used >> 20
        self._base = self._used()
        threading.Thread(target=self._sample, daemon=True).start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.05):
            self.peak_mib = max(self.peak_mib or 0, self._used() - self._base)

    def __exit__(self, *_: object) -> None:
        self._stop.set()


def rates(pool: str, paths: list[str], size: int, seconds: float) -> dict:
    """Every clip in turn on one pool of `size` workers; scanning, packing and all."""
    per_clip = {}
    with Vram() as vram:
        backend = DeepStreamBackend(pool)
        for path in paths:
            per_clip[Path(path).name] = rate(backend, path, size, seconds)
        backend.close()
    return {"pool": size, "clips_per_s": per_clip, "vram_mib": vram.peak_mib}


def rate(backend: DeepStreamBackend, path: str, size: int, seconds: float) -> float | str:
    asked = {"size": SIZE, "pool_size": size}
    with ThreadPoolExecutor(size) as threads:
        list(threads.map(lambda _: backend.decode(*planned(path, **asked)), range(size)))
        start, got = time.monotonic(), []

        def work(_: int) -> None:
            while time.monotonic() < start + seconds:
                got.append(len(backend.decode(*planned(path, **asked))))

        list(threads.map(work, range(size)))
    if set(got) != {16}:
        return f"frames given: {sorted(set(got))}"
    return round(len(got) / (time.monotonic() - start), 2)


def peer(arm: str, path: str, seconds: float) -> dict:
    command = [sys.executable, str(HERE), "--one", arm, "--clips", path, "--seconds", str(seconds)]
    with Vram() as vram:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 4 + 30, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            facts = json.loads(lines[-1]) if lines else {"error": done.stderr[-400:]}
        except subprocess.TimeoutExpired:
            facts = {"error": "timeout"}
    return {"arm": arm, "clip": Path(path).name, **facts, "vram_mib": vram.peak_mib}


def torchcodec_equal(path: str) -> dict:
    """Our `torchcodec` backend with device="cuda" beside PyAV."""
    from peers import with_libraries

    with_libraries()
    from framefleet.decode.backends.torchcodec import TorchCodecBackend

    facts = {}
    for size in (None, SIZE):
        clip, plan, options = planned(path, device="cuda", size=size)
        gpu = TorchCodecBackend().decode(clip, plan, options)
        cpu = PyAvBackend().decode(clip, plan, options)
        off = np.abs(gpu.data.cpu().numpy().astype(int) - cpu.data)
        facts["native" if size is None else "resized"] = {
            "equal": bool(np.array_equal(gpu.indices, cpu.indices) and off.mean() < 2),
            "mean": round(float(off.mean()), 3), "device": str(gpu.data.device),
        }  # fmt: skip
    return facts


def one_peer(arm: str, path: str, seconds: float) -> dict:
    if arm == "torchcodec_equal":
        return torchcodec_equal(path)
    from peers import PEERS

    open_arm, count = PEERS[arm]
    make = open_arm(count)
    workers, got = [make() for _ in range(count)], []
    try:
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(lambda worker: worker(path), workers))
            start = time.monotonic()

            def work(worker) -> None:
                while time.monotonic() < start + seconds:
                    got.append(worker(path))

            list(threads.map(work, workers))
    except Exception as error:  # noqa: BLE001 - a peer's failure is a finding
        return {"error": repr(error)[:300]}
    return {"clips_per_s": round(len(got) / (time.monotonic() - start), 2), "all_frames": set(got) == {16}}


def equal_steps(asked, backend: DeepStreamBackend, paths: list[str], _: Path) -> list:
    corpus = sorted(str(path) for path in asked.corpus.iterdir()) if asked.corpus else []
    steps = [lambda path=path: compare(backend, path, size=SIZE) for path in paths]
    steps += [lambda: compare(backend, paths[0])]
    return steps + [lambda path=path: compare(backend, path, num_frames=8) for path in corpus if takes(backend, path)]


def odd_steps(_, backend: DeepStreamBackend, __: list[str], folder: Path) -> list:
    return [lambda path=path: compare(backend, path) for path in odd_clips(folder)]


def hang_steps(_, backend: DeepStreamBackend, paths: list[str], __: Path) -> list:
    return [lambda: hang(backend, paths[0])]


def rate_steps(asked, _: DeepStreamBackend, paths: list[str], __: Path) -> list:
    pool = FAKE if asked.fake else POOL
    return [lambda n=int(size): rates(pool, paths, n, asked.seconds) for size in asked.pools.split(",")]


def arm_steps(asked, _: DeepStreamBackend, paths: list[str], __: Path) -> list:
    arms = [arm for arm in asked.arms.split(",") if arm]
    return [lambda p=path, a=arm: peer(a, p, asked.seconds) for path in paths for arm in arms]


STEPS = {"equal": equal_steps, "odd": odd_steps, "hang": hang_steps, "rates": rate_steps, "arms": arm_steps}
FACTS: list[dict] = []


def tell(fact: dict) -> None:
    FACTS.append(fact)
    print(json.dumps(fact), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--only", default="equal,odd,hang,rates,arms", help="steps, comma-separated")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--pools", default="1,8,16")
    parser.add_argument("--arms", default="")
    parser.add_argument("--budget-s", type=float, default=600, help="no new step is begun after this")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--one")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one_peer(asked.one, str(asked.clips), asked.seconds)), flush=True)
        os._exit(0)
    started = time.monotonic()
    pool = FAKE if asked.fake else POOL
    paths = sorted(str(path) for path in asked.clips.iterdir() if path.suffix in (".mp4", ".mkv"))
    with tempfile.TemporaryDirectory() as folder:
        backend = DeepStreamBackend(pool)
        steps = [step for name in asked.only.split(",") for step in STEPS[name](asked, backend, paths, Path(folder))]
        for step in steps:
            if time.monotonic() - started < asked.budget_s:
                tell(attempt(step))
                (asked.out / "deepstream.json").write_text(json.dumps(FACTS, indent=1))
        backend.close()
    print(json.dumps({"steps": len(steps), "told": len(FACTS), "took_s": round(time.monotonic() - started, 1)}))


def attempt(step) -> dict:
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - one step's failure must not cost the others
        return {"failed": repr(error)[:400]}


def takes(backend: DeepStreamBackend, path: str) -> bool:
    try:
        clip, _, _ = planned(path)
    except FramefleetError:
        return False
    return backend.refuse(clip.info, clip.index) is None


if __name__ == "__main__":
    main()
