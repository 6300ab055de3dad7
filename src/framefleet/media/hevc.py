"""H.265 packets, read as far as the picture count in their slice headers. Section numbers are of ITU-T H.265."""

from __future__ import annotations

from dataclasses import dataclass

from framefleet.errors import SourceCorrupt
from framefleet.media.bits import BitReader, unescape
from framefleet.media.facts import (
    DAMAGED,
    GAP,
    HIDDEN,
    LAYER_SHIFT,
    LEADS_BROKEN,
    LEADS_SAFELY,
    REFERENCE,
    START,
    holds_zero_run,
    order_of,
)
from framefleet.media.nal import MAX_ORDER_BITS, START_CODE, split_nals

_HEADER_BYTES = 48
_SPS_BYTES = 160
"""Up to seven sub-layers with profiles and levels of their own, then sizes."""
_SLICE_BYTES = 24
_BLA, _IDR = (16, 17, 18), (19, 20)


@dataclass(frozen=True, slots=True)
class _Sps:
    has_colour_planes: bool
    order_bits: int


@dataclass(frozen=True, slots=True)
class _Pps:
    sps_id: int
    has_output_flag: bool
    num_extra_bits: int


class HevcReader:
    """Facts of H.265 packets: random access, leading pictures, sub-layer non-reference pictures, impossible bytes."""

    def __init__(self, extradata: bytes) -> None:
        is_hvcc = len(extradata) > 22 and extradata[:3] not in (b"\0\0\0", START_CODE)
        self._length_bytes = (extradata[21] & 3) + 1 if is_hvcc else 0
        self._sps: dict[int, _Sps] = {}
        self._pps: dict[int, _Pps] = {}
        try:
            for nal in _hvcc_nals(extradata) if is_hvcc else _nals(extradata):
                self._read_set(nal)
        except SourceCorrupt:
            return

    def _read_set(self, nal: bytes) -> None:
        if len(nal) < 2 or nal[0] & 1 or nal[1] >> 3:
            return  # another layer's (depth, alpha, a second view), which may have the same number
        kind = nal[0] >> 1
        try:
            if kind == 33:
                sps_id, sps = _read_sps(BitReader(unescape(nal[2:_SPS_BYTES])))
                self._sps[sps_id] = sps
            elif kind == 34:
                bits = BitReader(unescape(nal[2:_HEADER_BYTES]))
                pps_id, sps_id, _ = bits.ue(), bits.ue(), bits.u(1)
                self._pps[pps_id] = _Pps(sps_id, has_output_flag=bool(bits.u(1)), num_extra_bits=bits.u(3))
        except SourceCorrupt:
            return

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        try:
            facts = self._facts(packet)
        except (SourceCorrupt, IndexError):
            return DAMAGED | REFERENCE
        is_torn = holds_zero_run(packet, may_end_in_zeros=not self._length_bytes)
        return facts | DAMAGED if is_torn else facts

    def _facts(self, packet: bytes) -> int:
        for start, end in split_nals(packet, self._length_bytes):
            kind = (packet[start] >> 1) & 63
            if packet[start] & 128:
                raise SourceCorrupt("a forbidden bit is set")
            if kind < 32:
                layer = max(0, (packet[start + 1] & 7) - 1)
                order = self._order(packet[start + 2 : min(end, start + _SLICE_BYTES)], kind)
                return _HEVC_FACTS[kind] | layer << LAYER_SHIFT | order
            if kind in (33, 34):
                self._read_set(packet[start:end])
        return HIDDEN

    def _order(self, header: bytes, kind: int) -> int:
        """7.3.6.1, as far as slice_pic_order_cnt_lsb; 0 where it is not there or not to be understood."""
        if kind in _IDR:
            return 0
        try:
            bits = BitReader(unescape(header))
            if not bits.u(1):
                return 0
            bits.u(1 if 16 <= kind <= 23 else 0)
            pps = self._pps[bits.ue()]
            sps = self._sps[pps.sps_id]
            bits.u(pps.num_extra_bits), bits.ue()  # slice type
            bits.u(int(pps.has_output_flag) + 2 * int(sps.has_colour_planes))
            return order_of(bits.u(sps.order_bits), sps.order_bits)
        except (SourceCorrupt, KeyError):
            return 0


def _nals(content: bytes) -> list[bytes]:
    return [content[start:end] for start, end in split_nals(content, 0)] if content else []


def _hvcc_nals(extradata: bytes) -> list[bytes]:
    """ISO/IEC 14496-15, 8.3.3.1: arrays of NAL units, each with its size before it."""
    at, found = 23, []
    for _ in range(extradata[22]):
        count, at = int.from_bytes(extradata[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            size, at = int.from_bytes(extradata[at : at + 2], "big"), at + 2
            found.append(extradata[at : at + size])
            at += size
            if at > len(extradata):
                return found
    return found


def _read_sps(bits: BitReader) -> tuple[int, _Sps]:
    """7.3.2.2.1, as far as log2_max_pic_order_cnt_lsb_minus4."""
    bits.u(4)
    num_sub_layers = bits.u(3)
    bits.u(1 + 96)  # nesting flag, general profile and level
    present = [(bits.u(1), bits.u(1)) for _ in range(num_sub_layers)]
    bits.u(2 * (8 - num_sub_layers) if num_sub_layers else 0)
    for has_profile, has_level in present:
        bits.u(88 * has_profile + 8 * has_level)
    sps_id = bits.ue()
    has_colour_planes = bits.ue() == 3 and bool(bits.u(1))
    bits.ue(), bits.ue()  # size
    if bits.u(1):
        bits.ue(), bits.ue(), bits.ue(), bits.ue()  # conformance window
    bits.ue(), bits.ue()  # bit depths
    order_bits = bits.ue() + 4
    if order_bits > MAX_ORDER_BITS:
        raise SourceCorrupt("no such picture counter")
    return sps_id, _Sps(has_colour_planes, order_bits)


def _hevc_facts(kind: int) -> int:
    """Table 7-1. A broken link access picture says itself that what leads it leans on pictures that are gone."""
    facts = 0 if kind <= 14 and kind % 2 == 0 else REFERENCE
    if 16 <= kind <= 21:
        facts |= START
    if kind in _BLA:
        facts |= GAP
    if kind in (8, 9):
        facts |= LEADS_BROKEN
    if kind in (6, 7):
        facts |= LEADS_SAFELY
    return facts


_HEVC_FACTS = tuple(_hevc_facts(kind) for kind in range(32))
