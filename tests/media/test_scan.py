"""scan and probe end to end, on clips made here and on the corpus."""

from __future__ import annotations

import os
import pickle
import socket
from fractions import Fraction

import av
import numpy as np
import pytest
from barcode_clips import write_clip
from corpus_truth import all_truths, truth_of

import framefleet
from framefleet.decode.backends.fake import draw_frame, read_barcode
from framefleet.errors import DecodeTimeout, SourceCorrupt, SourceError, SourceNotFound, SourceUnsupported
from framefleet.media.digest import content_digest
from framefleet.media.index import FrameIndex
from framefleet.media.limits import Deadline, ScanLimits
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource

WHOLE = [truth for truth in all_truths() if truth.is_whole]


def scan_of(path, **limits):
    return scan(VideoSource.of(path), ScanLimits(**limits))


@pytest.mark.parametrize("truth", WHOLE, ids=lambda truth: truth.name[:40])
def test_counts_times_and_sizes(truth):
    clip = scan_of(truth.path)
    index, facts = clip.index, truth.facts
    assert index.num_frames == facts["num_frames"]
    assert index.num_lost == 0
    clocks = [facts["pts_s"], *facts.get("pts_also", [])] if facts["pts_s"] else []
    off = [max(abs(a / 1e9 - b) for a, b in zip(index.pts_ns, clock, strict=True) if b is not None) for clock in clocks]
    assert not off or min(off) < 1.5e-3
    assert np.all(np.diff(index.pts_ns) > 0)
    assert index.end_ns >= index.pts_ns[-1]
    assert (clip.info.rotation_deg, clip.info.hflip) == (facts["rotation_deg"], facts.get("hflip") or False)


@pytest.mark.parametrize("truth", all_truths(), ids=lambda truth: truth.name[:40])
def test_the_index_hangs_together(truth):
    try:
        index = scan_of(truth.path).index
    except SourceError:
        assert not truth.is_whole
        return
    packets = index.packet_of_row
    assert len(np.unique(packets)) == len(packets)
    assert index.packet_is_keyframe[: packets.min() + 1].any() or index.method == "decoded"
    assert index.num_frames + index.num_lost >= 1
    assert not index.pts_ns.flags.writeable


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("base.mp4", "packets"), ("vfr_phone.mp4", "packets"), ("ts_wrap.ts", "packets"), ("anim.gif", "packets"),
        ("missing_pts_bframes.avi", "decoded"), ("raw_elementary.h264", "decoded"), ("mpeg2.mpg", "decoded"),
    ],
)  # fmt: skip
def test_packets_are_decoded_only_where_they_cannot_tell(corpus, name, method):
    index = scan_of(corpus / name).index
    assert index.method == method
    assert any("decoded" in note for note in index.notes) == (method == "decoded")


def test_losses_are_counted_and_told(corpus):
    for truth in all_truths():
        if truth.facts["kind"] in ("joined_mid_gop", "packet_loss", "zeroed_hole", "overreport"):
            index = scan_of(truth.path).index
            assert index.num_lost > 0
            assert any("cannot be decoded" in note for note in index.notes)
            assert index.num_frames >= truth.facts["min_frames"]


def test_references(corpus):
    open_gop = scan_of(corpus / "hevc_open_gop.mp4").index
    assert np.count_nonzero(~open_gop.packet_is_reference) > 40
    assert scan_of(corpus / "long_gop.mp4").index.packet_is_reference.all()


def test_header_only(corpus):
    clip = scan_of(corpus / "base.mp4", header_only=True)
    assert clip.index.method == "header"
    assert clip.index.num_frames == 60
    assert np.allclose(np.diff(clip.index.pts_ns), 1e9 / 30, atol=2)
    with pytest.raises(SourceCorrupt, match="no frame count"):
        scan_of(corpus / "no_duration.webm", header_only=True)


def test_a_header_index_is_not_decoded(corpus):
    from framefleet.decode.backends.pyav import PyAvBackend

    clip = scan_of(corpus / "base.mp4", header_only=True)
    assert "header" in PyAvBackend().refuse(clip.info, clip.index)


def test_the_deadline_is_kept(corpus):
    with pytest.raises(DecodeTimeout):
        scan_of(corpus / "many_frames_14000.mp4", deadline=Deadline(0.0))


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nhttp://127.0.0.1:1/x.ts\n#EXT-X-ENDLIST\n"
NAMES_OTHERS = {
    "list.m3u8": PLAYLIST,
    "list.mp4": PLAYLIST,
    "list.txt": b"ffconcat version 1.0\nfile base.mp4\n",
    "list.sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
    b"a=rtpmap:96 H264/90000\n",
    "list.mpd": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"></MPD>',
    "list.imf.xml": b'<?xml version="1.0"?><CompositionPlaylist></CompositionPlaylist>',
}


@pytest.mark.parametrize("name", NAMES_OTHERS)
def test_files_that_name_others_open_nothing(name, tmp_path, corpus, monkeypatch):
    (tmp_path / "base.mp4").write_bytes((corpus / "base.mp4").read_bytes())
    (tmp_path / name).write_bytes(NAMES_OTHERS[name])
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("the network was asked"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SourceUnsupported, SourceCorrupt), match=name.replace(".", r"\.")):
        framefleet.probe(name)


NAMES = [
    "plain.mp4", "-dash.mp4", "with: colon.mp4", "100%03d.mp4", "a|b.mp4", "#?&.mp4", "ünï çödé ひ.mp4",
    "x" * 250 + ".mp4", "file:inner.mp4", " lead.mp4", "new\nline.mp4", "concat:a.mp4",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_a_path(name, tmp_path, corpus, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes((corpus / "one_frame.mp4").read_bytes())
    assert framefleet.probe(name).width == 176
    assert len(framefleet.decode(tmp_path / name)) == 1


def test_names_that_are_not_text(tmp_path, corpus):
    path = os.fsencode(tmp_path) + b"/\xff\xfe.mp4"
    with open(path, "wb") as file:  # noqa: PTH123
        file.write((corpus / "one_frame.mp4").read_bytes())
    assert framefleet.probe(os.fsdecode(path)).width == 176


@pytest.mark.parametrize("path", ["nowhere.mp4", "a/b/c.mp4", "nul\0.mp4", "x" * 300, ""])
def test_no_such_file(path):
    with pytest.raises(SourceNotFound, match="cannot read"):
        framefleet.probe(path)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    for path in (tmp_path / "pipe.mp4", "/dev/zero"):
        with pytest.raises(SourceUnsupported, match="no regular file"):
            framefleet.probe(path)


def test_pictures_that_grow_midway_are_not_decoded_above_the_limit(tmp_path):
    small = write_clip(tmp_path / "small.ts", 20, size=(176, 144)).read_bytes()
    large = write_clip(tmp_path / "large.ts", 20, size=(640, 480)).read_bytes()
    frames = framefleet.decode(small + large, num_frames=40, backend="pyav", max_source_pixels=200 * 200)
    assert 10 < len(frames) <= 20
    assert frames.pts_s[-1] < 0.8
    assert frames.stats.num_missing == 40 - len(frames)


def packed_avi(path, count=30):
    """MPEG-4 as DivX 5 packed it: a B-picture rides in the packet of the reference after it, then comes a filler."""
    encoder = av.CodecContext.create("mpeg4", "w")
    encoder.width, encoder.height, encoder.pix_fmt = 320, 176, "yuv420p"
    encoder.time_base, encoder.framerate = Fraction(1, 30), Fraction(30)
    encoder.options = {"bf": "1", "g": "12", "b_strategy": "0", "flags": "+qscale", "global_quality": "236"}
    pictures = [av.VideoFrame.from_ndarray(draw_frame(n, 320, 176, 320), "rgb24") for n in range(count)]
    packets = [bytes(packet) for picture in [*pictures, None] for packet in encoder.encode(picture)]
    packets[0] = packets[0].replace(b"\0\0\1\xb6", b"\0\0\1\xb2DivX503b1393p\0\0\1\xb6", 1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 320, 176, "yuv420p"
        for number, content in enumerate(pack(packets)):
            packet = av.Packet(content)
            packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, 30), number, number
            packet.is_keyframe = vop_kind(content) == 0
            container.mux(packet)
    return path


def vop_kind(packet):
    return packet[packet.index(b"\0\0\1\xb6") + 4] >> 6


def pack(packets):
    packed = []
    for packet in packets:
        if vop_kind(packet) == 2:
            packed[-1] += packet
            packed.append(b"\0\0\1\xb6\x51\x7f")
        else:
            packed.append(packet)
    return packed


def test_packed_b_pictures_come_out_one_by_one(tmp_path):
    frames = framefleet.decode(packed_avi(tmp_path / "packed.avi"), num_frames=30, backend="pyav")
    assert [read_barcode(frame, 320) for frame in frames.data] == list(range(30))
    assert np.allclose(np.diff(frames.pts_s), 1 / 30)


def test_a_folder_is_no_clip(tmp_path):
    with pytest.raises(SourceNotFound):
        framefleet.probe(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"), (b"<!DOCTYPE html><html>", "web page"), (b"\xff\xd8\xff\xe0" + bytes(200), "JPEG"),
        (b"\x89PNG\r\n\x1a\n" + bytes(90), "PNG"), (b"%PDF-1.4 " + bytes(90), "PDF"),
        (b"PK\x03\x04" + bytes(90), "zip"), (bytes(4096), "zeros"), (b'{"error": "not found"}', "JSON"),
    ],
)  # fmt: skip
def test_what_it_seems_to_be_is_said(content, says):
    with pytest.raises(SourceError, match=says):
        framefleet.probe(content)


def test_bytes_and_file_objects(corpus):
    content = (corpus / "base.mp4").read_bytes()
    here = framefleet.decode(corpus / "base.mp4", num_frames=4)
    assert np.array_equal(framefleet.decode(content, num_frames=4).data, here.data)
    with (corpus / "base.mp4").open("rb") as file:
        assert np.array_equal(framefleet.decode(file, num_frames=4).data, here.data)


def test_the_clock_of_a_clip_without_pts_counts_what_was_lost(tmp_path):
    path = write_clip(tmp_path / "clip.avi", 48, gop=12, b_frames=0)
    whole = scan_of(path).index
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    content[at : at + 400] = bytes(400)
    (tmp_path / "torn.avi").write_bytes(content)
    torn = scan_of(tmp_path / "torn.avi").index
    assert torn.num_lost > 0
    assert torn.pts_ns[-1] == whole.pts_ns[-1]
    assert np.isin(torn.pts_ns, whole.pts_ns).all()


def test_cut_files_say_that_they_are_cut(tmp_path, corpus):
    for name in ("start_at_5s.mkv", "no_nbframes.webm", "anim.gif", "missing_pts_bframes.avi"):
        content = (corpus / name).read_bytes()
        cut = scan_of(VideoSource.of(content[: len(content) * 7 // 10]))
        assert cut.index.num_lost > 0, name
        assert cut.index.num_frames < truth_of(name).facts["num_frames"]


def test_pixels_of_a_stream_found_late(tmp_path, corpus):
    """A TS whose video starts after a megabyte of something else."""
    null = b"\x47\x1f\xff\x10" + b"\xff" * 184
    content = null * 5000 + (corpus / "ts_wrap.ts").read_bytes()
    assert scan_of(VideoSource.of(content)).index.num_frames == 60


def test_sources_travel(corpus):
    source = VideoSource.of(corpus / "base.mp4")
    assert pickle.loads(pickle.dumps(source)) == source
    assert len({source, VideoSource.of(str(corpus / "base.mp4"))}) == 1
    assert content_digest(source) == content_digest(VideoSource.of((corpus / "base.mp4").read_bytes()))
    clip = scan_of(corpus / "base.mp4")
    again = pickle.loads(pickle.dumps(clip))
    assert np.array_equal(again.index.pts_ns, clip.index.pts_ns)
    assert np.iinfo(np.int64).min == FrameIndex.NO_PTS
