"""The pyav backend: pixels, seeking, damage, threads, deinterlacing, limits. The contract suite has the rest."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from barcode_clips import write_clip
from corpus_truth import FILES, truth_of

import framefleet
from framefleet.decode.backends.fake import read_barcode
from framefleet.decode.backends.pyav import PyAvBackend
from framefleet.decode.options import DecodeOptions
from framefleet.decode.plan import plan_decode
from framefleet.decode.walk import PacketWalk
from framefleet.errors import ConfigError, DecodeError, DecodeTimeout, SeekFailed, SourceUnsupported
from framefleet.media.limits import ScanLimits
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.sampling.sampler import FrameTargets
from framefleet.units import Span

RED, GREEN, BLUE, WHITE, GREY, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255,) * 3, (128,) * 3, (0,) * 3
PATCHES = (RED, GREEN, BLUE, WHITE, GREY, BLACK)
MATRIX_BT601, MATRIX_BT709, MATRIX_BT2020, LIMITED, FULL = 6, 1, 9, 1, 2


def patches(size=(288, 144)):
    width, height = size
    stripe = width // 6
    return np.repeat(np.repeat(np.array(PATCHES, np.uint8)[None], stripe, axis=1), height, axis=0)


def write_patches(path, pix_fmt, matrix, colour_range, *, codec="libx264", options=None, count=3):
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 288, 144, pix_fmt
        stream.options = options or {"crf": "8"}
        stream.codec_context.colorspace = matrix
        stream.codec_context.color_range = colour_range
        for number in range(count):
            picture = av.VideoFrame.from_ndarray(patches(), "rgb24").reformat(
                format=pix_fmt, dst_colorspace={1: 1, 6: 5, 9: 9}[matrix], dst_color_range=colour_range
            )
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


X265 = {"x265-params": "log-level=none:lossless=1"}
LAYOUTS = [
    ("yuv420p", "libx264", None), ("yuv422p", "libx264", None), ("yuv444p", "libx264", None),
    ("yuv420p10le", "libx265", X265), ("yuv422p10le", "libx265", X265), ("yuv444p10le", "libx265", X265),
    ("yuv444p12le", "libx265", X265),
]  # fmt: skip


@pytest.mark.parametrize("colour_range", [LIMITED, FULL])
@pytest.mark.parametrize("matrix", [MATRIX_BT601, MATRIX_BT709, MATRIX_BT2020])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout[0])
def test_true_colours_from_every_layout(tmp_path, layout, matrix, colour_range):
    pix_fmt, codec, options = layout
    path = write_patches(tmp_path / "patches.mp4", pix_fmt, matrix, colour_range, codec=codec, options=options)
    frame = framefleet.decode(path, num_frames=1, backend="pyav").data[0].astype(int)
    for number, colour in enumerate(PATCHES):
        assert np.abs(frame[72, 48 * number + 24] - colour).max() <= 3, (colour, frame[72, 48 * number + 24])


@pytest.mark.parametrize("size", [(144, 72), (576, 288), (96, 144), (101, 53)])
def test_true_colours_at_every_size(tmp_path, size):
    path = write_patches(tmp_path / "patches.mp4", "yuv420p", MATRIX_BT709, LIMITED)
    frame = framefleet.decode(path, num_frames=1, size=size, backend="pyav").data[0].astype(int)
    assert frame.shape == (size[1], size[0], 3)
    for number, colour in enumerate(PATCHES):
        x = int((number + 0.5) * size[0] / 6)
        assert np.abs(frame[size[1] // 2, x] - colour).max() <= 3


@pytest.mark.parametrize("transfer", [16, 18])
def test_hdr_is_brought_to_sdr_and_said(tmp_path, transfer):
    path = tmp_path / "hdr.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx265", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p10le"
        params = f"log-level=none:colorprim=bt2020:transfer={transfer}:colormatrix=bt2020nc"
        stream.options = {"x265-params": params}
        stream.codec_context.color_trc, stream.codec_context.color_primaries = transfer, 9
        stream.codec_context.colorspace = 9
        for number, signal in enumerate((0.0, 0.35, 0.58, 0.75, 1.0)):
            luma = np.full((64, 64), round(64 + signal * 876), np.uint16)
            picture = av.VideoFrame(64, 64, "yuv420p10le")
            grey = np.full((32, 32), 512, np.uint16)
            for plane, values in zip(picture.planes, (luma, grey, grey), strict=True):
                padded = np.zeros((values.shape[0], plane.line_size // 2), np.uint16)
                padded[:, : values.shape[1]] = values
                plane.update(padded.tobytes())
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    frames = framefleet.decode(path, num_frames=5)
    means = frames.data.mean(axis=(1, 2, 3))
    assert frames.info.transfer == {16: "pq", 18: "hlg"}[transfer]
    assert frames.info.transfer in frames.stats.tone_mapped
    assert np.all(np.diff(means) > 1)
    assert means[0] < 3
    assert 165 < means[2 if transfer == 16 else 3] < 215, means  # reference white is bright, not blinding
    assert means[4] > 250
    assert np.ptp(frames.data[2].astype(int), axis=-1).max() <= 2  # grey stays grey


def test_sdr_is_not_tone_mapped():
    assert framefleet.decode(FILES / "bt709_limited.mp4").stats.tone_mapped == ""


def test_transparency_is_laid_on_black(tmp_path):
    rgba = np.zeros((64, 96, 4), np.uint8)
    rgba[:, :32] = (255, 0, 0, 255)
    rgba[:, 32:64] = (255, 255, 255, 128)
    rgba[:, 64:] = (0, 255, 0, 0)
    path = tmp_path / "alpha.mov"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "rgba"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(rgba, "rgba")))
        container.mux(stream.encode(None))
    frames = framefleet.decode(path)
    assert frames.info.has_alpha
    red, half, hidden = (frames.data[0][32, x].astype(int) for x in (16, 48, 80))
    assert np.abs(red - (255, 0, 0)).max() <= 1
    assert np.abs(half - 128).max() <= 1
    assert np.abs(hidden).max() == 0


def test_webm_transparency_hides_what_is_under_it():
    frame = framefleet.decode(FILES / "vp9_alpha.webm").data[0]
    assert frame[72, 20].max() <= 3
    assert np.abs(frame[72, 132].astype(int) - RED).max() <= 3


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_upright_whatever_the_display_matrix_says(tmp_path, degrees, mirror):
    upright = np.zeros((48, 80, 3), np.uint8)
    upright[:24, :40] = RED
    upright[24:, :40] = GREEN
    upright[:24, 40:] = BLUE
    coded = upright[:, ::-1] if mirror else upright
    coded = np.ascontiguousarray(np.rot90(coded, -degrees // 90))
    path = tmp_path / "turned.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "8"})
        stream.height, stream.width = coded.shape[:2]
        stream.pix_fmt = "yuv444p"
        stream.set_display_rotation(degrees, hflip=mirror)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(coded, "rgb24")))
        container.mux(stream.encode(None))
    frame = framefleet.decode(path).data[0].astype(int)
    assert frame.shape == upright.shape
    assert np.abs(frame[4:20, 4:36].mean(axis=(0, 1)) - RED).max() < 4
    assert np.abs(frame[28:44, 4:36].mean(axis=(0, 1)) - GREEN).max() < 4
    assert np.abs(frame[4:20, 44:76].mean(axis=(0, 1)) - BLUE).max() < 4


def test_sample_aspect_ratio_is_applied():
    frames = framefleet.decode(FILES / "anamorphic_sar2.mp4")
    assert frames.data.shape[1:3] == (144, 352)
    assert read_barcode_stretched(frames.data[3]) == int(frames.indices[3])
    assert (frames.info.coded_width, frames.info.sample_aspect_ratio) == (176, 2)


def read_barcode_stretched(frame):
    """Of a picture stretched to twice its width but not its height."""
    luma = frame[8].astype(float).mean(axis=-1)
    return sum(1 << bit for bit in range(10) if luma[32 * bit + 16] > 127)


def test_interlaced_is_flagged_and_deinterlaced_on_request():
    plain = framefleet.decode(FILES / "interlaced_tff.mp4", num_frames=8)
    calm = framefleet.decode(FILES / "interlaced_tff.mp4", num_frames=8, deinterlace=True)
    assert plain.stats.is_interlaced
    assert calm.stats.is_interlaced
    assert np.array_equal(plain.pts_s, calm.pts_s)
    assert combing(calm.data[3]) < combing(plain.data[3]) / 2
    progressive = framefleet.decode(FILES / "base.mp4", num_frames=8)
    asked = framefleet.decode(FILES / "base.mp4", num_frames=8, deinterlace=True)
    assert np.array_equal(progressive.data, asked.data)
    assert not progressive.stats.is_interlaced


def combing(frame):
    """How much more neighbouring lines differ than lines of one field."""
    luma = frame[20:].astype(float).mean(axis=-1)
    between_lines = np.abs(luma[1:-1] - (luma[:-2] + luma[2:]) / 2).mean()
    return max(0.0, float(between_lines - np.abs(luma[2:] - luma[:-2]).mean() / 2))


def test_pictures_of_another_size_are_brought_to_the_first():
    frames = framefleet.decode(FILES / "resolution_change.ts", num_frames=60, backend="pyav")
    assert frames.data.shape[1:3] == (144, 176)
    assert any("320x240" in note for note in frames.stats.notes)


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    return {
        suffix: write_clip(folder / f"long.{suffix}", 300, gop=30, b_frames=3, size=(176, 64))
        for suffix in ("mp4", "mkv", "ts", "avi")
    }


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi"])
def test_sparse_rows_are_sought_not_walked_to(long_clip, suffix):
    frames = framefleet.decode(long_clip[suffix], num_frames=3, backend="pyav")
    assert [read_barcode(frame, 176) for frame in frames.data] == [0, 150, 299]
    assert frames.stats.frames_walked < 80


def test_packets_that_nobody_needs_are_not_decoded(long_clip):
    clip = scan(VideoSource.of(long_clip["mp4"]))
    plan = plan_decode(clip.index, FrameTargets(np.array([149])), 176, 64)
    frames = PyAvBackend().decode(clip, plan, DecodeOptions())
    assert read_barcode(frames.data[0], 176) == 149
    assert frames.stats.frames_walked == plan.frames_walked < 25


def test_walks_know_where_they_landed(long_clip):
    for path in long_clip.values():
        clip = scan(VideoSource.of(path))
        keys = np.flatnonzero(clip.index.packet_is_keyframe)
        groups = [plan_decode(clip.index, FrameTargets(np.array([row])), 8, 8).groups[0] for row in (299, 0, 200, 30)]
        with PacketWalk(clip, ScanLimits()) as walk:
            for group in groups:
                numbers = [number for number, _ in walk.run(group)]
                assert numbers == list(range(group.first_packet, group.last_packet + 1))
                assert group.first_packet in keys


def test_a_source_that_shrank_since_its_scan(tmp_path):
    path = write_clip(tmp_path / "clip.ts", 60)
    clip = scan(VideoSource.of(path))
    path.write_bytes(path.read_bytes()[: 188 * 20])
    plan = plan_decode(clip.index, FrameTargets(np.array([58])), 320, 176)
    with pytest.raises((SeekFailed, DecodeError)):
        PyAvBackend().decode(clip, plan, DecodeOptions())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["base.mp4", "open_gop.mp4", "hevc_open_gop.mp4", "no_nbframes.webm", "av1.mp4"])
def test_threads_change_nothing(name, threads):
    alone = framefleet.decode(FILES / name, num_frames=8, backend="pyav")
    many = framefleet.decode(FILES / name, num_frames=8, backend="pyav", num_ffmpeg_threads=threads)
    assert np.array_equal(alone.data, many.data)


@pytest.mark.parametrize("threads", [1, 3])
def test_no_damaged_frame_passes_with_threads(threads):
    from corpus_truth import faults

    truth = truth_of("bitflips_mid.mp4")
    frames = framefleet.decode(truth.path, num_frames=60, backend="pyav", num_ffmpeg_threads=threads)
    assert faults(truth, frames) == []


def test_threads_of_ours_at_once():
    expected = framefleet.decode(FILES / "base.mp4", num_frames=8).data
    results = [None] * 4

    def work(number):
        results[number] = [framefleet.decode(FILES / "base.mp4", num_frames=8).data for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(data, expected) for several in results for data in several)


def test_the_deadline_is_kept():
    with pytest.raises(DecodeTimeout, match=r"pixel_bomb_8k\.mp4"):
        framefleet.decode(FILES / "pixel_bomb_8k.mp4", num_frames=8, timeout_s=0.15, size=(64, 64))


def test_one_deadline_covers_scan_and_decode(monkeypatch):
    """A scan that takes most of the time leaves the rest, not a fresh start, to decoding."""
    import time

    from framefleet.decode import session

    def slow_scan(source, limits):
        time.sleep(0.3)
        return scan(source, limits)

    left = []
    monkeypatch.setattr(session, "scanner", lambda options: slow_scan)
    monkeypatch.setattr(session, "decode_scanned", lambda clip, options, **_: left.append(options.timeout_s) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        framefleet.decode(FILES / "base.mp4", timeout_s=5)
    assert left[0] < 4.8


def test_spans_and_samplers_reach_through():
    frames = framefleet.decode(FILES / "base.mp4", num_frames=4, span=Span(500_000_000, 1_000_000_000))
    assert frames.pts_s[0] >= 0.5
    assert frames.pts_s[-1] < 1.0
    assert len(framefleet.decode(FILES / "base.mp4", fps=5.0)) == 10
    assert framefleet.decode(FILES / "base.mp4", num_frames=4, max_pixels=5000).data.shape[1] < 144


def test_wrong_options():
    with pytest.raises(ConfigError, match="num_frame"):
        framefleet.decode(FILES / "base.mp4", num_frame=4)
    with pytest.raises(ConfigError, match="backend"):
        framefleet.decode(FILES / "base.mp4", backend="quicktime")
    with pytest.raises(SourceUnsupported, match="no frame"):
        framefleet.decode(FILES / "base.mp4", span=Span(9_000_000_000, 10_000_000_000))


def test_stats_tell_what_happened():
    stats = framefleet.decode(FILES / "base.mp4", num_frames=8, backend="pyav").stats
    assert stats.backend == "pyav"
    assert stats.index_method == "packets"
    assert stats.output_bytes == 8 * 176 * 144 * 3
    assert stats.peak_bytes > stats.output_bytes
    assert {"fetch", "probe", "decode", "resize"} <= set(stats.seconds)
    assert all(math.isfinite(s) and s >= 0 for s in stats.seconds.values())
    assert 8 <= stats.frames_walked <= 60


def test_nothing_is_left_behind():
    """Descriptors and threads after 150 opens over good and broken files."""
    names = ["base.mp4", "truncated_no_moov.mp4", "ts_packet_loss.ts", "bitflips_mid.mp4", "html_404.mp4", "anim.gif"]

    def open_all(times):
        for _ in range(times):
            for name in names:
                try:
                    framefleet.decode(FILES / name, num_frames=2, backend="pyav")
                except framefleet.errors.FramefleetError:
                    continue

    open_all(2)
    before = (len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), rss_bytes())
    open_all(25)
    after = (len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), rss_bytes())
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 30 << 20


def rss_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
