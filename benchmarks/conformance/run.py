"""Which frames come out of every corpus file: ours beside the same libraries used the plain way.

    python benchmarks/conformance/run.py [--out docs/reference/conformance.md]

Each reader runs in a process of its own with a deadline per file; a hang or a crash costs one cell. `right`,
`right, n missing` and `refused` are fine; anything else is a fault. Writes result.json beside this, and the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import SimpleNamespace

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from corpus_truth import Truth, all_truths, faults, truth_of  # noqa: E402

import framefleet  # noqa: E402
from framefleet.errors import FramefleetError  # noqa: E402

SAMPLES = 8
DEADLINE_S = 90
OURS = ("pyav", "auto", "opencv", "torchcodec")
PLAIN = ("plain opencv", "plain pyav", "plain torchcodec")
WORDS = {
    "plain opencv": "cv2.VideoCapture, grab through the stream, count from CAP_PROP_FRAME_COUNT",
    "plain pyav": "container.decode(video=0), count from stream.frames",
    "plain torchcodec": "VideoDecoder(path), exact, get_frames_at",
}


class Frames(SimpleNamespace):
    """The attributes of DecodedFrames that `faults` reads."""

    def __len__(self) -> int:
        return len(self.pts_s)


def rows_for(count: int) -> list[int]:
    return np.linspace(0, count - 1, min(SAMPLES, count)).round().astype(int).tolist()


def read_opencv(path: Path) -> Frames:
    import cv2

    capture = cv2.VideoCapture(str(path))
    if not capture.isOpened():
        raise OSError("not opened")
    count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    if not 0 < count < 10**7:
        raise OSError(f"count {count}")
    start_s = (framefleet.probe(path).start_ns_from_header or 0) / 1e9  # OpenCV counts from the stream's start
    frames, times, given = [], [], []
    wanted = set(rows_for(count))
    for row in range(count):
        if not capture.grab():
            break
        if row in wanted and (got := capture.retrieve())[0]:
            frames.append(cv2.cvtColor(got[1], cv2.COLOR_BGR2RGB))
            times.append(start_s + capture.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            given.append(row)
    return result(frames, times, given, count, len(wanted))


def read_pyav(path: Path) -> Frames:
    import av

    with av.open(str(path)) as container:
        count = container.streams.video[0].frames or count_by_decoding(path)
        wanted = set(rows_for(count))
        frames, times, given = [], [], []
        for row, picture in enumerate(container.decode(video=0)):
            if row in wanted:
                frames.append(picture.to_ndarray(format="rgb24"))
                times.append(picture.time or 0.0)
                given.append(row)
    return result(frames, times, given, count, len(wanted))


def count_by_decoding(path: Path) -> int:
    import av

    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def read_torchcodec(path: Path) -> Frames:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(path), dimension_order="NHWC")
    count = decoder.metadata.num_frames
    rows = rows_for(count)
    batch = decoder.get_frames_at(indices=rows)
    return result(list(batch.data.numpy()), batch.pts_seconds.tolist(), rows, count, len(rows))


def result(frames: list, times: list, rows: list, count: int, wanted: int) -> Frames:
    if not frames:
        raise OSError("no frame")
    height, width = frames[0].shape[:2]
    if any(frame.shape != frames[0].shape for frame in frames):
        raise OSError("frames of several sizes")
    return Frames(
        data=np.stack(frames), pts_s=np.array(times), indices=np.array(rows), total_num_frames=count,
        info=SimpleNamespace(width=width, height=height), stats=SimpleNamespace(num_missing=wanted - len(frames)),
    )  # fmt: skip


READERS = {"plain opencv": read_opencv, "plain pyav": read_pyav, "plain torchcodec": read_torchcodec}


def judge(truth: Truth, reader: str) -> str:
    """One cell, in this process."""
    try:
        if reader in OURS:
            frames = framefleet.decode(truth.path, num_frames=SAMPLES, backend=reader, max_output_bytes=1 << 30)
        else:
            frames = READERS[reader](truth.path)
    except FramefleetError as error:
        return f"refused: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001 - whatever a library raises is its answer
        verdict = "refused" if not truth.is_whole else "fails"
        return f"{verdict}: {type(error).__name__}"
    if truth.must_fail:
        return "wrong: gave frames"
    if found := faults(truth, frames):
        return f"wrong: {found[0]}"
    return "right" if not frames.stats.num_missing else f"right, {frames.stats.num_missing} missing"


def column(reader: str) -> dict[str, str]:
    """File -> cell, from as many processes as crashes and hangs make necessary."""
    names, cells = [truth.name for truth in all_truths()], {}
    while left := [name for name in names if name not in cells]:
        command = [sys.executable, __file__, "--column", reader, left[0]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            lines: Queue[str] = Queue()
            Thread(target=lambda p=process, q=lines: [q.put(line) for line in p.stdout], daemon=True).start()
            try:
                while len(cells) < len(names):
                    name, cell = json.loads(lines.get(timeout=DEADLINE_S if process.poll() is None else 1))
                    cells[name] = cell
                    print(f"{reader}: {name}: {cell}", flush=True)
            except Empty:
                fault = "hangs" if process.poll() is None else f"crashes ({process.returncode})"
                process.kill()
                cells[next(name for name in left if name not in cells)] = fault
    return cells


def print_column(reader: str, first: str) -> None:
    names = [truth.name for truth in all_truths()]
    for name in names[names.index(first) :]:
        print(json.dumps([name, judge(truth_of(name), reader)]), flush=True)


def is_fine(cell: str, reader: str, truth: Truth) -> bool:
    if cell.startswith("right"):
        return True
    if not cell.startswith("refused"):
        return False
    must_decode = reader in ("pyav", "auto") and truth.is_whole and not truth.facts.get("may_refuse")
    return not must_decode


def page(table: dict[str, dict[str, str]]) -> str:
    readers = [*OURS, *PLAIN]
    count = {r: sum(is_fine(row[r], r, truth_of(name)) for name, row in table.items()) for r in readers}
    lines = [
        "# Conformance",
        "",
        f"Written by `benchmarks/conformance/run.py` over the {len(table)} files of tests/corpus: {SAMPLES} frames of",
        "each, checked for number, time, size, orientation, colour and damage. The first four columns are framefleet's",
        "backends (`auto` tries them in turn); the others are the libraries used the plain way:",
        "",
        *[f"- {name}: `{words}`" for name, words in WORDS.items()],
        "",
        "`refused` gave a reason before any frame. **Bold** is a fault: a wrong frame, a whole file not read, a hang.",
        "",
        "| file | " + " | ".join(readers) + " |",
        "|---|" + "---|" * len(readers),
    ]
    for name, row in table.items():
        cells = [row[r].replace("|", "\\|") for r in readers]
        marked = [c if is_fine(c, r, truth_of(name)) else f"**{c}**" for c, r in zip(cells, readers, strict=True)]
        lines.append(f"| `{name if len(name) < 40 else name[:20] + '…'}` | " + " | ".join(marked) + " |")
    lines.append("| **fine of all** | " + " | ".join(f"{count[r]}/{len(table)}" for r in readers) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--column", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/reference/conformance.md")
    asked = parser.parse_args()
    if asked.column:
        print_column(*asked.column)
        return
    columns = {reader: column(reader) for reader in (*OURS, *PLAIN)}
    table = {truth.name: {reader: columns[reader][truth.name] for reader in columns} for truth in all_truths()}
    asked.out.write_text(page(table))
    readers = (*OURS, *PLAIN)
    headline = {r: sum(is_fine(row[r], r, truth_of(n)) for n, row in table.items()) for r in readers}
    (HERE / "result.json").write_text(json.dumps({"headline": headline, "cells": table}, indent=1, ensure_ascii=False))
    print(json.dumps({"files": len(table), "fine": headline}))


if __name__ == "__main__":
    main()
