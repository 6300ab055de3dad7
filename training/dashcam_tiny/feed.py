"""Worker processes that draw clips, and the ring buffers that training reads from.

Training never waits for a clip: it samples from what the rings hold while workers replace the oldest rows. Every queue
read has a deadline; workers are daemons and are killed at the end.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from clips import HEADS, MAX_TOKENS, NUM_MOTION, SHAPE_KEYS, SHAPES_TRAINED, VARIANTS, training_clip, true_clip

SLOT_BYTES = max(n * h * w * 3 for n, h, w in SHAPE_KEYS)


def _work(rank: int, count: int, first_seed: int, eval_seeds: list[int], memory: str, free, ready) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    import cv2
    from text import SequenceMaker, make_tokenizer

    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    maker = SequenceMaker(make_tokenizer())
    held = np.memmap(memory, dtype=np.uint8, mode="r+")
    step = 0
    while True:
        try:
            seed = eval_seeds[step] if step < len(eval_seeds) else None
            made = (
                true_clip(seed, maker)[0]
                if seed is not None
                else training_clip(first_seed + rank + count * step, maker)
            )
            slot = free.get(timeout=600)
            at = slot * SLOT_BYTES
            held[at : at + made.frames.nbytes] = made.frames.reshape(-1)
            made.frames = None
            ready.put((slot, made, seed))
        except queue.Empty:
            return
        except Exception as fault:  # noqa: BLE001 - one bad clip must not cost the worker
            print(f"worker {rank} seed step {step}: {fault!r}", flush=True)
        step += 1


class Ring:
    """Clips of one shape on the device; the oldest row is replaced."""

    def __init__(self, shape: int, capacity: int, device: str) -> None:
        n, h, w = SHAPE_KEYS[shape]
        self.shape, self.capacity, self.filled, self.next, self.seen = shape, capacity, 0, 0, 0
        tokens = (h // 32) * (w // 32)
        make = lambda *size, dtype: torch.zeros(size, dtype=dtype, device=device)  # noqa: E731
        self.frames = make(capacity, n, h, w, 3, dtype=torch.uint8)
        self.ids = make(capacity, VARIANTS, MAX_TOKENS, dtype=torch.int16)
        self.positions = make(capacity, VARIANTS, 3, MAX_TOKENS, dtype=torch.int16)
        self.heads = make(capacity, len(HEADS), dtype=torch.int16)
        self.cells = make(capacity, n // 2, tokens, dtype=torch.int8)
        self.motion = make(capacity, n // 2, NUM_MOTION, dtype=torch.float32)
        self.starts = np.zeros((capacity, VARIANTS), dtype=np.int64)
        self.lengths = np.zeros((capacity, VARIANTS), dtype=np.int64)

    def put(self, frames: torch.Tensor, made) -> None:
        row = self.next
        self.frames[row].copy_(frames, non_blocking=True)
        for name in ("ids", "positions", "heads", "cells", "motion"):
            getattr(self, name)[row].copy_(torch.from_numpy(getattr(made, name)))
        self.starts[row], self.lengths[row] = made.starts, made.lengths
        self.next = (row + 1) % self.capacity
        self.filled = max(self.filled, row + 1)
        self.seen += 1


class Feed:
    """Starts the workers and moves finished clips into the rings on a thread of its own."""

    def __init__(
        self,
        *,
        workers: int,
        capacity: int,
        device: str,
        first_seed: int,
        eval_seeds: list[int],
        eval_workers: int,
        slots: int = 96,
    ) -> None:
        context = mp.get_context("spawn")
        self.device = device
        # a container's /dev/shm may be small
        roomy = shutil.disk_usage("/dev/shm").free > 2 * slots * SLOT_BYTES
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if roomy else None)
        path = str(Path(self.folder.name) / "slots")
        self.memory = np.memmap(path, dtype=np.uint8, mode="w+", shape=(slots * SLOT_BYTES,))
        self.free, self.ready = context.Queue(), context.Queue()
        for slot in range(slots):
            self.free.put(slot)
        self.rings = [Ring(i, max(8, int(capacity * share)), device) for i, (*_, share) in enumerate(SHAPES_TRAINED)]
        self.evaluation: dict[int, object] = {}
        shares = [eval_seeds[i::eval_workers] if i < eval_workers else [] for i in range(workers)]
        self.processes = [
            context.Process(
                target=_work, args=(i, workers, first_seed, shares[i], path, self.free, self.ready), daemon=True
            )
            for i in range(workers)
        ]
        for process in self.processes:
            process.start()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._move, daemon=True)
        self.thread.start()

    @property
    def seen(self) -> int:
        return sum(r.seen for r in self.rings)

    def _move(self) -> None:
        stream = torch.cuda.Stream() if self.device == "cuda" else None
        staging = torch.empty(SLOT_BYTES, dtype=torch.uint8, pin_memory=self.device == "cuda")
        while not self.stopping.is_set():
            try:
                slot, made, seed = self.ready.get(timeout=1.0)
            except queue.Empty:
                continue
            n, h, w = SHAPE_KEYS[made.shape]
            size = n * h * w * 3
            staging[:size].copy_(torch.from_numpy(self.memory[slot * SLOT_BYTES : slot * SLOT_BYTES + size]))
            self.free.put(slot)
            frames = staging[:size].view(n, h, w, 3)
            if seed is not None:
                made.frames = frames.numpy().copy()
                self.evaluation[seed] = made
                continue
            with torch.cuda.stream(stream):
                self.rings[made.shape].put(frames, made)
            if stream is not None:
                stream.synchronize()

    def wait(self, clips: int, deadline_s: float) -> None:
        """Until this many clips came, or the deadline passed."""
        end = time.monotonic() + deadline_s
        while self.seen < clips and time.monotonic() < end:
            time.sleep(0.2)

    def stop(self) -> None:
        self.stopping.set()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(timeout=5)
        self.thread.join(timeout=5)
        self.free.cancel_join_thread()
        self.ready.cancel_join_thread()
        self.folder.cleanup()
