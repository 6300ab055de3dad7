"""Kinds of files beyond the corpus, each once read wrongly: every frame is right, alone as in company."""

from __future__ import annotations

import io
import re
from fractions import Fraction

import av
import numpy as np
import pytest
from barcode_clips import HEIGHT, WIDTH, write_clip
from corpus_truth import read_barcode
from odd_clips import (
    packed_b_vops,
    packets_of,
    palette_once,
    stamped_in_decode_order,
    turned,
    with_exif,
    with_matrix,
)
from PIL import Image, ImageOps

import framefleet
from framefleet.decode.backends.fake import draw_frame
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.errors import DecodeError, SourceUnsupported
from framefleet.media.jpeg_sequence import jpeg_sequence
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets

FRAMES = 30
PLAIN = [
    ("libx264", "mp4"), ("libx264", "mov"), ("libx264", "mkv"), ("libx264", "ts"), ("libx264", "flv"),
    ("libx264", "avi"), ("libx264", "mpg"), ("libx264", "vob"), ("libx264", "mxf"), ("libx264", "nut"),
    ("libx264", "h264"), ("libx264", "asf"), ("libx265", "mp4"), ("libx265", "ts"), ("libx265", "hevc"),
    ("mpeg2video", "mpg"), ("mpeg2video", "ts"), ("mpeg2video", "mxf"), ("mpeg2video", "m2v"),
    ("mpeg1video", "mpg"), ("mpeg4", "avi"),
    ("mpeg4", "mp4"), ("h263p", "avi"), ("flv", "flv"), ("wmv2", "wmv"), ("msmpeg4", "avi"), ("libvpx", "webm"),
    ("libvpx-vp9", "mp4"), ("libsvtav1", "mkv"), ("ffv1", "mkv"),
]  # fmt: skip


def decode(path, **options):
    return framefleet.decode(path, num_frames=1000, **options)


def shown(frames):
    return [read_barcode(frame, WIDTH) for frame in frames.data]


def alone(path, rows):
    """The barcode of each row when nothing else is asked for."""
    clip = scan(VideoSource.of(path))
    found = []
    for row in rows:
        plan = plan_decode(clip.index, FrameTargets(np.array([row])), clip.info.width, clip.info.height)
        frames = PyAvBackend().decode(clip, plan, DecodeOptions(backend="pyav"))
        found.append(read_barcode(frames.data[0], WIDTH))
    return found


def assert_right(path, numbers):
    """Every frame in order, and rows from the end to the front by themselves."""
    frames = decode(path)
    assert shown(frames) == numbers
    assert np.all(np.diff(frames.pts_s) > 0)
    assert frames.stats.num_missing == 0
    rows = range(len(numbers) - 1, -1, -7)
    assert alone(path, rows) == [numbers[row] for row in rows]
    return frames


@pytest.mark.parametrize(("codec", "container"), PLAIN, ids=lambda name: name)
def test_every_pairing_of_codec_and_container(tmp_path, codec, container):
    options = {"b": "2M", "cpu-used": "8", "deadline": "realtime"} if codec.startswith("libvpx") else {"b": "2M"}
    if codec == "libsvtav1":
        options = {"preset": "12", "svtav1-params": "lp=1"}
    b_frames = 2 if codec in ("libx264", "libx265", "mpeg1video", "mpeg2video", "mpeg4") else 0
    fps = 25 if container == "mxf" else 30
    path = write_clip(
        tmp_path / f"clip.{container}", FRAMES, codec=codec, b_frames=b_frames, fps=fps, options=options,
        time_base=Fraction(1, fps),
    )  # fmt: skip
    frames = assert_right(path, list(range(FRAMES)))
    assert np.diff(frames.pts_s) == pytest.approx(np.full(FRAMES - 1, 1 / fps), abs=1.1e-3)


@pytest.mark.parametrize("fps", [24, 25, 30, 50])
def test_raw_dirac_is_timed_by_its_own_rate(tmp_path, fps):
    """FFmpeg's stamps of it are bare picture numbers, the last one a guess, and its rate is 25 for all."""
    path = write_clip(
        tmp_path / "raw.drc", FRAMES, codec="vc2", b_frames=0, fps=fps, options={"b": "60M"}, time_base=Fraction(1, fps)
    )
    frames = assert_right(path, list(range(FRAMES)))
    assert frames.pts_s == pytest.approx(np.arange(FRAMES) / fps, abs=1e-6)
    assert frames.duration_s == pytest.approx(FRAMES / fps, abs=1e-6)
    assert frames.info.fps_from_header == fps
    assert frames.stats.notes == []


def test_raw_dirac_cut_out_of_the_middle(tmp_path):
    path = write_clip(
        tmp_path / "raw.drc", FRAMES, codec="vc2", b_frames=0, fps=25, options={"b": "60M"}, time_base=Fraction(1, 25)
    )
    content = path.read_bytes()
    starts = [match.start() for match in re.finditer(rb"BBCD\0", content)]  # sequence headers, one a picture
    (tmp_path / "cut.drc").write_bytes(content[starts[10] : starts[20]])
    frames = assert_right(tmp_path / "cut.drc", list(range(10, 20)))
    assert frames.pts_s == pytest.approx(np.arange(10) / 25, abs=1e-6)
    (tmp_path / "two.drc").write_bytes(content[starts[10] : starts[20]] + content[starts[2] : starts[8]])
    frames = assert_right(tmp_path / "two.drc", [*range(10, 20), *range(2, 8)])
    assert frames.pts_s == pytest.approx(np.arange(16) / 25, abs=1e-6)


def test_packed_b_vops_come_one_by_one(tmp_path):
    frames = assert_right(packed_b_vops(tmp_path / "packed.avi", FRAMES), list(range(FRAMES)))
    assert np.diff(frames.pts_s) == pytest.approx(np.full(FRAMES - 1, 1 / 30), abs=1e-6)


def test_a_palette_that_came_once_is_kept(tmp_path):
    assert_right(palette_once(tmp_path / "palette.avi", FRAMES), list(range(FRAMES)))


def test_stamps_in_decode_order_are_not_believed(tmp_path):
    frames = assert_right(stamped_in_decode_order(tmp_path / "genpts.mkv", FRAMES), list(range(FRAMES)))
    assert "pts are decode times: decoded to find the frames" in frames.stats.notes


def test_frames_that_share_a_stamp_keep_their_order(tmp_path):
    path = write_clip(tmp_path / "dense.mkv", FRAMES, times=[row * 0.0007 for row in range(FRAMES)])
    assert_right(path, list(range(FRAMES)))


@pytest.mark.parametrize(("codec", "container"), [("mpeg2video", "mpg"), ("libx264", "ts"), ("gif", "gif")])
def test_two_clips_end_to_end(tmp_path, codec, container):
    pix_fmt = "gray" if codec == "gif" else "yuv420p"
    one = write_clip(
        tmp_path / f"one.{container}", FRAMES, codec=codec, fps=25, pix_fmt=pix_fmt, time_base=Fraction(1, 25)
    )
    one = one.read_bytes()
    (tmp_path / f"two.{container}").write_bytes(one + one)
    frames = assert_right(tmp_path / f"two.{container}", [*range(FRAMES), *range(FRAMES)])
    assert frames.duration_s == pytest.approx(2 * FRAMES / 25, abs=0.1)


@pytest.mark.parametrize("container", ["h264", "hevc", "m2v", "mjpeg"])
def test_a_cut_in_the_last_picture_costs_no_others(tmp_path, container):
    codec = {"h264": "libx264", "hevc": "libx265", "m2v": "mpeg2video", "mjpeg": "mjpeg"}[container]
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = write_clip(
        tmp_path / f"whole.{container}", FRAMES, codec=codec, b_frames=0, pix_fmt=pix_fmt, time_base=Fraction(1, 30)
    )
    last = len(packets_of(path)[-1][0])
    content = path.read_bytes()
    cut = tmp_path / f"cut.{container}"
    cut.write_bytes(content[: len(content) - last * 2 // 3])
    frames = decode(cut)
    assert shown(frames) == list(range(FRAMES - 1))
    assert frames.stats.num_missing == 1
    if container == "mjpeg":
        with pytest.raises(DecodeError):
            alone(cut, [FRAMES - 1])


@pytest.mark.parametrize("hflip", [False, True])
@pytest.mark.parametrize("rotation_deg", [0, 90, 180, 270])
def test_all_eight_ways_a_phone_may_be_held(tmp_path, rotation_deg, hflip):
    frames = decode(turned(tmp_path / "held.mp4", rotation_deg, hflip=hflip))
    assert frames.data.shape[1:] == (HEIGHT, WIDTH, 3)
    assert shown(frames) == list(range(6))


@pytest.mark.parametrize(("asked", "given"), [(30, 0), (100, 90), (200, 180)])
def test_other_angles_go_to_the_nearest_quarter_turn_and_it_is_said(tmp_path, asked, given):
    path = with_matrix(turned(tmp_path / "tilted.mp4", given, hflip=False), asked)
    frames = decode(path, backend="pyav")
    assert shown(frames) == list(range(6))
    assert frames.info.rotation_deg == given
    assert (
        f"turned by {given} degrees, though the display matrix asks for {asked - given:+d} more" in frames.stats.notes
    )


@pytest.mark.parametrize("backend", ["opencv", "torchcodec"])
def test_other_angles_are_refused_elsewhere(tmp_path, backend):
    path = with_matrix(turned(tmp_path / "tilted.mp4", 90, hflip=False), 100)
    with pytest.raises(SourceUnsupported, match=r"display matrix asks for \+10 more"):
        decode(path, backend=backend)


EXIF = {
    1: (0, False), 2: (0, True), 3: (180, False), 4: (180, True),
    5: (270, True), 6: (90, False), 7: (90, True), 8: (270, False),
}  # fmt: skip
"""TIFF's orientations as a mirror first, then a turn clockwise."""


def jpegs_held(orientation, count):
    """JPEG files that are upright once their Exif is obeyed, which Pillow confirms."""
    rotation_deg, hflip = EXIF[orientation]
    jpegs = []
    for row in range(count):
        upright = draw_frame(row, WIDTH, HEIGHT, WIDTH)
        stored = np.rot90(upright, k=rotation_deg // 90)
        encoder = av.CodecContext.create("mjpeg", "w")
        encoder.height, encoder.width, encoder.pix_fmt = *stored.shape[:2], "yuvj420p"
        encoder.time_base = Fraction(1, 25)
        stored = np.ascontiguousarray(stored[:, ::-1] if hflip else stored)
        picture = av.VideoFrame.from_ndarray(stored, "rgb24").reformat(format="yuvj420p")
        jpegs.append(with_exif(bytes(encoder.encode(picture)[0]), orientation))
        seen = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(jpegs[-1]))))
        assert np.abs(seen.astype(int) - upright).mean() < 6
    return jpegs


@pytest.mark.parametrize("orientation", EXIF)
def test_jpegs_with_exif(orientation):
    frames = decode(jpeg_sequence(jpegs_held(orientation, 3)))
    assert frames.data.shape[1:] == (HEIGHT, WIDTH, 3)
    assert shown(frames) == [0, 1, 2]
    assert (frames.info.rotation_deg, frames.info.hflip) == EXIF[orientation]


@pytest.mark.parametrize("suffix", ["mkv", "avi", "mov"])
@pytest.mark.parametrize("orientation", [1, 2, 5, 6, 7])
def test_motion_jpeg_with_exif(tmp_path, orientation, suffix):
    path = tmp_path / f"held.{suffix}"
    jpegs = jpegs_held(orientation, 3)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        swaps = EXIF[orientation][0] in (90, 270)
        stream.width, stream.height = (HEIGHT, WIDTH) if swaps else (WIDTH, HEIGHT)
        stream.pix_fmt = "yuvj420p"
        for number, jpeg in enumerate(jpegs):
            packet = av.Packet(jpeg)
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 25), True
            packet.pts = packet.dts = number
            container.mux(packet)
    frames = decode(path)
    assert frames.data.shape[1:] == (HEIGHT, WIDTH, 3)
    assert shown(frames) == [0, 1, 2]


def test_jpegs_turned_in_different_ways_are_refused():
    with pytest.raises(SourceUnsupported, match=r"orientations \[1, 7\]"):
        jpeg_sequence([*jpegs_held(7, 1), *jpegs_held(1, 1)])


@pytest.mark.parametrize(("code", "name"), [(7, "smpte240m"), (9, "bt2020")])
def test_rare_matrices(tmp_path, code, name):
    colour = (200, 30, 60)
    with av.open(str(tmp_path / "rare.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt, stream.options = 64, 64, "yuv444p", {"crf": "4"}
        stream.codec_context.colorspace = code
        picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), colour, np.uint8), "rgb24")
        picture = picture.reformat(format="yuv444p", dst_colorspace=code, dst_color_range=1)
        container.mux([*stream.encode(picture), *stream.encode(None)])
    frames = decode(tmp_path / "rare.mkv")
    assert frames.info.colour_matrix == name
    assert np.abs(frames.data[0].astype(int) - colour).max() <= 3


def test_a_matrix_that_cannot_be_converted_is_refused(tmp_path):
    path = write_clip(tmp_path / "ycgco.mkv", 2, pix_fmt="yuv444p", options={"colorspace": "ycgco"})
    with pytest.raises(SourceUnsupported, match=r"ycgco\.mkv.*YCgCo"):
        decode(path)


def test_flipped_bits_show_where_the_stream_carries_picture_hashes(tmp_path):
    options = {"x265-params": "log-level=none:bframes=2:hash=1"}
    path = write_clip(tmp_path / "hashed.mkv", FRAMES, codec="libx265", options=options)
    clean, content = decode(path), path.read_bytes()
    coded = packets_of(path)[5][0]
    for part in (3, 4, 5):
        damaged = bytearray(content)
        damaged[content.find(coded) + len(coded) * part // 7] ^= 16
        frames = decode(bytes(damaged))
        assert frames.stats.num_missing > 0
        assert np.array_equal(frames.data, clean.data[frames.indices])
