"""Odd clips made on the spot out of plain ones: what old recorders, muxers and careless tools write."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from barcode_clips import HEIGHT, WIDTH, write_clip

from framefleet.decode.backends.fake import draw_frame

_PLACEHOLDER_VOP = b"\0\0\1\xb6" + bytes([0b01010000, 0b01011111])
"""A P-VOP that is not coded, as packed AVI puts where a B-VOP was taken from."""


def packets_of(path: Path) -> list[tuple[bytes, int | None, int | None, bool]]:
    """(bytes, pts, dts, is keyframe) of the first stream's packets."""
    with av.open(str(path)) as container:
        return [(bytes(p), p.pts, p.dts, p.is_keyframe) for p in container.demux(video=0) if p.size]


def mux(path: Path, like: Path, packets: list[tuple[bytes, int, int, bool]], rate: int = 30) -> Path:
    """Write packets (bytes, pts, dts, is keyframe; ticks of 1/rate) with the stream header of `like`."""
    with av.open(str(like)) as source, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0], opaque=True)
        stream.time_base = Fraction(1, rate)
        for content, pts, dts, is_key in packets:
            packet = av.Packet(content)
            packet.stream, packet.time_base = stream, Fraction(1, rate)
            packet.pts, packet.dts, packet.is_keyframe = pts, dts, is_key
            container.mux(packet)
    return path


def cut_and_joined(path: Path, source: Path, parts: list[tuple[int, int]], step: int = 3000) -> list[int]:
    """Packets [first, last) of `source`, a clip on a clock of 1/90000 s, end to end as they are.

    `step`: ticks of a frame. Returns the pts in `source` of every packet.
    """
    packets, written, origins = packets_of(source), [], []
    end_pts, last_dts = 0, -(1 << 40)
    for first, last in parts:
        part = packets[first:last]
        shift = end_pts - min(pts for _, pts, _, _ in part)
        for content, pts, dts, is_key in part:
            last_dts = min(max(dts + shift, last_dts + 1), pts + shift)
            written.append((content, pts + shift, last_dts, is_key))
            origins.append(pts)
        end_pts = shift + step + max(pts for _, pts, _, _ in part)
    mux(path, source, written, rate=90_000)
    return origins


def group_starts(source: Path) -> list[int]:
    """The packets at which groups of pictures begin, and how many packets there are."""
    packets = packets_of(source)
    return [*(n for n, packet in enumerate(packets) if packet[3]), len(packets)]


def packed_b_vops(path: Path, num_frames: int) -> Path:
    """MPEG-4 in AVI as DivX and Xvid wrote it: a reference VOP and its B-VOP in one packet, then a placeholder."""
    plain = write_clip(path.with_suffix(".mkv"), num_frames, codec="mpeg4", b_frames=1, time_base=Fraction(1, 30))
    packets, packed = packets_of(plain), []
    for content, _, _, is_key in packets:
        is_b = content[content.find(b"\0\0\1\xb6") + 4] >> 6 == 2
        if is_b:
            packed[-1] = (packed[-1][0] + content, packed[-1][1])
        packed.append((_PLACEHOLDER_VOP if is_b else content, is_key))
    return mux(path, plain, [(content, n, n, is_key) for n, (content, is_key) in enumerate(packed)])


def stamped_in_decode_order(path: Path, num_frames: int) -> Path:
    """Matroska with B-frames whose pts only count the packets, as made from AVI by generating missing stamps."""
    plain = write_clip(path.with_suffix(".mp4"), num_frames)
    return mux(path, plain, [(c, n + 1, n, is_key) for n, (c, _, _, is_key) in enumerate(packets_of(plain))])


def turned(path: Path, rotation_deg: int, *, hflip: bool, num_frames: int = 6) -> Path:
    """MP4 whose display matrix mirrors (first) and turns clockwise pictures that were stored the other way."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.pix_fmt, stream.options = "yuv420p", {"crf": "12"}
        swaps = rotation_deg in (90, 270)
        stream.width, stream.height = (HEIGHT, WIDTH) if swaps else (WIDTH, HEIGHT)
        for row in range(num_frames):
            stored = np.rot90(draw_frame(row, WIDTH, HEIGHT, WIDTH), k=rotation_deg // 90)
            stored = np.ascontiguousarray(stored[:, ::-1] if hflip else stored)
            picture = av.VideoFrame.from_ndarray(stored, "rgb24")
            picture.pts, picture.time_base = row, Fraction(1, 30)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return with_matrix(path, rotation_deg, hflip=hflip)


def with_matrix(path: Path, rotation_deg: float, *, hflip: bool = False) -> Path:
    """Write a display matrix that mirrors (first) and turns clockwise into an MP4 file's only track."""
    content = bytearray(path.read_bytes())
    cos, sin = (round(f(math.radians(rotation_deg)) * (1 << 16)) for f in (math.cos, math.sin))
    sign, at = -1 if hflip else 1, content.find(b"tkhd") + 44
    content[at : at + 36] = struct.pack(">9i", sign * cos, sign * sin, 0, -sin, cos, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    return path


def with_edits(path: Path, like: Path, parts: list[tuple[float, int | None, float]]) -> Path:
    """A copy of a 30 fps MP4 whose edit list has these parts: (seconds, first frame or None for nothing, rate)."""
    content = like.read_bytes()
    (first_ticks,) = struct.unpack_from(">i", content, content.find(b"elst") + 16)
    (timescale,) = struct.unpack_from(">I", content, content.find(b"mdhd") + 16)
    entries = [
        (round(s * 1000), -1 if f is None else first_ticks + f * timescale // 30, int(r), int(r % 1 * 65536))
        for s, f, r in parts
    ]
    table = struct.pack(">II", 0, len(entries)) + b"".join(struct.pack(">iihH", *entry) for entry in entries)
    box = struct.pack(">I4sI4s", len(table) + 16, b"edts", len(table) + 8, b"elst") + table
    changed = bytearray(content.replace(b"edts", b"free"))
    for kind in (b"moov", b"trak"):  # the index comes last, so nothing that it points to moves
        at = content.find(kind) - 4
        changed[at : at + 4] = struct.pack(">I", struct.unpack_from(">I", content, at)[0] + len(box))
    at = content.find(b"mdia") - 4
    path.write_bytes(changed[:at] + box + changed[at:])
    return path


def palette_once(path: Path, num_frames: int) -> Path:
    """Uncompressed pictures of 8-bit indices in AVI: the palette comes with the first packet alone."""
    palette = np.zeros((256, 4), np.uint8)
    palette[:, 0] = 255
    palette[:, 1:] = np.arange(255, -1, -1, dtype=np.uint8)[:, None]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("rawvideo", rate=30)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "pal8"
        for row in range(num_frames):
            indices = np.ascontiguousarray(255 - draw_frame(row, WIDTH, HEIGHT, WIDTH)[..., 0])
            picture = av.VideoFrame.from_ndarray((indices, palette), "pal8")
            picture.pts, picture.time_base = row, Fraction(1, 30)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def with_exif(jpeg: bytes, orientation: int) -> bytes:
    """The JPEG with an Exif segment that holds nothing but an orientation."""
    tiff = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0) + bytes(4)
    segment = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + jpeg[2:]
