"""One arm of the comparison in a process of its own: tasks come as JSON lines, answers go as JSON lines.

Every arm goes from a path to uint8 RGB frames [T, H, W, 3] in memory, opening and indexing included, one thread each
(OpenCV: as vLLM opens it, with its own choice of threads; all arms are bound to the same one core).
"""

from __future__ import annotations

import io
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from clips import read_barcode

UInt8 = npt.NDArray[np.uint8]
Decode = Callable[[str, list[int]], UInt8]


def framefleet() -> Decode:
    """Ours: scan, plan, decode, verify. The rows are those of uniform sampling, so `num_frames` asks for them."""
    from framefleet.decode.session import decode

    return lambda path, rows: decode(path, num_frames=len(rows), backend="pyav").data


def opencv_as_vllm() -> Decode:
    """What vLLM 0.32 does: bytes, a count checked by seeking to the end, then grab() through to the last frame."""
    import cv2
    from cv2 import videoio_registry

    api = next(b for b in videoio_registry.getStreamBufferedBackends() if videoio_registry.hasBackend(b))

    def decode(path: str, rows: list[int]) -> UInt8:
        capture = cv2.VideoCapture(io.BytesIO(Path(path).read_bytes()), api, [])
        width, height = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        if capture.get(cv2.CAP_PROP_FRAME_COUNT) > 0 and capture.set(cv2.CAP_PROP_POS_AVI_RATIO, 1.0):
            capture.grab()
            capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
        frames, wanted, slot = np.empty((len(rows), height, width, 3), np.uint8), set(rows), 0
        for row in range(rows[-1] + 1):
            if capture.grab() and row in wanted:
                frames[slot] = cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB)
                slot += 1
        return frames[:slot]

    return decode


def torchcodec(seek_mode: str) -> Decode:
    """VideoDecoder.get_frames_at, as vLLM's torchcodec backend uses it."""
    import torch
    from torchcodec.decoders import VideoDecoder

    torch.set_num_threads(1)

    def decode(path: str, rows: list[int]) -> UInt8:
        decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode=seek_mode)
        frames: UInt8 = decoder.get_frames_at(rows).data.numpy()
        return frames

    return decode


def decord2() -> Decode:
    """VideoReader.get_batch."""
    import decord

    def decode(path: str, rows: list[int]) -> UInt8:
        frames: UInt8 = decord.VideoReader(path, num_threads=1).get_batch(rows).asnumpy()
        return frames

    return decode


ARMS: dict[str, Callable[[], Decode]] = {
    "framefleet": framefleet,
    "framefleet_before": framefleet,
    "opencv_as_vllm": opencv_as_vllm,
    "torchcodec_exact": lambda: torchcodec("exact"),
    "torchcodec_approximate": lambda: torchcodec("approximate"),
    "decord2": decord2,
}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory_mib(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def _answer(decode: Decode, task: dict[str, Any]) -> dict[str, Any]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before_mib = _memory_mib("VmRSS")
    started_s, cpu_started_s = time.perf_counter(), _cpu_s()
    frames = decode(task["path"], task["rows"])
    wall_s, cpu_s = time.perf_counter() - started_s, _cpu_s() - cpu_started_s
    answer = {"wall_s": wall_s, "cpu_s": cpu_s, "before_mib": before_mib, "peak_mib": _memory_mib("VmHWM")}
    if task.get("save"):
        np.save(task["save"], frames)
    return answer | {"barcodes": [read_barcode(frame) for frame in frames], "shape": list(frames.shape)}


def main() -> None:
    """Serve one arm until the input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no answer
    decode = ARMS[sys.argv[1]]()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = _answer(decode, json.loads(line))
        except Exception as error:  # noqa: BLE001 - a peer's failure is a result
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
