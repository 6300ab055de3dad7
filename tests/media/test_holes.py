"""Bytes that no encoder wrote are noticed in the packets themselves, where decoders say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from barcode_clips import WIDTH, write_clip
from corpus_truth import read_barcode
from odd_clips import packets_of

import framefleet

FRAMES = 24


def place_of(path, number):
    """(first byte, length) in the file of the packet of that number."""
    coded = packets_of(path)[number][0]
    return path.read_bytes().index(coded), len(coded)


def assert_no_wrong_picture(content, clean):
    frames = framefleet.decode(content, num_frames=FRAMES)
    shown = [read_barcode(picture, WIDTH) for picture in frames.data]
    assert frames.stats.num_missing >= FRAMES - len(shown) > 0
    assert np.array_equal(frames.data, clean.data[shown])
    return shown


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("first", [0, 5])
def test_a_hole_in_av1(tmp_path, container, first):
    options = {"preset": "12", "svtav1-params": "lp=1"}
    path = write_clip(tmp_path / f"clip.{container}", FRAMES, codec="libsvtav1", b_frames=0, options=options)
    clean = framefleet.decode(path, num_frames=FRAMES)
    keyframe, length = place_of(path, 12)
    last, last_length = place_of(path, 15)
    content = bytearray(path.read_bytes())
    begin = keyframe + length // 2 if first == 0 else place_of(path, 12 + first)[0]
    end = last + last_length if first == 0 else sum(place_of(path, 12 + first))
    content[begin:end] = bytes(end - begin)
    assert set(assert_no_wrong_picture(bytes(content), clean)) >= set(range(12))


def test_slices_of_ffv1_have_checksums(tmp_path):
    options = {"level": "3", "slices": "4", "slicecrc": "1"}
    path = write_clip(tmp_path / "clip.mkv", FRAMES, codec="ffv1", b_frames=0, options=options)
    clean = framefleet.decode(path, num_frames=FRAMES)
    assert clean.stats.num_missing == 0
    begin, length = place_of(path, 14)
    for part in (0.1, 0.5, 0.9):
        content = bytearray(path.read_bytes())
        content[begin + int(length * part)] ^= 4
        assert set(assert_no_wrong_picture(bytes(content), clean)) == set(range(14))


def test_a_transport_packet_that_came_twice(tmp_path):
    path = write_clip(tmp_path / "clip.ts", FRAMES)
    clean, content = framefleet.decode(path, num_frames=FRAMES), path.read_bytes()
    pid = content[-188 + 1] & 0x1F, content[-188 + 2]
    starts = [at for at in range(0, len(content), 188) if (content[at + 1] & 0x1F, content[at + 2]) == pid]
    for at in starts[1::7]:
        assert_no_wrong_picture(content[: at + 188] + content[at:], clean)
