"""Frames extracted beforehand keep their pictures and their times."""

from __future__ import annotations

import io

import numpy as np
import pytest
from corpus_truth import FILES, read_barcode
from PIL import Image

import framefleet
from framefleet.errors import ConfigError, SourceCorrupt
from framefleet.media.jpeg_sequence import jpeg_sequence


@pytest.fixture(scope="module")
def taken():
    """Eight frames of base.mp4 as JPEG files, and their rows."""
    frames = framefleet.decode(FILES / "base.mp4", num_frames=8)
    return [as_jpeg(frame) for frame in frames.data], frames.indices.tolist(), frames


def as_jpeg(frame, size=None):
    file = io.BytesIO()
    picture = Image.fromarray(frame)
    (picture.resize(size) if size else picture).save(file, "JPEG", quality=95)
    return file.getvalue()


def test_pictures_and_times(taken):
    jpegs, rows, original = taken
    source = jpeg_sequence(jpegs, fps=30, frames_indices=rows, total_num_frames=60)
    frames = framefleet.decode(source)
    assert [read_barcode(frame, 176) for frame in frames.data] == rows
    assert np.allclose(frames.pts_s, original.pts_s, atol=1e-6)
    assert frames.stats.num_missing == 0
    assert abs(frames.duration_s - 2.0) < 1e-6
    assert np.abs(frames.data.astype(int) - original.data).mean() < 3


def test_fractional_rates_are_exact(taken):
    jpegs, rows, _ = taken
    frames = framefleet.decode(jpeg_sequence(jpegs, fps=30_000 / 1001, frames_indices=rows))
    assert np.allclose(frames.pts_s, np.array(rows) * 1001 / 30_000, atol=1e-9)


def test_without_a_clock_there_is_one_frame_a_second(taken):
    frames = framefleet.decode(jpeg_sequence(taken[0]), num_frames=3)
    assert frames.pts_s.tolist() == [0.0, 4.0, 7.0]


def test_sizes_may_differ(taken):
    jpegs, _, original = taken
    frames = framefleet.decode(jpeg_sequence([*jpegs[:4], as_jpeg(original.data[4], (352, 288))]))
    assert frames.data.shape == (5, 144, 176, 3)
    assert any("352x288" in note for note in frames.stats.notes)


@pytest.mark.parametrize(
    "clock",
    [
        {"fps": 0}, {"frames_indices": [0, 1]}, {"frames_indices": [0, 2, 1, 3, 4, 5, 6, 7]},
        {"frames_indices": list(range(8)), "total_num_frames": 7}, {"duration_s": 1.0},
    ],
)  # fmt: skip
def test_clocks_that_do_not_fit(taken, clock):
    with pytest.raises(ConfigError):
        jpeg_sequence(taken[0], **clock)


def test_what_is_no_jpeg(taken):
    with pytest.raises(SourceCorrupt, match="frame 1"):
        jpeg_sequence([taken[0][0], b"GIF89a"])
    with pytest.raises(SourceCorrupt):
        jpeg_sequence([b"\xff\xd8\xff\xd9"])
    with pytest.raises(ConfigError):
        jpeg_sequence([])
