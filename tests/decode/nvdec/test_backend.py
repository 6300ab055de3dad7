"""The NVDEC backend on the software NVDEC: the same frames as PyAV, from fewer packets, no state kept."""

import dataclasses

import numpy as np
import pytest

from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.backends.pynvvideocodec import PyNvVideoCodecBackend
from framefleet.decode.nvdec.fake import FakeNvdecDevice
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.decode.pool import DecodePool
from framefleet.decode.session import scan_timed
from framefleet.decode.targets import choose_targets, output_size
from framefleet.errors import DeviceError
from framefleet.media.source import VideoSource

TAKEN = [
    "base.mp4", "vfr_phone.mp4", "long_gop.mp4", "editlist_cut.mp4", "neg_pts_editlist.mp4", "open_gop.mp4",
    "hevc_open_gop.mp4", "hevc_gop3_161.mp4", "intra_refresh.mp4", "rot90.mp4", "hflip_matrix.mp4",
    "start_at_5s.mkv", "fragmented.mp4", "slowmo_240fps.mp4", "cover_art_first.mp4",
    "same_coded_1280x532.mp4", "same_coded_1280x530.mp4", "no_nbframes.webm", "no_duration.webm", "fps_1000.webm",
]  # fmt: skip
REFUSED = {
    "h264_hi10.mp4": "H.264", "h264_yuv444.mp4": "H.264", "prores_422_10.mov": "prores", "hdr_pq_bt2020.mp4": "HDR",
    "missing_pts_bframes.avi": "decoded", "raw_elementary.h264": "packets", "h264_5120x2880.mp4": "maximum",
    "interlaced_tff.mp4": "interlaced", "hevc_main10.mp4": "10 bit", "vp9_alpha.webm": "alpha", "av1.mp4": "av1",
    "odd_241x161_vp9.webm": "odd sides", "mpeg2.mpg": "mpeg2video", "h264_gray.mp4": "without chroma",
}  # fmt: skip


@pytest.fixture
def device():
    return FakeNvdecDevice()


@pytest.fixture
def backend(device):
    made = PyNvVideoCodecBackend(lambda: device)
    yield made
    made.close()
    assert device.num_open == 0


def planned(path, **asked):
    options = DecodeOptions(**{"num_frames": 8, **asked})
    clip, _ = scan_timed(VideoSource.of(path), options)
    targets = choose_targets(clip.index, options)
    width, height = output_size(clip.info, len(targets.rows), options)
    return clip, plan_decode(clip.index, targets, width, height), options


@pytest.mark.parametrize("prefer", ["auto", "latency", "throughput"])
@pytest.mark.parametrize("name", TAKEN)
def test_same_frames_as_pyav(corpus, backend, name, prefer):
    clip, plan, options = planned(corpus / name, prefer=prefer)
    assert backend.refuse(clip.info, clip.index) is None
    ours, theirs = backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_array_equal(ours.pts_s, theirs.pts_s)
    assert ours.data.shape == theirs.data.shape
    assert np.abs(ours.data.astype(int) - theirs.data).mean() < 2
    assert ours.stats.num_missing == 0


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason_before_anything_opens(corpus, backend, device, name):
    clip, _, _ = planned(corpus / name)
    assert REFUSED[name] in (backend.refuse(clip.info, clip.index) or "")
    assert device.num_opened == 0


def test_refuses_vp9_that_shows_pictures_again_or_nothing(corpus, backend):
    """NVDEC gives no picture for a packet that only names an earlier one (seen on an H200)."""
    clip, _, _ = planned(corpus / "no_nbframes.webm")
    sizes = clip.index.packet_size.copy()
    sizes[20] = 1
    again = dataclasses.replace(clip.index, packet_size=sizes)
    assert "decoded before" in (backend.refuse(clip.info, again) or "")
    hidden = dataclasses.replace(clip.index, packet_of_row=clip.index.packet_of_row[1:], pts_ns=clip.index.pts_ns[1:])
    assert "show nothing" in (backend.refuse(clip.info, hidden) or "")


def test_skips_what_nobody_wants(corpus, backend, device):
    clip, plan, options = planned(corpus / "open_gop.mp4", num_frames=3)
    backend.decode(clip, plan, options)
    assert device.num_fed == plan.frames_walked < len(clip.index.packet_pts) / 2


def test_resize_goes_with_the_conversion(corpus, backend):
    clip, plan, options = planned(corpus / "rot90.mp4", size=(88, 72))
    ours, theirs = backend.decode(clip, plan, options), PyAvBackend().decode(clip, plan, options)
    assert ours.data.shape == (8, 72, 88, 3)
    assert np.abs(ours.data.astype(int) - theirs.data).mean() < 2


def test_nothing_passes_from_one_clip_to_the_next(corpus, device):
    fresh = {}
    names = ["same_coded_1280x532.mp4", "same_coded_1280x530.mp4", "base.mp4"]
    for name in names:
        alone = PyNvVideoCodecBackend(lambda: device)
        fresh[name] = alone.decode(*planned(corpus / name)).data
        alone.close()
    shared = PyNvVideoCodecBackend(lambda: device, lanes=1)
    for name in [*names, *reversed(names)]:
        np.testing.assert_array_equal(shared.decode(*planned(corpus / name)).data, fresh[name])
    shared.close()


def test_without_a_gpu_it_says_why(corpus):
    def no_gpu():
        raise DeviceError("no CUDA device is visible", remedy="backend='pyav'")

    clip, _, _ = planned(corpus / "base.mp4")
    assert "no CUDA device" in (PyNvVideoCodecBackend(no_gpu).refuse(clip.info, clip.index) or "")


def test_a_parcel_packed_in_a_worker_is_the_same(corpus, backend):
    clip, plan, options = planned(corpus / "hevc_open_gop.mp4")
    with DecodePool(workers=1) as pool:
        parcel = pool.run("pack", corpus / "hevc_open_gop.mp4", options)
    here, there = backend.decode(clip, plan, options), backend.decode_parcel(parcel, options)
    np.testing.assert_array_equal(here.data, there.data)
    np.testing.assert_array_equal(here.indices, there.indices)
