"""The stream that DeepStream is given: which packets, in which places, with which tags."""

import io

import av
import numpy as np
import pytest
from barcode_clips import BT601, BT709, write_clip

from framefleet.decode.backends.fake import read_barcode
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.deepstream.feed import cut
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.media.limits import ScanLimits
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets


def feed_of(path, rows):
    clip = scan(VideoSource.of(path))
    plan = plan_decode(clip.index, FrameTargets(np.array(rows)), clip.info.width, clip.info.height)
    return clip, plan, cut(clip, plan, ScanLimits())


def pictures(feed):
    """Every picture of the stream, as a decoder that knows nothing else gives them."""
    with av.open(io.BytesIO(feed.content.tobytes())) as container:
        return list(container.decode(video=0))


@pytest.mark.parametrize("rows", [[0], [13, 14, 35], [7, 20, 21, 59], [59]])
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_wanted_pictures_are_where_the_feed_says(tmp_path, codec, rows):
    path = write_clip(tmp_path / "clip.mp4", 60, codec=codec, gop=12, b_frames=3)
    _, _, feed = feed_of(path, rows)
    decoded = pictures(feed)
    assert len(decoded) == feed.num_pictures
    shown = [read_barcode(decoded[place].to_ndarray(format="rgb24"), 320) for place in feed.places]
    assert shown == rows


def test_closed_runs_are_cut_apart_and_open_ones_walked_through(corpus):
    _, plan, feed = feed_of(corpus / "base.mp4", [0, 59])
    assert len(plan.groups) > 1
    assert feed.num_pictures == plan.frames_walked
    clip, plan, feed = feed_of(corpus / "hevc_open_gop.mp4", [0, scan_length(corpus / "hevc_open_gop.mp4") - 1])
    assert len(plan.groups) > 1
    assert feed.num_pictures > plan.frames_walked
    assert len(pictures(feed)) == feed.num_pictures
    assert feed.num_pictures <= len(clip.index.packet_pts)


def scan_length(path):
    return scan(VideoSource.of(path)).index.num_frames


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "ts"])
@pytest.mark.parametrize(
    ("options", "code", "is_full"),
    [
        ({}, BT601, False),
        ({"size": (1280, 720)}, BT709, False),
        ({"size": (1280, 720), "codec": "libx265"}, BT709, False),
        ({"matrix": BT709}, BT709, False),
        ({"matrix": BT601, "pix_fmt": "yuvj420p"}, BT601, True),
    ],
)
def test_colours_are_tagged_in_full(tmp_path, suffix, options, code, is_full):
    _, _, feed = feed_of(write_clip(tmp_path / f"clip.{suffix}", 8, **options), [0, 7])
    for picture in pictures(feed):
        assert {picture.colorspace, picture.color_primaries, picture.color_trc} == {code}
        assert (picture.color_range == 2) is is_full


def test_h264_that_is_not_entered_at_an_idr_picture_is_walked_from_one(corpus):
    rows = list(range(40, 44))
    clip, plan, feed = feed_of(corpus / "open_gop.mp4", rows)
    assert plan.groups[0].first_packet > 0
    decoded = pictures(feed)
    assert len(decoded) == feed.num_pictures > plan.frames_walked
    alone = decode_rows(clip, plan)
    shown = [decoded[place].to_ndarray(format="rgb24") for place in feed.places]
    assert np.abs(np.stack(shown).astype(int) - alone).mean() < 1


def decode_rows(clip, plan):
    return PyAvBackend().decode(clip, plan, DecodeOptions()).data
