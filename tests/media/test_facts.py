"""What packets' bytes tell, on streams whose encoders were told what to do."""

from __future__ import annotations

import re
from fractions import Fraction

import av
import numpy as np
import pytest
from barcode_clips import write_clip
from hypothesis import given
from hypothesis import strategies as st

from framefleet.errors import SourceCorrupt
from framefleet.media.bits import BitReader, unescape
from framefleet.media.fact_readers import fact_reader
from framefleet.media.facts import (
    DAMAGED,
    GAP,
    HIDDEN,
    IS_B,
    LAYER_SHIFT,
    LEADS_BROKEN,
    LEADS_SAFELY,
    NOT_ONE_PICTURE,
    ORDERED,
    RECOVERY,
    REFERENCE,
    START,
    order_of,
)
from framefleet.media.joins import find_joins, unwrapped
from framefleet.media.limits import ScanLimits
from framefleet.media.opening import open_container
from framefleet.media.packets import read_packets
from framefleet.media.probe import choose_stream
from framefleet.media.source import VideoSource

X265 = "log-level=none:keyint=12:min-keyint=12:scenecut=0"


def packets_of(path):
    """(codec, extradata, [(bytes, is_key)])."""
    limits = ScanLimits()
    with open_container(VideoSource.of(path), limits) as container:
        stream = choose_stream(container, str(path))
        context = stream.codec_context
        packets = [(bytes(p), p.is_keyframe) for p in read_packets(container, stream, str(path), limits)]
        return context.codec.canonical_name, context.extradata or b"", packets


def facts_of(path, drop=()):
    codec, extradata, packets = packets_of(path)
    reader = fact_reader(codec, extradata)
    kept = [packet for number, packet in enumerate(packets) if number not in drop]
    return np.array([reader.read(packet, is_key=is_key) for packet, is_key in kept])


def has(facts, bit):
    return np.flatnonzero(facts & bit).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("facts")


@pytest.mark.parametrize("suffix", ["mp4", "ts", "mkv"])
def test_h264_keyframes_references_and_b_pictures(folder, suffix):
    path = write_clip(folder / f"plain.{suffix}", 30, gop=10, b_frames=2, options={"b-pyramid": "none"})
    facts = facts_of(path)
    assert has(facts, START) == [0, 10, 20]
    assert has(facts, DAMAGED | GAP | HIDDEN | RECOVERY | NOT_ONE_PICTURE) == []
    assert len(has(facts, IS_B)) > 10
    assert np.array_equal(facts & REFERENCE > 0, facts & IS_B == 0)


def test_h264_open_gop_starts_are_recovery_points_at_once(corpus):
    assert has(facts_of(corpus / "open_gop.mp4"), START) == [0, 27, 59, 87]


def test_gradual_refresh_is_no_clean_start(corpus):
    facts = facts_of(corpus / "intra_refresh.mp4")
    assert has(facts, START) == [0]
    assert has(facts, RECOVERY) == [30, 60]


@pytest.mark.parametrize("name", ["base.mp4", "raw_elementary.h264", "ts_wrap.ts"])
def test_a_dropped_reference_leaves_a_gap(corpus, name):
    whole = facts_of(corpus / name)
    assert has(whole, GAP) == []
    lost = next(n for n in range(17, 30) if whole[n] & REFERENCE)
    torn = facts_of(corpus / name, drop={lost})
    assert min(has(torn, GAP)) >= lost
    assert has(torn, GAP)[0] < 30


def test_a_dropped_b_picture_leaves_none(corpus):
    whole = facts_of(corpus / "base.mp4")
    lost = next(n for n in range(17, 30) if not whole[n] & REFERENCE)
    assert has(facts_of(corpus / "base.mp4", drop={lost}), GAP) == []


def test_hevc_random_access_and_leading_pictures(folder, corpus):
    opened = facts_of(corpus / "hevc_open_gop.mp4")
    assert has(opened, START) == [0, 29, 59, 89]
    assert has(opened, LEADS_BROKEN)
    options = {"x265-params": f"{X265}:bframes=4:open-gop=0:radl=2"}
    safe = facts_of(write_clip(folder / "radl.mp4", 36, codec="libx265", options=options))
    assert has(safe, LEADS_SAFELY)
    assert has(safe, LEADS_BROKEN) == []


def test_hevc_temporal_layers(folder):
    options = {"x265-params": f"{X265}:bframes=7:b-pyramid=1:temporal-layers=3"}
    facts = facts_of(write_clip(folder / "layers.mp4", 36, codec="libx265", options=options))
    assert len(set(facts >> LAYER_SHIFT)) > 1


OPEN_GROUPS = [
    ("libx264", "ts", {"x264-params": "open-gop=1:keyint=12:scenecut=0:b-pyramid=normal:bframes=3"}),
    ("libx264", "mp4", {"x264-params": "open-gop=1:keyint=12:scenecut=0"}),
    ("libx265", "ts", {"x265-params": f"{X265}:bframes=4"}), ("libx265", "mp4", {"x265-params": f"{X265}:bframes=4"}),
    ("mpeg1video", "ts", {"b": "4M"}), ("mpeg2video", "ts", {"b": "4M"}), ("mpeg4", "mkv", {"b": "4M"}),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "suffix", "options"), OPEN_GROUPS)
def test_the_streams_own_count_is_the_order_of_presentation(folder, codec, suffix, options):
    path = write_clip(folder / f"{codec}.{suffix}", 60, codec=codec, gop=12, options=options, time_base=Fraction(1, 30))
    facts = facts_of(path)
    with av.open(str(path)) as container:
        pts = np.array([packet.pts for packet in container.demux(video=0) if packet.size])
    counted = np.flatnonzero(facts & ORDERED)
    assert len(counted) >= len(facts) - len(has(facts, START))
    first_group = counted[counted < has(facts, START)[1]]
    assert len(first_group) > 5
    order = unwrapped(facts)[first_group]
    assert np.argsort(order).tolist() == np.argsort(pts[first_group]).tolist()
    assert find_joins(facts, "h264" if codec == "libx264" else "hevc").tolist() == []


def test_a_broken_link_is_a_gap(folder):
    path = write_clip(folder / "whole.ts", 40, codec="mpeg2video", options={"b": "4M"}, time_base=Fraction(1, 30))
    _, _, packets = packets_of(path)
    reader = fact_reader("mpeg2video", b"")
    for packet, is_key in packets:
        group = packet.find(b"\0\0\1\xb8")
        broken = bytearray(packet)
        if group >= 0:
            broken[group + 7] |= 0x20
        facts = reader.read(bytes(broken), is_key=is_key)
        assert bool(facts & GAP) == (group >= 0 and not packet[group + 7] & 0x40)


def test_a_broken_link_access_picture_is_a_gap(corpus):
    _, extradata, packets = packets_of(corpus / "hevc_open_gop.mp4")
    assert not facts_of(corpus / "hevc_open_gop.mp4")[29] & GAP
    for kind in (16, 17, 18):
        packet = re.sub(rb"\x2a(?=\x01)", bytes([kind << 1]), packets[29][0], count=1)
        assert packet != packets[29][0]
        assert fact_reader("hevc", extradata).read(packet, is_key=True) & (START | GAP) == START | GAP


def test_parameter_sets_of_other_layers_are_not_the_pictures_own(folder):
    path = write_clip(folder / "layers.ts", 20, codec="libx265", options={"x265-params": X265})
    _, _, packets = packets_of(path)
    second_view = b"\0\0\1\x44\x09\xcf\x80"  # picture parameter set 0 of layer 1: slice headers have 7 more bits
    plain, layered = fact_reader("hevc", b""), fact_reader("hevc", b"")
    expected = [plain.read(packet, is_key=is_key) for packet, is_key in packets]
    assert len({fact & ORDERED for fact in expected[1:]}) == 1
    assert [layered.read(second_view + packet, is_key=is_key) for packet, is_key in packets] == expected


def test_dirac_numbers_its_pictures():
    unit = lambda code, rest: b"BBCD" + bytes([code]) + bytes(8) + rest  # noqa: E731
    reader = fact_reader("dirac", b"")
    intra, inter = (unit(code, (70_000).to_bytes(4, "big") + b"data") for code in (0x0C, 0x0D))
    assert reader.read(unit(0, b"header") + intra, is_key=True) == START | REFERENCE | order_of(70_000, 16)
    assert reader.read(inter, is_key=True) == REFERENCE | order_of(70_000, 16)
    assert reader.read(unit(0x10, b""), is_key=False) == HIDDEN


def test_vp8_hides_its_alternative_references():
    reader = fact_reader("vp8", b"")
    assert reader.read(b"\x10\x02\0\x9d\x01\x2a", is_key=True) == START | REFERENCE
    assert reader.read(b"\x11\x02\0", is_key=False) == REFERENCE
    assert reader.read(b"\x01\x02\0", is_key=False) == REFERENCE | HIDDEN


def test_vp9_packets_are_all_shown(folder):
    options = {"auto-alt-ref": "1", "lag-in-frames": "25", "cpu-used": "8", "b": "300k"}
    facts = facts_of(write_clip(folder / "alt9.webm", 60, codec="libvpx-vp9", gop=30, options=options))
    assert len(facts) - len(has(facts, HIDDEN)) == 60
    assert 0 in has(facts, START)


def test_mpeg2_types_and_gaps(corpus):
    whole = facts_of(corpus / "mpeg2.mpg")
    assert has(whole, START) == [0, 10, 22, 34]
    assert has(whole, GAP | DAMAGED) == []
    assert has(facts_of(corpus / "mpeg2.mpg", drop={13}), GAP)


def test_packed_mpeg4_is_not_one_picture_a_packet():
    vop = b"\0\0\1\xb6\x50" + bytes(range(1, 20))
    b_vop = b"\0\0\1\xb6\x90" + bytes(range(1, 20))
    reader = fact_reader("mpeg4", b"")
    assert reader.read(vop, is_key=False) == REFERENCE
    assert reader.read(b_vop, is_key=False) == IS_B
    assert reader.read(vop + b_vop, is_key=False) & NOT_ONE_PICTURE


@pytest.mark.parametrize("name", ["base.mp4", "hevc_gop3_161.mp4", "no_duration.webm", "odd_241x161_vp9.webm"])
def test_a_hole_of_zeros_is_damage(corpus, name):
    codec, extradata, packets = packets_of(corpus / name)
    packet, is_key = max(packets, key=lambda p: len(p[0]))
    torn = packet[:40] + bytes(40) + packet[80:]
    assert not fact_reader(codec, extradata).read(packet, is_key=is_key) & DAMAGED
    assert fact_reader(codec, extradata).read(torn, is_key=is_key) & DAMAGED


def test_gif_blocks_must_end_within_the_packet(corpus):
    _, _, packets = packets_of(corpus / "anim.gif")
    reader = fact_reader("gif", b"")
    assert all(not reader.read(packet, is_key=False) & DAMAGED for packet, _ in packets)
    assert all(reader.read(packet[:-20], is_key=False) & DAMAGED for packet, _ in packets)


CODECS = ["h264", "hevc", "vp8", "vp9", "mpeg2video", "mpeg4", "dirac", "gif", "av1", "prores"]


@given(st.sampled_from(CODECS), st.lists(st.binary(max_size=80), max_size=6), st.binary(max_size=60), st.booleans())
def test_no_bytes_raise(codec, packets, extradata, is_key):
    reader = fact_reader(codec, extradata)
    for packet in packets:
        assert isinstance(reader.read(packet, is_key=is_key), int)


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=20))
def test_exp_golomb_numbers(numbers):
    bits = "".join(f"{number + 1:b}".zfill(2 * (number + 1).bit_length() - 1) for number in numbers)
    padded = bits + "1" + "0" * (-(len(bits) + 1) % 8)
    reader = BitReader(int(padded, 2).to_bytes(len(padded) // 8, "big"))
    assert [reader.ue() for _ in numbers] == numbers


@given(st.binary(max_size=200))
def test_unescape_undoes_emulation_prevention(payload):
    escaped, zeros = bytearray(), 0
    for byte in payload:
        if zeros >= 2 and byte <= 3:
            escaped.append(3)
            zeros = 0
        escaped.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    assert unescape(bytes(escaped)) == payload


def test_reading_past_the_end():
    with pytest.raises(SourceCorrupt):
        BitReader(b"\x01").u(9)
    with pytest.raises(SourceCorrupt):
        BitReader(b"\0\0\0\0\0").ue()
