"""Tasks for decode workers that go wrong on demand: the source's location says how (`hang`, `segfault` ...)."""

import ctypes
import os
import signal
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from framefleet.decode.decoder import DecodedFrames, DecodeStats
from framefleet.errors import SourceCorrupt
from framefleet.media.info import StreamInfo
from framefleet.units import MIB

RESULTS = {"decode": DecodedFrames, "digest": str, "scan": str}
INFO = StreamInfo(
    container="fake", stream_index=0, codec="fake", profile="", pix_fmt="rgb24", bit_depth=8, chroma="rgb",
    has_alpha=False, coded_width=64, coded_height=48, width=64, height=48, rotation_deg=0, hflip=False,
    sample_aspect_ratio=Fraction(1), is_interlaced_from_header=False, colour_matrix="rgb", is_full_range=True,
    transfer="sdr", time_base=Fraction(1, 25), start_ns_from_header=0, duration_s_from_header=None,
    fps_from_header=None, num_frames_from_header=None, has_b_frames=False, has_audio=False, size_bytes=None,
)  # fmt: skip


def warm_up():
    if os.environ.get("FAULTY_START"):
        sys.stderr.write("no such library\n")
        raise SystemExit(3)


def frames_of(num_frames, value=7):
    return DecodedFrames(
        data=np.full((num_frames, 48, 64, 3), value, np.uint8),
        pts_s=np.arange(num_frames) / 25,
        indices=np.arange(num_frames),
        info=INFO,
        stats=DecodeStats(backend="fake"),
        duration_s=1.0,
        fps=25.0,
        total_num_frames=25,
    )


def decode(job, ask):
    """`options.num_frames` frames, unless the location names a fault, with words after a colon."""
    kind, _, words = job.source.location.partition(":")
    if fault := FAULTS.get(kind):
        fault(words)
    num_frames = job.options.num_frames or 4
    ask(num_frames * 48 * 64 * 3)
    if after := AFTER_GRANT.get(kind):
        after(words)
    return frames_of(num_frames)


def digest(job, ask):
    return str(os.getpid())


def scan(job, ask):
    """What no caller expects."""
    return 12


def hang_holding_the_lock(_):
    ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter's lock: no Python signal handler or thread runs


def segfault(_):
    ctypes.string_at(8)


def abort(_):
    os.write(2, b"free(): invalid pointer\n")
    os.abort()


def die_once(mark):
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note_pid_and_sleep(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(3600)


def take_memory(megabytes):
    taken = bytearray(int(megabytes) * MIB)
    taken[::4096] = b"x" * len(taken[::4096])
    del taken


KEPT = []


def leak(megabytes):
    KEPT.append(bytearray(int(megabytes) * MIB))
    KEPT[-1][::4096] = b"x" * len(KEPT[-1][::4096])


def be_wrong(_):
    raise ZeroDivisionError("by our own hand")


def be_corrupt(words):
    raise SourceCorrupt("the clip is damaged", given=words, remedy="fetch it again")


def leave(_):
    raise SystemExit(4)


FAULTS = {
    "hang": hang_holding_the_lock, "segfault": segfault, "abort": abort, "die_once": die_once, "wrong": be_wrong,
    "sleep": note_pid_and_sleep, "memory": take_memory, "leak": leak, "corrupt": be_corrupt, "exit": leave,
}  # fmt: skip
AFTER_GRANT = {"hang_after": hang_holding_the_lock, "segfault_after": segfault}
