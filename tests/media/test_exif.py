"""Exif's orientation out of JPEG bytes, whole and broken."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_clips import with_exif
from PIL import Image

from framefleet.media.exif import exif_orientation


def jpeg(orientation=None, **options):
    picture, file = Image.new("RGB", (16, 16)), io.BytesIO()
    exif = Image.Exif()
    exif[0x10F], exif[0x131] = "maker", "software"
    if orientation is not None:
        exif[0x112] = orientation
    picture.save(file, "JPEG", exif=exif, **options)
    return file.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_what_pillow_writes_is_read(orientation):
    assert exif_orientation(jpeg(orientation)) == orientation
    assert exif_orientation(with_exif(jpeg()[:2] + jpeg()[20:], orientation)) == orientation


def test_big_endian():
    content = jpeg(6)
    at = content.find(b"Exif\0\0") + 6
    entry = b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
    tiff = b"MM\0*\0\0\0\x08\0\x01" + entry + bytes(4)
    assert exif_orientation(content[:at] + tiff + content[at + len(tiff) :]) == 6


@pytest.mark.parametrize("content", [b"", b"\xff\xd8", jpeg(), jpeg(0), jpeg(9), b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_none_is_upright(content):
    assert exif_orientation(content) == 1


@given(st.integers(0, 120), st.binary(max_size=8))
def test_no_bytes_raise(at, junk):
    content = jpeg(6)
    assert 1 <= exif_orientation(content[:at] + junk + content[at + len(junk) :]) <= 8
    assert 1 <= exif_orientation(content[:at]) <= 8
