"""The `fake` backend: frames drawn on the spot, and faults on demand. For tests of everything above decoding.

A source whose text is `fake:{...}` (bytes, a path of that text, or a file holding it) describes the clip; any other
source counts as `fake:{}`. Every frame carries its row in the barcode of `draw_frame`, so a test can read back which
frame it really got. No media library is imported.
"""

from __future__ import annotations

import os
import signal
import time
from fractions import Fraction
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefleet import errors
from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import DecodePlan
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex
from framefleet.media.info import StreamInfo
from framefleet.media.limits import Deadline, ScanLimits
from framefleet.media.source import VideoSource
from framefleet.units import NS_PER_S

PREFIX = b"fake:"
BARCODE_BITS = 10
BARCODE_BLOCK_PX = 16
UInt8 = npt.NDArray[np.uint8]


class FakeClip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `fake:{...}` may say."""

    num_frames: int = 60
    fps: float = 30.0
    width: int = 320
    height: int = 180
    gop: int = 30
    """Packets from keyframe to keyframe; every other packet between them is no reference."""
    seed: int = 0
    """Changes the picture under the barcode, and the bytes, so that clips differ."""
    scan_error: str = ""
    """Name of an error of `framefleet.errors` that the scan raises."""
    fault: Literal["", "hang", "crash", "slow", "error", "corrupt", "short", "liar"] = ""
    """What `decode` does wrong: never return, kill its process, take `slow_s`, raise DecodeError, leave `bad_rows`
    out and say so, lose the last frame without a word, or give each frame's neighbour in its place."""
    bad_rows: tuple[int, ...] = ()
    slow_s: float = 0.0
    once: str = ""
    """Path of a file: the fault strikes only while it does not exist, and creates it (a fault that passes)."""

    @property
    def source(self) -> VideoSource:
        """A source that describes this clip."""
        return VideoSource.of(PREFIX + msgspec.json.encode(self))


class FakeBackend:
    """Draws what was asked for."""

    name = "fake"
    sees_damage = True

    def refuse(self, info: StreamInfo, index: FrameIndex) -> str | None:
        """Only clips that its own scan made are for this backend."""
        del index
        return None if info.codec == "fake" else "only clips scanned by the fake backend"

    def scan(self, source: VideoSource, limits: ScanLimits | None = None) -> ScannedClip:
        """Info and index from the description alone. Raises SourceNotFound, ConfigError, or what the clip asks for."""
        del limits
        return scan_fake(source)

    def decode(self, clip: ScannedClip, plan: DecodePlan, options: DecodeOptions) -> DecodedFrames:
        """Drawn frames [T, H, W, 3], or the fault that the clip's description asks for."""
        started_s = time.monotonic()
        deadline = Deadline(options.timeout_s)
        spec = _describe(clip.source)
        fault = spec.fault if _strikes(spec) else ""
        _misbehave(fault, spec.slow_s, deadline)
        deadline.check("decoding", clip.source.name)
        rows = _rows_given(plan.targets.rows, spec, fault)
        shown = np.minimum(rows + 1, spec.num_frames - 1) if fault == "liar" else rows
        frames = [draw_frame(int(row), plan.width, plan.height, clip.info.width, spec.seed) for row in shown]
        num_missing = len(plan.targets.rows) - len(rows) if fault == "corrupt" else 0
        if not frames:
            raise errors.DecodeError("no asked-for frame could be decoded", given=repr(clip.source.name))
        stats = DecodeStats(
            backend=self.name,
            frames_walked=plan.frames_walked,
            num_missing=num_missing,
            num_corrupt=num_missing,
            index_method=clip.index.method,
            output_bytes=len(frames) * frames[0].nbytes,
            seconds={"decode": time.monotonic() - started_s},
        )
        return DecodedFrames(
            data=np.stack(frames),
            pts_s=clip.index.pts_ns[shown] / NS_PER_S,
            indices=rows,
            info=clip.info,
            stats=stats,
            duration_s=clip.index.duration_s,
            fps=clip.index.fps,
            total_num_frames=clip.index.num_frames,
        )


def scan_fake(source: VideoSource) -> ScannedClip:
    """The clip that `source` describes. Raises SourceNotFound, ConfigError, or its `scan_error`."""
    spec = _describe(source)
    if spec.scan_error:
        kind: type[errors.FramefleetError] = getattr(errors, spec.scan_error)
        raise kind("the fake clip asks for this", given=repr(source.name))
    return ScannedClip(source, _info_of(spec), _index_of(spec))


def draw_frame(row: int, width: int, height: int, native_width: int, seed: int = 0) -> UInt8:
    """[height, width, 3]: ten blocks in the top strip give `row` in binary, lowest bit left; below them a pattern.

    Blocks are 16 px of a picture `native_width` wide and scale with it. The pattern is `60 + (5 row + x + y + seed)
    mod 120`, so shifted and mixed-up pictures can be told too.
    """
    scale = native_width / width
    x, y = np.arange(width), np.arange(height)
    picture = (60 + (5 * row + x[None, :] + y[:, None] + seed) % 120).astype(np.uint8)
    block = ((x + 0.5) * scale).astype(np.int64) // BARCODE_BLOCK_PX
    bits = np.where(block < BARCODE_BITS, (row >> np.minimum(block, BARCODE_BITS)) & 1, 0)
    strip = max(1, round(BARCODE_BLOCK_PX / scale))
    picture[:strip, block < BARCODE_BITS] = (bits * 255).astype(np.uint8)[block < BARCODE_BITS]
    return np.repeat(picture[:, :, None], 3, axis=2)


def read_barcode(frame: UInt8, native_width: int) -> int:
    """The number a frame [H, W, 3] carries, whatever size it was brought to."""
    scale = frame.shape[1] / native_width
    y = min(int(BARCODE_BLOCK_PX / 2 * scale), frame.shape[0] - 1)
    xs = ((np.arange(BARCODE_BITS) + 0.5) * BARCODE_BLOCK_PX * scale).astype(np.int64)
    return int(sum(1 << bit for bit, luma in enumerate(frame[y, xs].mean(axis=-1)) if luma > 127))


def _describe(source: VideoSource) -> FakeClip:
    text = _text_of(source)
    try:
        return msgspec.json.decode(text.removeprefix(PREFIX), type=FakeClip) if text.startswith(PREFIX) else FakeClip()
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise errors.ConfigError("wrong description of a fake clip", given=str(error)) from error


def _text_of(source: VideoSource) -> bytes:
    if source.content is not None:
        return source.content
    if source.location.startswith(PREFIX.decode()) or source.kind == "url":
        return source.location.encode()
    try:
        with Path(source.location).open("rb") as stream:
            head = stream.read(len(PREFIX))
            return head + stream.read() if head == PREFIX else head
    except OSError as error:
        raise errors.SourceNotFound("cannot read the clip", given=f"{source.location!r} ({error.strerror})") from error


def _strikes(spec: FakeClip) -> bool:
    if not spec.once:
        return True
    try:
        Path(spec.once).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _misbehave(fault: str, slow_s: float, deadline: Deadline) -> None:
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while fault == "hang":
        time.sleep(60)
    if fault == "error":
        raise errors.DecodeError("the fake clip asks for this")
    if fault == "slow":
        time.sleep(min(slow_s, deadline.remaining_s + 0.001))


def _rows_given(rows: npt.NDArray[np.int64], spec: FakeClip, fault: str) -> npt.NDArray[np.int64]:
    if fault == "corrupt":
        return rows[~np.isin(rows, spec.bad_rows)]
    return rows[:-1] if fault == "short" else rows


def _index_of(spec: FakeClip) -> FrameIndex:
    packets = np.arange(spec.num_frames)
    pts_ns = np.rint(packets * (NS_PER_S / spec.fps)).astype(np.int64)
    return FrameIndex(
        packet_pts=pts_ns.copy(),
        packet_is_keyframe=packets % spec.gop == 0,
        packet_is_reference=packets % spec.gop % 2 == 0,
        packet_of_row=packets,
        pts_ns=pts_ns,
        end_ns=round(spec.num_frames * NS_PER_S / spec.fps),
        method="packets",
    )


def _info_of(spec: FakeClip) -> StreamInfo:
    return StreamInfo(
        container="fake",
        stream_index=0,
        codec="fake",
        profile="",
        pix_fmt="rgb24",
        bit_depth=8,
        chroma="rgb",
        has_alpha=False,
        coded_width=spec.width,
        coded_height=spec.height,
        width=spec.width,
        height=spec.height,
        rotation_deg=0,
        hflip=False,
        sample_aspect_ratio=Fraction(1),
        is_interlaced_from_header=False,
        colour_matrix="rgb",
        is_full_range=True,
        transfer="sdr",
        time_base=Fraction(1, NS_PER_S),
        start_ns_from_header=0,
        duration_s_from_header=spec.num_frames / spec.fps,
        fps_from_header=spec.fps,
        num_frames_from_header=spec.num_frames,
        has_b_frames=False,
        has_audio=False,
        size_bytes=None,
    )
