"""Edit lists of several parts: each frame that the list shows, at the movie's time, whatever the codec."""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from barcode_clips import WIDTH, write_clip
from corpus_truth import read_barcode
from odd_clips import with_edits

import framefleet
from framefleet.errors import SourceTooLarge
from framefleet.media.edit_list import read_edits
from framefleet.units import NS_PER_S, Span

FRAMES = 60


def at_30(start_s, count):
    return [start_s + n / 30 for n in range(count)]


LISTS = {
    "two": ([(0.5, 10, 1), (1.0, 28, 1)], [*range(10, 25), *range(28, 58)], at_30(0, 45)),
    "backwards": ([(0.5, 40, 1), (1.0, 5, 1)], [*range(40, 55), *range(5, 35)], at_30(0, 45)),
    "repeated": ([(0.5, 20, 1)] * 3, [*range(20, 35)] * 3, at_30(0, 45)),
    "three": ([(0.3, 5, 1), (0.3, 25, 1), (0.4, 44, 1)], [*range(5, 14), *range(25, 34), *range(44, 56)], at_30(0, 30)),
    "empty first": ([(1.5, None, 1), (1.0, 10, 1)], list(range(10, 40)), at_30(1.5, 30)),
    "empty between": (
        [(0.5, 10, 1), (1.0, None, 1), (0.5, 33, 1)], [*range(10, 25), *range(33, 48)], at_30(0, 15) + at_30(1.5, 15)
    ),
    "held still": (
        [(0.5, 10, 1), (1.0, 30, 0), (0.5, 40, 1)],
        [*range(10, 25), 30, *range(40, 55)],
        [*at_30(0, 15), 0.5, *at_30(1.5, 15)],
    ),
    "one frame": ([(1 / 30, 32, 1)], [32], [0.0]),
}  # fmt: skip


@pytest.fixture(scope="module", params=["libx264", "libx265", "mpeg4"])
def plain(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "plain.mp4"
    return write_clip(path, FRAMES, codec=request.param, gop=20, time_base=Fraction(1, 30))


@pytest.mark.parametrize("name", LISTS)
def test_what_the_list_shows_and_when(tmp_path, plain, name):
    parts, numbers, times = LISTS[name]
    frames = framefleet.decode(with_edits(tmp_path / "edited.mp4", plain, parts), num_frames=1000)
    assert [read_barcode(frame, WIDTH) for frame in frames.data] == numbers
    assert frames.pts_s == pytest.approx(times, abs=1.5e-3)
    assert frames.stats.num_missing == 0


def test_rows_alone_are_those_of_the_whole(tmp_path, plain):
    parts, numbers, times = LISTS["three"]
    path = with_edits(tmp_path / "edited.mp4", plain, parts)
    for row in range(len(numbers) - 1, -1, -5):
        at_ns = round(times[row] * NS_PER_S)
        frames = framefleet.decode(path, span=Span(at_ns - NS_PER_S // 100, at_ns + NS_PER_S // 100))
        assert [read_barcode(frame, WIDTH) for frame in frames.data] == [numbers[row]]
        assert frames.indices.tolist() == [row]


def test_another_speed_is_told_of(tmp_path, plain):
    frames = framefleet.decode(with_edits(tmp_path / "fast.mp4", plain, [(1.0, 10, 2.5)]), num_frames=1000)
    assert [read_barcode(frame, WIDTH) for frame in frames.data] == list(range(10, 40))
    assert "an edit plays at rate 2.5: shown at 1" in frames.stats.notes


def test_peers_are_not_trusted_with_several_parts(tmp_path, plain):
    path = with_edits(tmp_path / "edited.mp4", plain, LISTS["three"][0])
    for backend in ("opencv", "torchcodec"):
        with pytest.raises(framefleet.errors.SourceUnsupported):
            framefleet.decode(path, backend=backend)


def test_lists_are_read_whatever_the_boxes_are_like(tmp_path, plain):
    content = with_edits(tmp_path / "edited.mp4", plain, [(0.5, 3, 1), (1.0, None, 1)]).read_bytes()
    edits = read_edits(io.BytesIO(content), 1)
    assert [(edit.start_s, edit.duration_s) for edit in edits] == [(0, Fraction(1, 2)), (Fraction(1, 2), 1)]
    assert edits[1].media_start == -1
    assert read_edits(io.BytesIO(content), 2) == ()
    moov = content.find(b"moov")
    rng = np.random.default_rng(3)
    for _ in range(300):
        torn = bytearray(content)
        torn[int(rng.integers(moov - 4, len(content)))] = int(rng.integers(256))
        with suppress(SourceTooLarge):
            read_edits(io.BytesIO(torn[: int(rng.integers(moov, len(torn)))]), 1)


def test_lists_without_end_are_refused(tmp_path, plain):
    content = bytearray(with_edits(tmp_path / "edited.mp4", plain, [(0.5, 3, 1)]).read_bytes())
    at = content.rfind(b"elst") + 8  # the first one is in a free box
    content[at : at + 4] = struct.pack(">I", 1 << 31)
    with pytest.raises(SourceTooLarge, match="too many parts"):
        framefleet.decode(bytes(content))
