"""Where the picture lies in what was coded: cropping windows, turns and sizes, by streams and containers."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from barcode_clips import write_clip

import framefleet
from framefleet.errors import DecodeError, SourceUnsupported


def filtered(path, to, bit_stream_filter):
    """`path` copied through one of ffmpeg's bit stream filters."""
    command = ["ffmpeg", "-v", "error", "-y", "-i", path, "-c", "copy", "-bsf:v", bit_stream_filter, to]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return to


@pytest.mark.parametrize(("codec", "name"), [("libx264", "h264"), ("libx265", "hevc")])
@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("window", [(16, 0, 0, 0), (2, 14, 6, 10), (64, 64, 32, 32), (0, 2, 0, 2)])
def test_cropping_windows_are_exact_on_all_sides(tmp_path, codec, name, container, window):
    whole = write_clip(tmp_path / f"whole.{container}", 4, codec=codec, b_frames=0)
    left, right, top, bottom = window
    crop = f"{name}_metadata=crop_left={left}:crop_right={right}:crop_top={top}:crop_bottom={bottom}"
    path = filtered(whole, tmp_path / f"cropped.{container}", crop)
    pictures = framefleet.decode(whole, num_frames=4).data
    want = pictures[:, top : pictures.shape[1] - bottom, left : pictures.shape[2] - right]
    frames = framefleet.decode(path, num_frames=4)
    assert frames.data.shape == want.shape
    assert np.abs(frames.data.astype(int) - want).mean() < 1
    for backend in ("opencv", "torchcodec"):
        if left % 64:
            with pytest.raises(SourceUnsupported, match=r"left|only MP4"):
                framefleet.decode(path, num_frames=4, backend=backend)
        elif container != "ts":
            assert np.abs(framefleet.decode(path, num_frames=4, backend=backend).data.astype(int) - want).mean() < 1


@pytest.mark.parametrize("rotation_deg", [90, 180, 270])
def test_a_turn_that_only_the_stream_asks_for(tmp_path, rotation_deg):
    plain = write_clip(tmp_path / "plain.mp4", 4)
    turn = f"h264_metadata=display_orientation=insert:rotate={360 - rotation_deg}"
    path = filtered(plain, tmp_path / "turned.mp4", turn)
    want = np.rot90(framefleet.decode(plain, num_frames=4).data, k=-rotation_deg // 90, axes=(1, 2))
    for backend in ("auto", "opencv"):
        assert np.array_equal(framefleet.decode(path, num_frames=4, backend=backend).data, want)
    with pytest.raises(DecodeError, match="turns otherwise"):
        framefleet.decode(path, num_frames=4, backend="torchcodec")
