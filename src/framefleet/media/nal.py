"""H.264 packets, read as far as their slice headers. Section numbers are of ITU-T H.264."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from framefleet.errors import SourceCorrupt
from framefleet.media.bits import BitReader, unescape
from framefleet.media.facts import (
    DAMAGED,
    GAP,
    HIDDEN,
    IS_B,
    NOT_ONE_PICTURE,
    RECOVERY,
    RECOVERY_SHIFT,
    REFERENCE,
    START,
    holds_zero_run,
    order_of,
)

_HEADER_BYTES = 48
_SLICE_BYTES = 24
"""A slice header as far as it is read here has under 100 bits (7.3.3), and room for emulation prevention."""
MAX_ORDER_BITS = 16
START_CODE = b"\0\0\1"
_HIGH_PROFILES = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))


def split_nals(packet: bytes, length_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, end) of every NAL unit; `length_bytes` 0: by start codes. Raises SourceCorrupt for impossible lengths."""
    return _by_length(packet, length_bytes) if length_bytes else _by_start_code(packet)


def _by_length(packet: bytes, length_bytes: int) -> Iterator[tuple[int, int]]:
    at, end = 0, len(packet)
    while at < end:
        start = at + length_bytes
        at = start + int.from_bytes(packet[at:start], "big")
        if at > end or at == start:
            raise SourceCorrupt("a NAL unit's length is impossible")
        yield start, at


def _by_start_code(packet: bytes) -> Iterator[tuple[int, int]]:
    start = packet.find(START_CODE)
    if start < 0:
        raise SourceCorrupt("a packet has no start code")
    while start >= 0:
        start += 3
        following = packet.find(START_CODE, start)
        yield start, following if following >= 0 else len(packet)
        start = following


@dataclass(frozen=True, slots=True)
class _Sps:
    frame_num_bits: int
    frame_mbs_only: bool
    has_colour_planes: bool
    allows_gaps: bool
    order_bits: int
    """Of pic_order_cnt_lsb; 0 where pictures are not counted so."""
    has_chroma: bool


class H264Reader:
    """Facts of H.264 packets: IDR, recovery points, nal_ref_idc, fields, gaps in frame_num, impossible bytes."""

    def __init__(self, extradata: bytes) -> None:
        self._sps: dict[int, _Sps] = {}
        self._sps_of_pps: dict[int, int] = {}
        self._last_ref_frame_num: int | None = None
        self._length_bytes = 0
        if extradata[:1] == b"\1" and len(extradata) > 6:
            self._length_bytes = (extradata[4] & 3) + 1
            self._read_avcc(extradata)
        elif extradata:
            self._read_sets(extradata, 0)

    @property
    def has_chroma(self) -> bool:
        """Whether every sequence seen so far has chroma."""
        return all(sps.has_chroma for sps in self._sps.values())

    def _read_avcc(self, extradata: bytes) -> None:
        at = 6
        for count in (extradata[5] & 31, None):
            if count is None:
                if at >= len(extradata):
                    return
                count = extradata[at]  # noqa: PLW2901
                at += 1
            for _ in range(count):
                size = int.from_bytes(extradata[at : at + 2], "big")
                self._read_set(extradata[at + 2 : at + 2 + size])
                at += 2 + size

    def _read_sets(self, packet: bytes, length_bytes: int) -> None:
        try:
            for start, end in split_nals(packet, length_bytes):
                self._read_set(packet[start:end])
        except SourceCorrupt:
            return

    def _read_set(self, nal: bytes) -> None:
        kind = nal[0] & 31 if nal else 0
        try:
            if kind == 7:
                sps_id, sps = _read_sps(unescape(nal[1:]))
                self._sps[sps_id] = sps
            elif kind == 8:
                bits = BitReader(unescape(nal[1:_HEADER_BYTES]))
                self._sps_of_pps[bits.ue()] = bits.ue()
        except SourceCorrupt:
            return

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        try:
            facts = self._facts(packet, is_key=is_key)
        except (SourceCorrupt, IndexError):
            return DAMAGED | REFERENCE
        is_torn = holds_zero_run(packet, may_end_in_zeros=not self._length_bytes)
        return facts | DAMAGED if is_torn else facts

    def _facts(self, packet: bytes, *, is_key: bool) -> int:
        facts, recovery_frames, slices = 0, None, 0
        is_idr = False
        is_intra = True
        for start, end in split_nals(packet, self._length_bytes):
            kind = packet[start] & 31
            if kind in (1, 2, 5):
                is_idr = is_idr or kind == 5
                if packet[start] & 0x60:
                    facts |= REFERENCE
                if slices == 0:
                    found, is_intra = self._first_slice(packet[start : min(end, start + _SLICE_BYTES)], is_idr=is_idr)
                    facts |= found
                elif is_key:
                    is_intra = is_intra and _is_intra_slice(packet[start + 1 : start + _SLICE_BYTES])
                slices += 1
            elif kind in (7, 8):
                self._read_set(packet[start:end])
            elif kind == 6:
                count = _recovery_frames(packet[start + 1 : end])
                recovery_frames = count if count is not None else recovery_frames
        if not slices:
            return HIDDEN
        if is_idr or (is_intra and (is_key or recovery_frames == 0)):
            return facts | START
        if recovery_frames is not None:
            return facts | RECOVERY | recovery_frames << RECOVERY_SHIFT
        return facts

    def _first_slice(self, nal: bytes, *, is_idr: bool) -> tuple[int, bool]:
        """Facts, and whether the slice is intra."""
        bits = BitReader(unescape(nal[1:]))
        bits.ue()  # first_mb_in_slice: damaged or lost first slices show as decode errors
        slice_type = bits.ue()
        if slice_type > 9:
            raise SourceCorrupt("no such slice type")
        facts, is_intra = IS_B if slice_type % 5 == 1 else 0, slice_type % 5 in (2, 4)
        sps = self._sps.get(self._sps_of_pps.get(bits.ue(), -1))
        if sps is None:
            return facts, is_intra
        if sps.has_colour_planes:
            bits.u(2)
        frame_num = bits.u(sps.frame_num_bits)
        if not sps.frame_mbs_only and bits.u(1):
            facts |= NOT_ONE_PICTURE
        elif sps.order_bits and not is_idr:
            facts |= order_of(bits.u(sps.order_bits), sps.order_bits)
        facts |= self._frame_num_gap(frame_num, sps, is_idr=is_idr, is_reference=bool(nal[0] & 0x60))
        return facts, is_intra

    def _frame_num_gap(self, frame_num: int, sps: _Sps, *, is_idr: bool, is_reference: bool) -> int:
        """7.4.3: frame_num is that of the last reference picture or one more, unless gaps are allowed."""
        before = self._last_ref_frame_num
        expected = (before, (before + 1) % (1 << sps.frame_num_bits)) if before is not None else None
        if is_reference:
            self._last_ref_frame_num = frame_num
        if is_idr or expected is None or sps.allows_gaps or frame_num in expected:
            return 0
        self._last_ref_frame_num = frame_num
        return GAP


def _is_intra_slice(payload: bytes) -> bool:
    bits = BitReader(unescape(payload))
    bits.ue()
    return bits.ue() % 5 in (2, 4)


def _read_sps(payload: bytes) -> tuple[int, _Sps]:
    """7.3.2.1.1, as far as frame_mbs_only_flag."""
    bits = BitReader(payload)
    profile = bits.u(8)
    bits.u(16)
    sps_id = bits.ue()
    has_colour_planes, chroma_format = False, 1
    if profile in _HIGH_PROFILES:
        chroma_format = bits.ue()
        has_colour_planes = chroma_format == 3 and bool(bits.u(1))
        bits.ue(), bits.ue(), bits.u(1)  # bit depths, lossless bypass
        if bits.u(1):
            _skip_scaling_lists(bits, 8 if chroma_format != 3 else 12)
    frame_num_bits = bits.ue() + 4
    poc_type = bits.ue()
    order_bits = bits.ue() + 4 if poc_type == 0 else 0
    if order_bits > MAX_ORDER_BITS:
        raise SourceCorrupt("no such picture counter")
    if poc_type == 1:
        bits.u(1), bits.se(), bits.se()
        for _ in range(bits.ue()):
            bits.se()
    bits.ue()  # max_num_ref_frames
    allows_gaps = bool(bits.u(1))
    bits.ue(), bits.ue()  # size in macroblocks
    return sps_id, _Sps(frame_num_bits, bool(bits.u(1)), has_colour_planes, allows_gaps, order_bits, chroma_format > 0)


def _skip_scaling_lists(bits: BitReader, count: int) -> None:
    for number in range(count):
        if not bits.u(1):
            continue
        last = following = 8
        for _ in range(16 if number < 6 else 64):
            if following:
                following = (last + bits.se()) % 256
            last = following or last


def _recovery_frames(sei: bytes) -> int | None:
    """recovery_frame_cnt of a recovery point message (D.1.8), None if the SEI holds none."""
    sei = unescape(sei)
    at = 0
    while at + 2 < len(sei):
        kind = size = 0
        while at < len(sei) and sei[at] == 255:
            kind, at = kind + 255, at + 1
        if at >= len(sei):
            return None
        kind, at = kind + sei[at], at + 1
        while at < len(sei) and sei[at] == 255:
            size, at = size + 255, at + 1
        if at >= len(sei):
            return None
        size, at = size + sei[at], at + 1
        if kind == 6:
            return BitReader(sei[at : at + size]).ue()
        at += size
    return None
