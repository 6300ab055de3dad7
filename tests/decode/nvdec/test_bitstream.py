"""Packets with start codes, parameter sets ahead of each run."""

import av
import pytest

from framefleet.decode.nvdec.bitstream import PacketShaper


@pytest.mark.parametrize(
    ("name", "codec", "filter_name"),
    [("base.mp4", "h264", "h264_mp4toannexb"), ("hevc_open_gop.mp4", "hevc", "hevc_mp4toannexb")],
)
def test_same_units_as_the_libav_filter(corpus, name, codec, filter_name):
    with av.open(str(corpus / name)) as container:
        stream = container.streams.video[0]
        shaper = PacketShaper(codec, stream.codec_context.extradata)
        libav = av.bitstream.BitStreamFilterContext(filter_name, stream)
        for number, packet in enumerate(p for p in container.demux(stream) if p.size):
            ours = shaper.shape(bytes(packet), is_first=number == 0)
            theirs = b"".join(bytes(p) for p in libav.filter(packet))
            assert set(units(ours)) >= set(units(theirs)) - set(units(shaper.parameter_sets)), number


def units(payload):
    return [unit for unit in payload.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if unit]


def test_a_length_past_the_end_ends_the_packet():
    record = bytes([1, 100, 0, 31, 0xFF, 0xE1, 0, 2, 0x67, 1, 1, 0, 2, 0x68, 2])
    shaper = PacketShaper("h264", record)
    assert shaper.parameter_sets == b"\0\0\0\1\x67\1\0\0\0\1\x68\2"
    assert shaper.shape(b"\0\0\0\2ab\0\0\xff\xffcd", is_first=False) == b"\0\0\0\1ab\0\0\0\1cd"


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "mpeg2video"])
def test_annex_b_and_others_pass_unchanged(codec):
    assert PacketShaper(codec, b"").shape(b"\0\0\1\x65x", is_first=True) == b"\0\0\1\x65x"
