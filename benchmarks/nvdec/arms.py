"""The arms of the NVDEC benchmark: ways to get 16 uniformly spaced RGB frames of a clip.

`ARMS[name]` is `Arm(kind, open, count)`: `open(count)` is called once per trial and gives what makes one worker, a
function from a path to the number of frames it got. `count` workers run side by side, as threads or as processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from peers import PEERS, torchcodec_cpu

NUM_FRAMES = 16
SIZE = (1024, 576)
IN_FLIGHT = int(os.environ.get("BENCH_IN_FLIGHT", "40"))
Worker = Callable[[str], int]


@dataclass(frozen=True)
class Arm:
    kind: str
    """threads or processes"""
    open: Callable[[int], Callable[[], Worker]]
    count: int


def rows_of(num_frames: int, wanted: int = NUM_FRAMES) -> list[int]:
    return np.linspace(0, num_frames - 1, min(wanted, num_frames)).round().astype(int).tolist()


def opencv(_count: int) -> Callable[[], Worker]:
    """As vLLM's opencv loader: grab through the stream, retrieve the wanted frames."""
    import cv2

    cv2.setNumThreads(1)

    def clip(path: str, wanted: int = NUM_FRAMES) -> int:
        capture = cv2.VideoCapture(path)
        rows = rows_of(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), wanted)
        chosen, got = set(rows), 0
        for index in range(rows[-1] + 1):
            if not capture.grab():
                break
            if index in chosen:
                ok, frame = capture.retrieve()
                got += ok and cv2.cvtColor(frame, cv2.COLOR_BGR2RGB) is not None
        return got

    return lambda: clip


def pyav_ours(_count: int) -> Callable[[], Worker]:
    """framefleet on the CPU alone."""
    import framefleet

    return lambda: lambda path: len(framefleet.decode(path, num_frames=NUM_FRAMES, size=SIZE, backend="pyav"))


def pynv_simple(_count: int) -> Callable[[], Worker]:
    """As vLLM's pynvvideocodec loader: a kept SimpleDecoder, reconfigured; full-size RGB to pinned memory."""
    import PyNvVideoCodec as nvc  # noqa: N813
    import torch

    def make() -> Worker:
        stream, kept = torch.cuda.Stream(), []

        def clip(path: str, wanted: int = NUM_FRAMES) -> int:
            with torch.cuda.stream(stream):
                if not kept:
                    kept.append(
                        nvc.SimpleDecoder(
                            path, gpu_id=0, cuda_stream=stream.cuda_stream, use_device_memory=True,
                            output_color_type=nvc.OutputColorType.RGB,
                        )
                    )  # fmt: skip
                else:
                    kept[0].reconfigure_decoder(path)
                frames = kept[0].get_batch_frames_by_index(rows_of(len(kept[0]), wanted))
                stacked = torch.stack([torch.from_dlpack(f) for f in frames]).contiguous()
                host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
                host.copy_(stacked, non_blocking=True)
                stream.synchronize()
            return len(host)

        return clip

    return make


class Ours:
    """framefleet's reader over a pool of workers and NVDEC, on an event loop of its own; frames end in host memory."""

    def __init__(self, *, lanes: int = 0, with_cpu: bool = False, budget_gib: float = 4, size=SIZE) -> None:
        from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
        from framefleet.decode.options import DecodeOptions
        from framefleet.decode.pool import DecodePool
        from framefleet.units import GIB
        from framefleet.vram.budget import MemoryBudget

        self.options = DecodeOptions(num_frames=NUM_FRAMES, size=size, timeout_s=120)
        budget = MemoryBudget(int(budget_gib * GIB), name="NVDEC memory")
        device = {"device": _fake()} if os.environ.get("BENCH_FAKE_NVDEC") else {}
        self.nvdec = PyNvVideoCodecBackend(lanes=lanes, budget=budget, **device)
        self.pool = DecodePool(threads=1, max_bytes_in_flight=8 * GIB)
        self.pool.open()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.reader = self._on_loop(self._make(with_cpu=with_cpu))
        self.waits, self.totals = [], []
        self.done = self.reader.load.done

    async def _make(self, *, with_cpu: bool):
        from framefleet.decode.silicon import SiliconReader, leftover_pool

        self.leftover = leftover_pool(self.pool)
        reader = SiliconReader(self.pool, self.nvdec, self.leftover.__enter__() if with_cpu else None)
        reader.cpu.places = reader.cpu.places if with_cpu else 0
        return reader

    def _on_loop(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def decode(self, path: str, **changes: object):
        import msgspec

        return self._on_loop(self.reader.decode(path, msgspec.structs.replace(self.options, **changes)))

    def clip(self, path: str) -> int:
        seconds = (frames := self.decode(path)).stats.seconds
        self.waits.append(seconds.get("wait", 0.0))
        self.totals.append(seconds.get("wait", 0.0) + seconds.get("decode", 0.0))
        return len(frames)

    def facts(self) -> dict:
        load = self.reader.load
        return {
            "done": load.done, "fell_back": load.fell_back, "refused": load.refused, "hung": load.hung,
            "wait_share": round(sum(self.waits) / max(sum(self.totals), 1e-9), 3),
            "budget_peak_mib": self.nvdec.budget_stats.peak_held_bytes >> 20,
        }  # fmt: skip


def _fake():
    from framefleet.decode.nvdec.fake import FakeNvdecDevice

    made = FakeNvdecDevice()
    return lambda: made


def ours(**settings: object) -> Callable[[int], Callable[[], Worker]]:
    def open_(_count: int) -> Callable[[], Worker]:
        reader = Ours(**settings)
        LAST.append(reader)
        return lambda: reader.clip

    return open_


LAST: list[Ours] = []
"""The reader of the trial under way, for its counts."""
CORES = len(os.sched_getaffinity(0))
LADDER_GIB = (0.25, 0.5, 1, 2, 4)
ARMS = {
    "opencv_16p": Arm("processes", opencv, CORES),
    "pyav_16p": Arm("processes", pyav_ours, CORES),
    "torchcodec_16p": Arm("processes", torchcodec_cpu, CORES),
    **{f"pynv_simple_{n}": Arm("threads", pynv_simple, n) for n in (2, 4, 8, 16)},
    **{name: Arm("threads", open_, count) for name, (open_, count) in PEERS.items()},
    "ours_nvdec_7": Arm("threads", ours(lanes=7), IN_FLIGHT),
    "ours_nvdec": Arm("threads", ours(), IN_FLIGHT),
    "ours_nvdec_14": Arm("threads", ours(lanes=14), IN_FLIGHT),
    "ours_both": Arm("threads", ours(with_cpu=True), IN_FLIGHT),
    "ours_full_size": Arm("threads", ours(size=None), IN_FLIGHT),
    **{f"ours_budget_{g}": Arm("threads", ours(budget_gib=g), IN_FLIGHT) for g in LADDER_GIB},
}
