"""AV1 packets (temporal units), read as far as what each coded frame leans on. Sections are the AV1 specification's.

What a frame takes over from others (pictures, motion vectors, symbol statistics, segment maps, loop filter deltas,
film grain) it takes out of the eight reference slots: load_previous (7.21) reads them, the reference frame update
process (7.20) is all that writes them, and that by `refresh_frame_flags` alone. So a frame leans on the writers of the
slots it names, and on nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from framefleet.errors import SourceCorrupt
from framefleet.media.bits import BitReader
from framefleet.media.coded_frames import CodedFrames
from framefleet.media.facts import DAMAGED, NOT_ONE_PICTURE, REFERENCE, START

_SEQUENCE_HEADER, _FRAME_HEADER, _TILE_GROUP, _FRAME, _FRAME_HEADER_AGAIN = 1, 3, 4, 6, 7
_KEY, _INTER, _INTRA_ONLY, _SWITCH = range(4)
_ALL_SLOTS = 0xFF
_NUM_SLOTS, _NUM_REFS = 8, 7
_HOLE_BYTES, _ZEROS_AT_END = 256, 16
_LOWEST_LAYER_IN_SPACE = {bytes([layer << 5]) for layer in range(8)}
"""The extension bytes (5.3.3) of all layers in time."""
_CHOSEN_PER_FRAME = 2
"""SELECT_SCREEN_CONTENT_TOOLS, SELECT_INTEGER_MV."""
_HEADER_BYTES = 64
"""What is read here of a sequence or frame header is shorter: 350 bits at most with one operating point."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """5.5.1, what is needed to read frame headers by. Lengths are in bits; 0 where the field is absent."""

    is_one_still: bool = False
    presentation_time: int = 0
    buffer_removal_time: int = 0
    has_decoder_model: bool = False
    frame_id: int = 0
    delta_frame_id: int = 0
    screen_content_tools: int = _CHOSEN_PER_FRAME
    integer_mv: int = _CHOSEN_PER_FRAME
    order_hint: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    is_key: bool
    is_shown: bool
    reads: tuple[int, ...]
    """Slots."""
    writes: int
    """One bit for each slot."""


class Av1Reader:
    """Facts of AV1 packets, and which coded frames lean on which.

    What cannot be read (several operating points, layers in space, impossible bytes) is a reference, and a start if
    the container says so. It ends all knowledge of what leans on what, as do packets without one picture at their end
    (7.5); where none is in them, it is missing.
    """

    def __init__(self) -> None:
        self._sequence: _Sequence | None = None
        self._began_sequence = self._is_torn = False
        self._writers = [-1] * _NUM_SLOTS
        self._holds_key = [False] * _NUM_SLOTS
        self._num_packets = 0
        self._packet_of_frame = array("q")
        self._needs = array("q")
        self._is_exact = True

    @property
    def coded_frames(self) -> CodedFrames | None:
        """Of all packets read so far; None if any of them could not be."""
        if not self._is_exact:
            return None
        return CodedFrames(np.array(self._packet_of_frame, np.int64), np.array(self._needs, np.int64).reshape(-1, 2))

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader. But for holes, damage is left to the decoder, which checks what it decodes."""
        try:
            frames = list(self._frames(packet))
        except SourceCorrupt:
            self._is_exact = False
            return REFERENCE | (START if is_key else 0)
        finally:
            self._num_packets += 1
        if not frames or self._is_torn:
            return REFERENCE | DAMAGED
        num_shown = sum(frame.is_shown for frame in frames)
        if num_shown != 1 or not frames[-1].is_shown:
            self._is_exact = False
        facts = REFERENCE if any(frame.writes for frame in frames) else 0
        facts |= NOT_ONE_PICTURE if num_shown > 1 else 0
        is_start = frames[0].is_key and frames[0].is_shown and not frames[0].reads
        return facts | START if is_start and (is_key or self._began_sequence) else facts

    def _frames(self, packet: bytes) -> Iterator[_Frame]:
        self._began_sequence = self._is_torn = False
        for kind, start, end in _units(packet):
            if kind in (_TILE_GROUP, _FRAME):  # elsewhere zeros may be padding
                self._is_torn |= _holds_hole(packet[start:end])
            if kind == _SEQUENCE_HEADER:
                self._sequence = None
                self._sequence = _read_sequence(BitReader(packet[start : min(end, start + _HEADER_BYTES)]))
                self._began_sequence = True
            elif kind in (_FRAME_HEADER, _FRAME):
                frame = self._frame(BitReader(packet[start : min(end, start + _HEADER_BYTES)]))
                self._note(frame)
                yield frame

    def _note(self, frame: _Frame) -> None:
        number = len(self._packet_of_frame)
        self._packet_of_frame.append(self._num_packets)
        for needed in sorted({self._writers[slot] for slot in frame.reads} - {-1}):
            self._needs.extend((number, needed))
        for slot in range(_NUM_SLOTS if frame.writes else 0):
            if frame.writes >> slot & 1:
                self._writers[slot], self._holds_key[slot] = number, frame.is_key

    def _frame(self, bits: BitReader) -> _Frame:
        """5.9.2, as far as the references."""
        seq = self._sequence
        if seq is None:
            raise SourceCorrupt("a frame comes before any sequence header")
        if seq.is_one_still:
            return _Frame(is_key=True, is_shown=True, reads=(), writes=_ALL_SLOTS)
        if bits.u(1):  # show_existing_frame: a key frame shown so is loaded into every slot
            slot = bits.u(3)
            is_key = self._holds_key[slot]
            return _Frame(is_key, is_shown=True, reads=(slot,), writes=_ALL_SLOTS if is_key else 0)
        kind, is_shown = bits.u(2), bool(bits.u(1))
        bits.u(seq.presentation_time if is_shown else 1)  # showable_frame
        renews_all = kind == _SWITCH or (kind == _KEY and is_shown)
        is_resilient = renews_all or bool(bits.u(1))
        is_intra = kind in (_KEY, _INTRA_ONLY)
        _skip_to_refresh_flags(bits, seq, kind, is_independent=is_intra or is_resilient)
        writes = _ALL_SLOTS if renews_all else bits.u(8)
        if is_resilient and seq.order_hint and not (is_intra and writes == _ALL_SLOTS):
            bits.u(_NUM_SLOTS * seq.order_hint)  # ref_order_hint
        return _Frame(kind == _KEY, is_shown, () if is_intra else _read_references(bits, seq), writes)


def _holds_hole(tiles: bytes) -> bool:
    """Whether there are more zeros than encoders write: 28 in a row were seen inside, one at the end."""
    return bytes(_HOLE_BYTES) in tiles or tiles.endswith(bytes(_ZEROS_AT_END))


def without_frames(packet: bytes, places: Collection[int]) -> bytes:
    """The packet without these of its coded frames, counted from 0, headers and tiles. Raises SourceCorrupt."""
    pieces, begin, place = [], 0, -1
    for kind, _, end in _units(packet):
        place += kind in (_FRAME_HEADER, _FRAME)
        is_of_frame = kind in (_FRAME_HEADER, _TILE_GROUP, _FRAME, _FRAME_HEADER_AGAIN)
        if not (is_of_frame and place in places):
            pieces.append(packet[begin:end])
        begin = end
    return b"".join(pieces)


def _units(packet: bytes) -> Iterator[tuple[int, int, int]]:
    """5.3: (type, start, end) of the payload of every open bitstream unit. Raises SourceCorrupt for layers in space."""
    at = 0
    while at < len(packet):
        header = packet[at]
        if header & 0x80:
            raise SourceCorrupt("a forbidden bit is set")
        if header & 4 and packet[at + 1 : at + 2] not in _LOWEST_LAYER_IN_SPACE:
            raise SourceCorrupt("spatial layers are not read")
        at += 2 if header & 4 else 1
        size = len(packet) - at
        if header & 2:
            size, at = _leb128(packet, at)
        if at + size > len(packet):
            raise SourceCorrupt("an open bitstream unit's length is impossible")
        yield header >> 3 & 15, at, at + size
        at += size


def _leb128(packet: bytes, at: int) -> tuple[int, int]:
    """4.10.5: (number, where it ends)."""
    number = 0
    for nth, byte in enumerate(packet[at : at + 8]):
        number |= (byte & 127) << 7 * nth
        if not byte & 128:
            return number, at + nth + 1
    raise SourceCorrupt("an open bitstream unit's length is impossible")


def _skip_to_refresh_flags(bits: BitReader, seq: _Sequence, kind: int, *, is_independent: bool) -> None:
    """5.9.2, from disable_cdf_update to the buffer removal time."""
    bits.u(1)
    tools = bits.u(1) if seq.screen_content_tools == _CHOSEN_PER_FRAME else seq.screen_content_tools
    if tools and seq.integer_mv == _CHOSEN_PER_FRAME:
        bits.u(1)
    bits.u(seq.frame_id)
    bits.u(0 if kind == _SWITCH else 1)  # frame_size_override_flag
    bits.u(seq.order_hint)
    bits.u(0 if is_independent else 3)  # primary_ref_frame, one of the seven
    if seq.has_decoder_model and bits.u(1):
        bits.u(seq.buffer_removal_time)


def _read_references(bits: BitReader, seq: _Sequence) -> tuple[int, ...]:
    """5.9.2: the slots named by ref_frame_idx. In the short form (7.8) the order hints of all slots decide: all."""
    if seq.order_hint and bits.u(1):
        return tuple(range(_NUM_SLOTS))
    step = 3 + seq.delta_frame_id
    named = bits.u(_NUM_REFS * step) >> seq.delta_frame_id
    return tuple([named >> step * nth & 7 for nth in range(_NUM_REFS)])


def _read_sequence(bits: BitReader) -> _Sequence:
    """5.5.1. Raises SourceCorrupt for streams of several operating points: which one is decoded is the player's."""
    bits.u(4)  # profile, still_picture
    if bits.u(1):
        return _Sequence(is_one_still=True)
    has_model = is_even = False
    delay = removal_time = presentation_time = 0
    if bits.u(1):  # timing_info
        bits.u(64)
        is_even = bool(bits.u(1))
        if is_even:
            bits.ue()
        has_model = bool(bits.u(1))
        if has_model:
            delay = bits.u(5) + 1
            bits.u(32)
            removal_time, presentation_time = bits.u(5) + 1, bits.u(5) + 1
    has_display_delay = bool(bits.u(1))
    if bits.u(5):
        raise SourceCorrupt("several operating points are not read")
    bits.u(12)
    if bits.u(5) > 7:
        bits.u(1)  # seq_tier
    has_model_here = has_model and bool(bits.u(1))
    bits.u(2 * delay + 1 if has_model_here else 0)
    if has_display_delay and bits.u(1):
        bits.u(4)
    width_bits, height_bits = bits.u(4) + 1, bits.u(4) + 1
    bits.u(width_bits), bits.u(height_bits)
    delta_id = frame_id = 0
    if bits.u(1):
        delta_id = bits.u(4) + 2
        frame_id = delta_id + bits.u(3) + 1
    bits.u(7)  # superblock size, coding tools
    has_order = bits.u(1)
    bits.u(2 if has_order else 0)
    tools = _CHOSEN_PER_FRAME if bits.u(1) else bits.u(1)
    integer_mv = _CHOSEN_PER_FRAME if not tools or bits.u(1) else bits.u(1)
    return _Sequence(
        presentation_time=0 if is_even else presentation_time,
        buffer_removal_time=removal_time if has_model_here else 0,
        has_decoder_model=has_model,
        frame_id=frame_id,
        delta_frame_id=delta_id,
        screen_content_tools=tools,
        integer_mv=integer_mv,
        order_hint=bits.u(3) + 1 if has_order else 0,
    )
