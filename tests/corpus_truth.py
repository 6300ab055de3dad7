"""The corpus's truth.json, and the judgement of a decode against it. Reading rules are in tests/corpus/README.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

FILES = Path(__file__).parent / "corpus" / "files"
BLOCK_PX, BITS = 16, 10
PTS_TOLERANCE_S = 1.5e-3
PATCH_TOLERANCE = 3
SLACK_MAE = 4.0
"""Above ffmpeg's own distance from the drawn pattern: RGB has 255/219 the steps, and scaling costs a little."""
LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Truth:
    """What one corpus file should give."""

    name: str
    facts: dict

    @property
    def path(self) -> Path:
        return FILES / self.name

    @property
    def is_whole(self) -> bool:
        return self.facts["ok"] is True

    @property
    def must_fail(self) -> bool:
        return self.facts["ok"] is False and not self.facts.get("accept_frames")

    def allows_count(self, count: int) -> bool:
        low = self.facts.get("min_frames", self.facts["num_frames"])
        high = self.facts.get("max_frames", self.facts["num_frames"])
        return low <= count <= high

    def coded_width(self, row: int) -> int:
        """Width in which row was drawn: the barcode's blocks are 16 px of that."""
        for width, _, count in self.facts.get("frame_sizes", []):
            if row < count:
                return width
            row -= count
        return self.facts["display_width"]

    def row_at(self, pts_s: float, row: int) -> int:
        """The truth's row for a frame given as `row` at `pts_s`: by time, on whichever clock fits best."""
        clocks = [self.facts["pts_s"], *self.facts.get("pts_also", [])]
        known = [np.array([np.nan if t is None else t for t in clock]) for clock in clocks if clock]
        near = [int(np.nanargmin(np.abs(clock - pts_s))) for clock in known]
        off = [abs(clock[at] - pts_s) for clock, at in zip(known, near, strict=True)]
        return near[int(np.argmin(off))] if off and min(off) < PTS_TOLERANCE_S else row


@cache
def all_truths() -> tuple[Truth, ...]:
    truth = json.loads((FILES.parent / "truth.json").read_text())
    return tuple(Truth(name, facts) for name, facts in truth.items())


def truth_of(name: str) -> Truth:
    return next(truth for truth in all_truths() if truth.name == name)


def read_barcode(frame: np.ndarray, drawn_width: int) -> int:
    """The number in the top row of an upright frame [H, W, 3] that was drawn `drawn_width` wide."""
    across, down = frame.shape[1] / drawn_width, BLOCK_PX / 2
    luma = frame[min(int(down), frame.shape[0] - 1)].astype(float) @ LUMA
    return sum(1 << bit for bit in range(BITS) if luma[int((bit + 0.5) * BLOCK_PX * across)] > 127)


def pattern_distance(frame: np.ndarray, number: int) -> float:
    """Mean distance, in limited-range luma steps, from what was drawn below the barcode of an unscaled frame."""
    height, width = frame.shape[:2]
    y, x = np.mgrid[BLOCK_PX:height, 0:width]
    drawn = 60 + (5 * number + x + y) % 120
    luma = 16 + (frame[BLOCK_PX:].astype(float) @ LUMA) * 219 / 255
    return float(np.abs(luma - drawn).mean())


def faults(truth: Truth, frames) -> list[str]:
    """Everything wrong with these frames, in words; empty when all is right."""
    facts, found = truth.facts, []
    upright = (facts["display_width"], facts["display_height"])
    with_sar = (round(upright[0] * facts["sar"][0] / facts["sar"][1]), upright[1])
    if (frames.info.width, frames.info.height) not in (upright, with_sar):
        found.append(f"size {frames.info.width}x{frames.info.height}, not {upright}")
    if (frames.data.shape[2], frames.data.shape[1]) not in (upright, with_sar):
        found.append(f"pixels of {frames.data.shape}, not {upright}")
    if not truth.allows_count(frames.total_num_frames):
        found.append(f"{frames.total_num_frames} frames, not {facts['num_frames']}")
    if np.any(np.diff(frames.pts_s) <= 0):
        found.append("times do not increase")
    if truth.is_whole and frames.stats.num_missing:
        found.append(f"{frames.stats.num_missing} frames missing")
    for number in range(len(frames)):
        found += _faults_of_frame(truth, frames, number)
    return found


def _faults_of_frame(truth: Truth, frames, number: int) -> list[str]:
    facts, frame = truth.facts, frames.data[number]
    pts_s, given_row = float(frames.pts_s[number]), int(frames.indices[number])
    row = truth.row_at(pts_s, given_row)
    found = []
    if truth.is_whole and facts["pts_s"]:
        times = [clock[given_row] for clock in [facts["pts_s"], *facts.get("pts_also", [])]]
        if None not in times and min(abs(t - pts_s) for t in times) > PTS_TOLERANCE_S:
            found.append(f"row {given_row} at {pts_s:.4f} s, not {times[0]}")
    if row in facts.get("damaged", []):
        found.append(f"damaged frame {row} passed as good")
    if facts["barcodes"]:
        wanted = _number_wanted(facts, pts_s, row)
        if (shown := read_barcode(frame, truth.coded_width(row))) != wanted:
            found.append(f"row {given_row} at {pts_s:.3f} s shows {shown}, not {wanted}")
        elif facts.get("pattern_mae") is not None and frame.shape[1] == facts["display_width"]:
            distance = pattern_distance(frame, wanted)
            if distance > facts["pattern_mae"] + SLACK_MAE:
                found.append(f"row {given_row} is {distance:.1f} from what was drawn")
    for patch in facts["patches_rgb"] or []:
        colour = frame[patch["y"], patch["x"]].astype(int)
        if np.abs(colour - patch["rgb"]).max() > PATCH_TOLERANCE:
            found.append(f"row {given_row}: {colour} at {patch['x']}, {patch['y']}, not {patch['rgb']}")
    return found


def _number_wanted(facts: dict, pts_s: float, row: int) -> int:
    if nominal := facts.get("nominal"):
        return nominal["b0"] + round((pts_s - nominal["t0"]) * nominal["fps"])
    return facts["barcodes"][row]
