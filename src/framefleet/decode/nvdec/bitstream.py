"""Packets as NVDEC's parser wants them: H.264 and HEVC with start codes, parameter sets ahead of every entry point.

A container such as MP4 stores NAL units with length prefixes and the parameter sets apart (ISO/IEC 14496-15:
`avcC`, `hvcC`). A decoder entered at a recovery point needs the parameter sets again: they are put before the first
packet of every run, not only before IDR pictures.
"""

from __future__ import annotations

START_CODE = b"\0\0\0\1"


class PacketShaper:
    """Rewrites one stream's packets. `extradata` is the codec configuration of the container, possibly empty.

    VP8 and VP9 packets go as they are: what their containers keep beside them is no part of the bitstream.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self.parameter_sets = b""
        self._length_size = 0
        if codec == "h264" and extradata[:1] == b"\x01":
            self._length_size, self.parameter_sets = _avcc(extradata)
        elif codec == "hevc" and extradata[:1] == b"\x01":
            self._length_size, self.parameter_sets = _hvcc(extradata)
        elif codec in ("h264", "hevc"):
            self.parameter_sets = extradata

    def shape(self, payload: bytes, *, is_first: bool) -> bytes:
        """One packet, with the parameter sets ahead where a run starts. A damaged length ends the packet early."""
        body = _with_start_codes(payload, self._length_size) if self._length_size else payload
        return self.parameter_sets + body if is_first else body


def _with_start_codes(payload: bytes, length_size: int) -> bytes:
    units, position = [], 0
    while position + length_size <= len(payload):
        size = int.from_bytes(payload[position : position + length_size], "big")
        position += length_size
        units.append(payload[position : position + size])
        position += size
    return b"".join(START_CODE + unit for unit in units if unit)


def _avcc(record: bytes) -> tuple[int, bytes]:
    """(length size, parameter sets with start codes) of an AVCDecoderConfigurationRecord."""
    length_size = (record[4] & 3) + 1
    sps, position = _sized_units(record, 6, record[5] & 31)
    num_pps = record[position] if position < len(record) else 0
    pps, _ = _sized_units(record, position + 1, num_pps)
    return length_size, sps + pps


def _hvcc(record: bytes) -> tuple[int, bytes]:
    """(length size, parameter sets with start codes) of an HEVCDecoderConfigurationRecord."""
    length_size = (record[21] & 3) + 1
    sets, position = b"", 23
    for _ in range(record[22]):
        count = int.from_bytes(record[position + 1 : position + 3], "big")
        units, position = _sized_units(record, position + 3, count)
        sets += units
    return length_size, sets


def _sized_units(record: bytes, position: int, count: int) -> tuple[bytes, int]:
    """`count` NAL units with 16-bit lengths, as start-coded bytes, and where they end."""
    units = b""
    for _ in range(count):
        size = int.from_bytes(record[position : position + 2], "big")
        units += START_CODE + record[position + 2 : position + 2 + size]
        position += 2 + size
    return units, position
