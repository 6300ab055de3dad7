"""The torchcodec backend: what it must refuse, and that other frames than the index's give nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from barcode_clips import BT709, write_clip

from framefleet.decode.backends import torchcodec
from framefleet.decode.backends.fake import read_barcode
from framefleet.decode.backends.torchcodec import TorchCodecBackend
from framefleet.decode.gpu.resize import resize_tensor
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.errors import DecodeError, DeviceError, SeekFailed
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

BACKEND = TorchCodecBackend()


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return scan(VideoSource.of(write_clip(tmp_path_factory.mktemp("torchcodec") / "clip.mp4", 40)))


def decode(clip, rows, **options):
    plan = plan_decode(clip.index, FrameTargets(np.array(rows)), clip.info.width, clip.info.height)
    return BACKEND.decode(clip, plan, DecodeOptions(**options))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"container": "avi"}, "MP4 and Matroska"),
        ({"container": "mpegts"}, "MP4 and Matroska"),
        ({"codec": "mpeg4"}, "mpeg4"),
        ({"codec": "mpeg2video"}, "mpeg2video"),
        ({"codec": "prores"}, "prores"),
        ({"is_full_range": True, "bit_depth": 10}, "full range"),
        ({"hflip": True}, "mirror"),
        ({"has_alpha": True}, "transparency"),
        ({"transfer": "hlg"}, "tone mapping"),
        ({"colour_matrix": "bt709", "is_matrix_tagged": False}, "untagged"),
    ],
)
def test_it_refuses_streams_it_gets_wrong(clip, changes, reason):
    assert reason in BACKEND.refuse(replace(clip.info, **changes), clip.index)


@pytest.mark.parametrize(
    ("changes", "reason"), [({"method": "decoded"}, "decoded"), ({"notes": ("joined midway",)}, "joined midway")]
)
def test_it_refuses_indexes_it_cannot_follow(clip, changes, reason):
    assert reason in BACKEND.refuse(clip.info, replace(clip.index, **changes))


def test_a_missing_torchcodec_is_told(clip, monkeypatch):
    monkeypatch.setattr(torchcodec.importlib.util, "find_spec", lambda name: None)
    assert "framefleet[torchcodec]" in BACKEND.refuse(clip.info, clip.index)


def test_other_times_than_the_index_says_give_nothing(clip):
    shifted = clip.index.pts_ns.copy()
    shifted[10:] += 5_000_000
    wrong = replace(clip, index=replace(clip.index, pts_ns=shifted))
    assert len(decode(wrong, [0, 5])) == 2
    with pytest.raises(SeekFailed, match=r"5\.000 ms"):
        decode(wrong, [0, 20])


def test_another_count_than_the_index_says_gives_nothing(clip):
    shorter = replace(clip.index, packet_of_row=np.arange(39), pts_ns=clip.index.pts_ns[:39].copy())
    with pytest.raises(DecodeError, match="counts other frames"):
        decode(replace(clip, index=shorter), [0])


def test_it_cannot_deinterlace(clip):
    with pytest.raises(DecodeError, match="deinterlace"):
        decode(clip, [0], deinterlace=True)


def test_what_is_no_video_is_a_decode_error(clip, tmp_path):
    junk = tmp_path / "junk.mp4"
    junk.write_bytes(b"no video at all" * 100)
    with pytest.raises(DecodeError, match="torchcodec failed"):
        decode(replace(clip, source=VideoSource.of(junk)), [0])


def test_many_chunks_are_one_result(clip, monkeypatch):
    whole = decode(clip, range(40)).data
    monkeypatch.setattr(torchcodec, "_CHUNK_BYTES", 3 * clip.info.coded_width * clip.info.coded_height * 7)
    assert np.array_equal(decode(clip, range(40)).data, whole)


def test_a_tagged_hd_clip_comes_in_its_own_colours(tmp_path):
    hd = scan(VideoSource.of(write_clip(tmp_path / "hd.mp4", 3, size=(1280, 720), matrix=BT709)))
    frame = decode(hd, [1]).data[0]
    assert np.abs(frame[-60, 640].astype(int) - (200, 30, 60)).max() <= 3
    assert read_barcode(frame, 1280) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_is_refused_with_the_reason_where_there_is_none(clip):
    with pytest.raises(DeviceError, match="no CUDA device"):
        decode(clip, [0], device="cuda")


@pytest.mark.parametrize(
    "changes",
    [
        {"codec": "vp8"},
        {"bit_depth": 10},
        {"chroma": "4:4:4"},
        {"is_full_range": True},
        {"rotation_deg": 90},
        {"coded_width": 321},
    ],
)
def test_cuda_is_refused_for_what_nvdec_gets_wrong(clip, changes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(DeviceError, match="not right for this clip"):
        decode(replace(clip, info=replace(clip.info, **changes)), [0], device="cuda")


def test_tensors_are_resized_as_pictures_are():
    batch = torch.randint(0, 255, (2, 40, 60, 3), dtype=torch.uint8)
    smooth = torch.nn.functional.avg_pool2d(batch.permute(0, 3, 1, 2).float(), 5, 1, 2).byte().permute(0, 2, 3, 1)
    on_cpu = torchcodec._resized(smooth.contiguous(), 30, 20)
    as_tensor = resize_tensor(smooth.contiguous(), 30, 20)
    assert as_tensor.shape == (2, 20, 30, 3)
    assert np.abs(on_cpu.astype(int) - as_tensor.numpy()).max() <= 2
