"""Colours of patches whose samples are computed, where tags are missing, misplaced or often misread."""

from __future__ import annotations

import numpy as np
import pytest
from colour_clips import COLOURS, GREYS, patches_of, with_colr, write_patches

import framefleet
from framefleet.errors import SourceUnsupported

LIMITED, FULL = 1, 2
BT709, BT601, BT2020 = 1, 6, 9


def assert_colours(clip, want, backend="auto"):
    frames = framefleet.decode(clip, num_frames=2, backend=backend)
    for picture in frames.data:
        assert np.abs(patches_of(picture) - want).max() <= 3
    return frames


def assert_refused(clip, backend, reason):
    with pytest.raises(SourceUnsupported, match=reason):
        framefleet.decode(clip, num_frames=2, backend=backend)


@pytest.mark.parametrize("pix_fmt", ["gray", "gray10le", "gray12le"])
@pytest.mark.parametrize("is_full", [False, True])
def test_grey_in_either_range(tmp_path, pix_fmt, is_full):
    tags = (BT709, BT709, BT709, FULL if is_full else LIMITED)
    path = write_patches(tmp_path / "grey.mp4", GREYS, pix_fmt=pix_fmt, is_full=is_full, tags=tags)
    assert_colours(path, GREYS)
    for backend in ("opencv", "torchcodec"):
        if is_full:
            assert_colours(path, GREYS, backend)
        else:
            assert_refused(path, backend, "limited grey")


def test_grey_of_no_stated_range_is_full(tmp_path):
    assert_colours(write_patches(tmp_path / "grey.mkv", GREYS, codec="ffv1", pix_fmt="gray", is_full=True), GREYS)


@pytest.mark.parametrize("matrix", [BT709, BT2020])
@pytest.mark.parametrize("is_full", [False, True])
def test_tags_in_the_container_alone_count(tmp_path, matrix, is_full):
    path = write_patches(tmp_path / "bare.mp4", matrix=matrix, is_full=is_full)
    clip = with_colr(path.read_bytes(), matrix, is_full=is_full)
    info = assert_colours(clip, COLOURS).info
    assert (info.is_full_range, info.is_matrix_tagged) == (is_full, False)
    for backend in ("opencv", "torchcodec"):
        assert_refused(clip, backend, "colours|range")


def test_a_range_in_the_container_alone_counts(tmp_path):
    path = write_patches(tmp_path / "bare.mp4", matrix=BT601, is_full=True)
    clip = with_colr(path.read_bytes(), BT601, is_full=True)
    assert_colours(clip, COLOURS)
    for backend in ("opencv", "torchcodec"):
        assert_refused(clip, backend, "full range")


@pytest.mark.parametrize(("codec", "pix_fmt"), [("libvpx-vp9", "yuv420p"), ("libx265", "yuv444p")])
def test_full_range_that_the_pixel_format_does_not_tell(tmp_path, codec, pix_fmt):
    tags = (BT709, BT709, BT709, FULL)
    path = write_patches(tmp_path / "full.mp4", codec=codec, pix_fmt=pix_fmt, is_full=True, tags=tags)
    assert_colours(path, COLOURS)
    assert_colours(path, COLOURS, "opencv")
    assert_refused(path, "torchcodec", "full range")


@pytest.mark.parametrize("transfer", [16, 18])
def test_hdr_of_unknown_primaries_and_matrix_is_bt2020(tmp_path, transfer):
    shown = []
    for name, tags in (("told", (BT2020, BT2020, transfer, LIMITED)), ("untold", (2, 2, transfer, LIMITED))):
        path = write_patches(tmp_path / f"{name}.mkv", pix_fmt="yuv420p10le", matrix=BT2020, tags=tags)
        frames = framefleet.decode(path, num_frames=1)
        assert frames.stats.tone_mapped
        shown.append(patches_of(frames.data[0]))
    assert np.array_equal(*shown)


def test_dolby_vision_that_is_nothing_else_is_refused(tmp_path):
    for tags, is_right in (((2, 2, 2, LIMITED), False), ((BT2020, BT2020, 16, LIMITED), True)):
        path = write_patches(tmp_path / "dolby.mp4", pix_fmt="yuv420p10le", matrix=BT2020, tags=tags)
        clip = path.read_bytes().replace(b"hev1", b"dvhe")
        if is_right:
            assert framefleet.decode(clip, num_frames=1).stats.tone_mapped
        else:
            assert_refused(clip, "auto", "Dolby Vision.*try: convert")
