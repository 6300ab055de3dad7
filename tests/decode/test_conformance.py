"""Every corpus file through every backend that opens files: the right frames, or the reason before any frame."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from corpus_truth import FILES, all_truths, faults, read_barcode, truth_of

import framefleet
from framefleet.errors import DecodeError, FramefleetError, SourceError, SourceTooLarge

OURS = ("pyav", "auto")
PEERS = ("opencv", "torchcodec")
SAMPLES = 8
MOST_OUTPUT_BYTES = 1 << 30


def decode(truth, backend, num_frames=SAMPLES, **options):
    return framefleet.decode(
        truth.path, num_frames=num_frames, backend=backend, max_output_bytes=MOST_OUTPUT_BYTES, **options
    )


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("truth", all_truths(), ids=lambda truth: truth.name[:40])
def test_ours_are_right_on_every_file(truth, backend):
    if truth.facts["ok"] is True:
        frames = decode(truth, backend)
        assert len(frames) == min(SAMPLES, truth.facts["num_frames"])
        assert frames.indices.tolist() == np.linspace(0, frames.total_num_frames - 1, len(frames)).round().tolist()
        assert faults(truth, frames) == []
        return
    try:
        frames = decode(truth, backend)
    except (SourceError, DecodeError) as error:
        assert truth.facts["ok"] is False or truth.name == "jpeg_named.mp4"
        assert_helpful(error, truth)
        return
    assert not truth.must_fail
    assert faults(truth, frames) == []
    assert frames.stats.num_missing > 0 or len(frames) == min(SAMPLES, truth.facts["num_frames"])


@pytest.mark.parametrize("backend", PEERS)
@pytest.mark.parametrize("truth", all_truths(), ids=lambda truth: truth.name[:40])
def test_peers_are_right_or_refuse(truth, backend):
    pytest.importorskip({"opencv": "cv2"}.get(backend, backend))
    try:
        frames = decode(truth, backend)
    except (SourceError, DecodeError) as error:
        assert_helpful(error, truth)
        return
    assert not truth.must_fail
    assert faults(truth, frames) == []
    assert truth.is_whole or frames.stats.num_missing > 0 or len(frames) == SAMPLES


def assert_helpful(error: FramefleetError, truth):
    text = str(error)
    assert truth.path.name in text, text
    assert len(text) > len(truth.path.name) + 20, text


FEW_ENOUGH = [
    truth
    for truth in all_truths()
    if truth.facts["barcodes"] and truth.facts["num_frames"] * (truth.facts["display_width"] or 0) < 60_000
]


@pytest.mark.parametrize("truth", FEW_ENOUGH, ids=lambda truth: truth.name[:40])
def test_every_frame_is_the_same_alone_as_in_company(truth):
    """Whatever was read before, and wherever the read starts: last row first, then each by itself."""
    if truth.facts["ok"] is False:
        with pytest.raises(SourceError):
            decode(truth, "pyav")
        return
    whole = decode(truth, "pyav", num_frames=10_000)
    assert faults(truth, whole) == []
    clip, options = scanned(truth)
    for number in reversed(range(0, len(whole), 1 if len(whole) <= 90 else 7)):
        alone = decode_row(clip, options, int(whole.indices[number]))
        assert np.array_equal(alone.data[0], whole.data[number]), whole.indices[number]


def scanned(truth):
    from framefleet.decode.options import DecodeOptions
    from framefleet.media.scan import scan
    from framefleet.media.source import VideoSource

    return scan(VideoSource.of(truth.path)), DecodeOptions(backend="pyav")


def decode_row(clip, options, row):
    from framefleet.decode.backends.pyav import PyAvBackend
    from framefleet.decode.plan import plan_decode
    from framefleet.sampling.sampler import FrameTargets

    plan = plan_decode(clip.index, FrameTargets(np.array([row])), clip.info.width, clip.info.height)
    return PyAvBackend().decode(clip, plan, options)


def test_pixels_do_not_depend_on_the_file_before():
    """`after`: both are coded 1280x544, and only the crop differs."""
    for truth in all_truths():
        if "after" not in truth.facts:
            continue
        decode(truth_of(truth.facts["after"]), "pyav")
        here = decode(truth, "pyav").data
        code = (
            "import framefleet, hashlib, sys;"
            f"f = framefleet.decode(sys.argv[1], num_frames={SAMPLES}, backend='pyav');"
            "print(hashlib.sha256(f.data.tobytes()).hexdigest())"
        )
        fresh = subprocess.run([sys.executable, "-c", code, truth.path], capture_output=True, text=True, check=True)
        assert hashlib.sha256(here.tobytes()).hexdigest() == fresh.stdout.strip()


def test_a_bomb_is_refused_before_memory_is_taken():
    with pytest.raises(SourceTooLarge, match="max_output_bytes"):
        framefleet.decode(FILES / "pixel_bomb_8k.mp4", num_frames=40, max_output_bytes=1 << 30)
    with pytest.raises(SourceTooLarge, match="max_source_pixels"):
        framefleet.decode(FILES / "pixel_bomb_8k.mp4", max_source_pixels=4096 * 4096)
    with pytest.raises(SourceTooLarge, match="max_source_frames"):
        framefleet.decode(FILES / "many_frames_14000.mp4", max_source_frames=10_000)
    with pytest.raises(SourceTooLarge, match="max_source_bytes"):
        framefleet.decode(FILES / "base.mp4", max_source_bytes=1000)


@pytest.mark.parametrize("name", ["bitflips_mid.mp4", "ts_packet_loss.ts"])
def test_recovery_gives_neighbours_and_says_so(name):
    truth = truth_of(name)
    plain = decode(truth, "pyav", num_frames=30)
    frames = decode(truth, "pyav", num_frames=30, frame_recovery=True)
    assert faults(truth, frames) == [fault for fault in faults(truth, frames) if fault == "times do not increase"]
    missing = set(range(frames.total_num_frames)) & set(frames.stats.recovered_rows)
    assert len(frames) == min(30, frames.total_num_frames)
    assert len(missing) == len(frames) - len(plain)


def test_without_recovery_nothing_stands_in():
    truth = truth_of("bitflips_mid.mp4")
    frames = decode(truth, "pyav", num_frames=60)
    assert frames.stats.recovered_rows == ()
    assert frames.stats.num_corrupt > 0
    shown = [read_barcode(frame, 176) for frame in frames.data]
    assert shown == sorted(set(shown))
