"""Which stream is the video."""

from __future__ import annotations

import av
import numpy as np
import pytest
from av.stream import Disposition

import framefleet

SMALL, LARGE = (64, 48), (128, 96)


def write(path, *streams):
    """Streams of (codec, size, disposition, number of frames)."""
    with av.open(str(path), "w") as container:
        made = []
        for codec, size, disposition, count in streams:
            stream = container.add_stream(codec, rate=10)
            stream.width, stream.height = size
            stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            stream.disposition = disposition
            made.append((stream, count))
        for stream, count in made:
            picture = np.full((stream.height, stream.width, 3), 90, np.uint8)
            for number in range(count):
                frame = av.VideoFrame.from_ndarray(picture, "rgb24")
                frame.pts = number
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return path


NONE, DEFAULT = Disposition(0), Disposition.default


@pytest.mark.parametrize(
    ("streams", "chosen"),
    [
        ([("libx264", SMALL, NONE, 5), ("libx264", LARGE, NONE, 5)], LARGE),
        ([("libx264", LARGE, NONE, 5), ("libx264", SMALL, DEFAULT, 5)], SMALL),
        ([("libx264", SMALL, DEFAULT, 5), ("libx264", LARGE, DEFAULT, 5)], LARGE),
        ([("mjpeg", LARGE, DEFAULT, 1), ("libx264", SMALL, NONE, 5)], SMALL),
        ([("mjpeg", LARGE, DEFAULT, 5)], LARGE),
    ],
)
def test_the_video_is_the_default_then_the_largest_and_never_a_still(tmp_path, streams, chosen):
    info = framefleet.probe(write(tmp_path / "clip.mkv", *streams))
    assert (info.width, info.height) == chosen


def test_an_attached_picture_is_no_video(corpus):
    assert framefleet.probe(corpus / "cover_art_first.mp4").stream_index == 1
    with pytest.raises(framefleet.errors.SourceUnsupported, match="attached picture"):
        framefleet.probe(corpus / "audio_with_cover.mp4")
