import base64
import io

import numpy as np
import pytest
from odd_clips import with_exif
from PIL import Image, ImageOps
from tiny_models import some_frames

from framefleet.decode.options import DecodeOptions
from framefleet.engine.jpeg_frames import jpeg_frames
from framefleet.engine.openai_wire import frames_url
from framefleet.errors import CaptionRejected, SourceCorrupt, SourceTooLarge


def payload(frames):
    return frames_url(frames).partition(",")[2]


def test_frames_and_clock_come_back():
    sent = some_frames(3, 64, 96, step=10)
    clock = {"num_frames": 3, "fps": 25.0, "frames_indices": [0, 10, 20], "total_num_frames": 30, "duration": 1.2}
    got = jpeg_frames(payload(sent), clock, DecodeOptions())
    assert got.data.shape == sent.data.shape
    assert np.abs(got.data.astype(int) - sent.data).mean() < 3
    assert got.pts_s.tolist() == [0.0, 0.4, 0.8]
    assert (got.fps, got.total_num_frames, got.duration_s) == (25.0, 30, 1.2)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_frames_are_upright_by_their_exif(orientation):
    upright = np.zeros((60, 90, 3), np.uint8)
    upright[:30, :45], upright[30:, :45], upright[:30, 45:] = (250, 0, 0), (0, 250, 0), (0, 0, 250)
    stored = next(
        candidate
        for turns in range(4)
        for mirrored in (upright, upright[:, ::-1])
        if np.array_equal(obeyed(candidate := np.rot90(mirrored, turns), orientation), upright)
    )
    jpeg = io.BytesIO()
    Image.fromarray(stored).save(jpeg, "JPEG", quality=95, subsampling=0)
    sent = base64.b64encode(with_exif(jpeg.getvalue(), orientation)).decode()
    got = jpeg_frames(f"{sent},{sent}", {}, DecodeOptions())
    assert got.data.shape == (2, 60, 90, 3)
    assert np.abs(got.data.astype(int) - upright).mean() < 3


def obeyed(picture, orientation):
    """As Pillow shows it."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.getexif()[0x112] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


def test_without_a_clock_it_is_one_frame_a_second():
    got = jpeg_frames(payload(some_frames(3)), {}, DecodeOptions())
    assert got.pts_s.tolist() == [0.0, 1.0, 2.0]


def test_frames_are_brought_to_the_models_size():
    got = jpeg_frames(payload(some_frames(2, 60, 90)), {}, DecodeOptions(size_factor=32, max_pixels=64 * 96))
    assert got.data.shape == (2, 64, 96, 3)


@pytest.mark.parametrize(
    "clock",
    [
        {"num_frames": 2}, {"frames_indices": [0, 1]}, {"frames_indices": [0, 2, 1]}, {"frames_indices": [-1, 0, 1]},
        {"frames_indices": ["a", 1, 2]}, {"fps": 0}, {"fps": "nan"}, {"total_num_frames": 2}, {"num_framez": 3},
        {"do_sample_frames": True}, {"frames_indices": 3}, {"fps": None},
    ],
)  # fmt: skip
def test_a_clock_that_does_not_fit_is_refused(clock):
    with pytest.raises(CaptionRejected):
        jpeg_frames(payload(some_frames(3)), clock, DecodeOptions())


@pytest.mark.parametrize("bad", ["", "!!!", base64.b64encode(b"not a picture").decode()])
def test_what_is_no_jpeg_is_corrupt(bad):
    with pytest.raises(SourceCorrupt):
        jpeg_frames(bad, {}, DecodeOptions())


def test_a_cut_jpeg_is_corrupt():
    whole = base64.b64decode(payload(some_frames(1)))
    with pytest.raises(SourceCorrupt):
        jpeg_frames(base64.b64encode(whole[: len(whole) // 2]).decode(), {}, DecodeOptions())


def test_a_png_is_not_taken():
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    with pytest.raises(SourceCorrupt):
        jpeg_frames(base64.b64encode(png.getvalue()).decode(), {}, DecodeOptions())


def test_sizes_must_agree_and_be_bounded():
    two = payload(some_frames(1, 64, 96)) + "," + payload(some_frames(1, 64, 64))
    with pytest.raises(SourceCorrupt, match="differ in size"):
        jpeg_frames(two, {}, DecodeOptions())
    with pytest.raises(SourceTooLarge):
        jpeg_frames(payload(some_frames(2, 64, 96)), {}, DecodeOptions(max_output_bytes=1000))
