"""The opencv backend: what it must refuse, and that a walk that goes astray gives nothing."""

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import cv2
import numpy as np
import pytest
from barcode_clips import BT709, flip_bits, write_clip

from framefleet.decode.backends import opencv
from framefleet.decode.backends.fake import read_barcode
from framefleet.decode.backends.opencv import OpenCvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.errors import DecodeError, SeekFailed
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

BACKEND = OpenCvBackend()


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return scan(VideoSource.of(write_clip(tmp_path_factory.mktemp("opencv") / "clip.mp4", 40)))


def decode(clip, rows, **options):
    plan = plan_decode(clip.index, FrameTargets(np.array(rows)), clip.info.width, clip.info.height)
    return BACKEND.decode(clip, plan, DecodeOptions(**options))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"container": "mpegts"}, "MP4 and Matroska"),
        ({"container": "avi"}, "MP4 and Matroska"),
        ({"codec": "av1"}, "av1"),
        ({"num_video_streams": 2}, "several video streams"),
        ({"has_alpha": True}, "transparency"),
        ({"colour_matrix": "bt2020"}, "BT.2020"),
        ({"transfer": "pq"}, "tone mapping"),
        ({"colour_matrix": "bt709", "is_matrix_tagged": False}, "untagged"),
        ({"is_interlaced_from_header": True}, "interlaced"),
    ],
)
def test_it_refuses_streams_it_gets_wrong(clip, changes, reason):
    assert reason in BACKEND.refuse(replace(clip.info, **changes), clip.index)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "decoded"}, "decoded"),
        ({"notes": ("timestamps reset at row 60",)}, "timestamps reset"),
        ({"packet_of_row": np.arange(39), "pts_ns": np.arange(39) * 10}, "1 packets are not shown"),
        ({"packet_is_keyframe": np.zeros(40, np.bool_)}, "keyframe"),
    ],
)
def test_it_refuses_indexes_it_cannot_follow(clip, changes, reason):
    assert reason in BACKEND.refuse(clip.info, replace(clip.index, **changes))


def test_an_old_opencv_is_refused_where_colours_are_tagged(clip, monkeypatch):
    tagged = replace(clip.info, colour_matrix="bt709", is_matrix_tagged=True)
    assert BACKEND.refuse(tagged, clip.index) is None
    monkeypatch.setattr(opencv, "version", lambda name: "4.12.0.88")
    assert "BT.601" in BACKEND.refuse(tagged, clip.index)
    assert BACKEND.refuse(clip.info, clip.index) is None


def test_a_missing_opencv_is_told(clip, monkeypatch):
    monkeypatch.setattr(opencv.importlib.util, "find_spec", lambda name: None)
    assert "framefleet[opencv]" in BACKEND.refuse(clip.info, clip.index)


def test_a_version_is_found_whatever_the_distribution(monkeypatch):
    def only_contrib(name):
        if name != "opencv-contrib-python":
            raise metadata.PackageNotFoundError
        return "4.13.0.1"

    monkeypatch.setattr(opencv, "version", only_contrib)
    assert opencv._library_version() == (4, 13)


def test_another_time_than_the_index_says_gives_nothing(clip):
    shifted = clip.index.pts_ns.copy()
    shifted[10:] += 5_000_000
    wrong = replace(clip, index=replace(clip.index, pts_ns=shifted))
    assert len(decode(wrong, [0, 5])) == 2
    with pytest.raises(SeekFailed, match="row 10"):
        decode(wrong, [0, 20])


def test_fewer_frames_than_the_index_says_give_nothing(clip):
    longer = replace(
        clip.index,
        **{name: np.append(getattr(clip.index, name), [40 if name == "packet_of_row" else 1])
           for name in ("packet_pts", "packet_is_keyframe", "packet_is_reference", "packet_of_row")},
        pts_ns=np.append(clip.index.pts_ns, clip.index.end_ns),
        packet_pos=None,
        packet_size=None,
    )  # fmt: skip
    with pytest.raises(DecodeError, match="stops before"):
        decode(replace(clip, index=longer), [40])


def test_a_picture_of_another_size_gives_nothing(clip):
    other = replace(clip, info=replace(clip.info, coded_width=640))
    with pytest.raises(DecodeError, match="another size"):
        decode(other, [0])


def test_damage_is_heard(clip, tmp_path):
    raised = 0
    for seed in range(6):
        flipped = flip_bits(clip_path(clip), tmp_path / f"{seed}.mp4", seed=seed)
        damaged = replace(clip, source=VideoSource.of(flipped))
        try:
            frames = decode(damaged, range(40))
        except DecodeError:
            raised += 1
        else:
            assert np.abs(frames.data.astype(int) - decode(clip, range(40)).data).mean(axis=(1, 2, 3)).max() < 1
    assert raised >= 4


def clip_path(clip):
    return Path(clip.source.location)


def test_it_cannot_deinterlace(clip):
    with pytest.raises(DecodeError, match="deinterlace"):
        decode(clip, [0], deinterlace=True)


@pytest.mark.parametrize(("rotation_deg", "hflip"), [(90, False), (180, False), (270, False), (0, True), (90, True)])
def test_turns_and_mirrors_are_ours(clip, rotation_deg, hflip):
    width, height = (clip.info.height, clip.info.width) if rotation_deg % 180 else (clip.info.width, clip.info.height)
    info = replace(clip.info, rotation_deg=rotation_deg, hflip=hflip, width=width, height=height)
    turned = decode(replace(clip, info=info), [7]).data[0]
    expected = decode(clip, [7]).data[0]
    expected = np.rot90(expected[:, ::-1] if hflip else expected, -(rotation_deg // 90))
    assert np.array_equal(turned, expected)


def test_a_tagged_hd_clip_comes_in_its_own_colours(tmp_path):
    hd = scan(VideoSource.of(write_clip(tmp_path / "hd.mp4", 3, size=(1280, 720), matrix=BT709)))
    frame = decode(hd, [1]).data[0]
    assert np.abs(frame[-60, 640].astype(int) - (200, 30, 60)).max() <= 3
    assert read_barcode(frame, 1280) == 1


def test_nothing_of_opencv_stays_changed(clip):
    decode(clip, [0])
    capture = cv2.VideoCapture(clip.source.location, cv2.CAP_FFMPEG)
    assert capture.get(cv2.CAP_PROP_ORIENTATION_AUTO) == 1
    capture.release()
