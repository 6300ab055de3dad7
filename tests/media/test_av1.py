"""What AV1 headers tell: written bit by bit here for what encoders at hand never write, and read from real clips."""

from __future__ import annotations

import numpy as np
import pytest
from barcode_clips import write_clip
from hypothesis import given
from hypothesis import strategies as st

from framefleet.media.av1 import Av1Reader, without_frames
from framefleet.media.facts import NOT_ONE_PICTURE, REFERENCE, START
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource

SEQUENCE, HEADER, TILES, METADATA, FRAME = 1, 3, 4, 5, 6
KEY, INTER, INTRA_ONLY, SWITCH = range(4)


def bits_of(*fields):
    """Bytes of (value, number of bits) pairs, the rest filled up with what must not be read."""
    assert all(value < 1 << width for value, width in fields if width)
    text = "".join(f"{value:0{width}b}" if width else "" for value, width in fields)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def unit(kind, payload, *, layers=None, is_sized=True):
    """An open bitstream unit; `layers` is (in time, in space)."""
    head = bytes([kind << 3 | (4 if layers else 0) | (2 if is_sized else 0)])
    head += bytes([layers[0] << 5 | layers[1] << 3]) if layers else b""
    size, rest = b"", len(payload)
    while is_sized:
        size += bytes([rest & 127 | (128 if rest > 127 else 0)])
        rest >>= 7
        if not rest:
            break
    return head + size + payload


class Stream:
    """A stream of headers only, by the sequence header's options (5.5)."""

    def __init__(self, *, order_bits=7, id_bits=None, model=False, is_even=False, points=1, tools=None, mv=None):
        self.order_bits, self.id_bits, self.model, self.is_even = order_bits, id_bits, model, is_even
        self.tools, self.mv, self.points = tools, mv, points

    def sequence(self):
        fields = [(0, 3), (0, 1), (0, 1)]  # profile, still picture, reduced header
        fields += [(1, 1), (1001, 32), (30000, 32), (int(self.is_even), 1)] if self.model else [(0, 1)]
        if self.model:
            fields += [(0b00101, 5)] if self.is_even else []  # ticks of a picture: uvlc 4
            fields += [(1, 1), (9, 5), (90000, 32), (19, 5), (23, 5)]  # delays of 10, removal 20, presentation 24 bits
        fields += [(1, 1), (self.points - 1, 5)]  # display delays
        for _ in range(self.points):
            fields += [(0, 12), (9, 5), (1, 1)]  # level 4.1, high tier
            fields += [(1, 1), (7, 10), (7, 10), (0, 1)] if self.model else []
            fields += [(1, 1), (5, 4)]
        fields += [(10, 4), (10, 4), (1919, 11), (1079, 11), (int(bool(self.id_bits)), 1)]
        fields += [(self.id_bits[0] - 2, 4), (self.id_bits[1] - self.id_bits[0] - 1, 3)] if self.id_bits else []
        fields += [(0b1010101, 7), (int(bool(self.order_bits)), 1), (0b10, 2 if self.order_bits else 0)]
        fields += [(1, 1)] if self.tools is None else [(0, 1), (self.tools, 1)]
        if self.tools != 0:
            fields += [(1, 1)] if self.mv is None else [(0, 1), (self.mv, 1)]
        fields += [(self.order_bits - 1, 3)] if self.order_bits else []
        return unit(SEQUENCE, bits_of(*fields) + b"\xff" * 4)

    def show(self, slot):
        """show_existing_frame."""
        has_time = self.model and not self.is_even
        return unit(HEADER, bits_of((1, 1), (slot, 3), (5, 24 if has_time else 0), *self._id()) + b"\x80")

    def frame(self, kind, refs=(), writes=0, *, is_shown=True, is_resilient=False, is_short=False, as_obu=FRAME):
        """A frame header (5.9.2) as far as the references, then rubbish."""
        has_time = self.model and not self.is_even
        renews = kind == SWITCH or (kind == KEY and is_shown)
        is_resilient = is_resilient or renews
        fields = [(0, 1), (kind, 2), (int(is_shown), 1)]
        fields += [(77, 24 if has_time else 0)] if is_shown else [(1, 1)]
        fields += [] if renews else [(int(is_resilient), 1)]
        fields += [(1, 1)]  # disable_cdf_update
        tools = 1 if self.tools is None else self.tools
        fields += [(tools, 1)] if self.tools is None else []
        fields += [(1, 1)] if tools and self.mv is None else []
        fields += [*self._id(), *([] if kind == SWITCH else [(1, 1)]), (1, self.order_bits)]
        is_intra = kind in (KEY, INTRA_ONLY)
        fields += [] if is_intra or is_resilient else [(5, 3)]  # primary_ref_frame
        fields += [(1, 1), (12345, 20)] if self.model else []
        fields += [] if renews else [(writes, 8)]
        if is_resilient and self.order_bits and not (is_intra and (renews or writes == 255)):
            fields += [(1, self.order_bits)] * 8
        if not is_intra:
            fields += [(int(is_short), 1)] if self.order_bits else []
            fields += [(2, 3), (6, 3)] if is_short else []
            for slot in refs:
                fields += [] if is_short else [(slot, 3)]
                fields += [(1, self.id_bits[0])] if self.id_bits else []
        return unit(as_obu, bits_of(*fields) + b"\x5a\xa5" * 40)

    def _id(self):
        return [(1, self.id_bits[1])] if self.id_bits else []


def read(*packets):
    """(facts, reader) of packets given as lists of units."""
    reader = Av1Reader()
    facts = [reader.read(b"".join(packet), is_key=number == 0) for number, packet in enumerate(packets)]
    return facts, reader


def needs_of(reader):
    """Frame -> the frames it leans on."""
    coded = reader.coded_frames
    found = {frame: set() for frame in range(len(coded.packet))}
    for frame, other in coded.needs.tolist():
        found[frame].add(other)
    return list(found.values())


STREAMS = st.builds(
    Stream,
    order_bits=st.integers(0, 8),
    id_bits=st.none() | st.sampled_from([(2, 3), (2, 10), (8, 16), (14, 15)]),
    model=st.booleans(),
    is_even=st.booleans(),
    tools=st.sampled_from([None, 0, 1]),
    mv=st.sampled_from([None, 0, 1]),
)
SLOTS = st.lists(st.integers(0, 7), min_size=7, max_size=7)


@st.composite
def frames(draw):
    """(kind, slots read, slots written, options); a tuple of one is a slot that is shown again."""
    if draw(st.integers(0, 5)) == 0:
        return (draw(st.integers(0, 7)),)
    kind = draw(st.sampled_from([INTER, INTER, INTER, INTRA_ONLY, SWITCH, KEY]))
    options = {"is_shown": draw(st.booleans()), "is_resilient": draw(st.booleans())}
    return kind, draw(SLOTS), draw(st.sampled_from([0, 0, 1, 6, 128, 254])), options


@given(STREAMS, st.lists(frames(), max_size=12))
def test_what_leans_on_what_is_what_was_written(stream, body):
    """Against the reference frame update process as 7.20 states it, on headers of every form."""
    packets, truth = [[stream.sequence(), stream.frame(KEY)], []], [set()]
    slots = [(0, KEY)] * 8
    for number, frame in enumerate(body, 1):
        if len(frame) == 1:
            (slot,) = frame
            truth.append({slots[slot][0]})
            packets[-1].append(stream.show(slot))
            packets.append([])
            slots = [(number, KEY)] * 8 if slots[slot][1] == KEY else slots
            continue
        kind, refs, writes, options = frame
        is_all = kind == SWITCH or (kind == KEY and options["is_shown"])
        truth.append({slots[slot][0] for slot in refs} if kind in (INTER, SWITCH) else set())
        packets[-1].append(stream.frame(kind, refs, writes, **options))
        packets += [[]] if options["is_shown"] else []
        slots = [(number, kind) if is_all or writes >> slot & 1 else slots[slot] for slot in range(8)]
    packets[-1].append(stream.show(5))
    truth.append({slots[5][0]})
    _, reader = read(*packets)
    assert needs_of(reader) == truth
    assert len(np.unique(reader.coded_frames.packet)) == len(packets)


@given(STREAMS.filter(lambda stream: stream.order_bits), SLOTS)
def test_the_short_form_leans_on_every_slot(stream, refs):
    packets = [[stream.sequence(), stream.frame(KEY)]]
    packets += [[stream.frame(INTER, [0] * 7, 1 << slot)] for slot in range(8)]
    _, reader = read(*packets, [stream.frame(INTER, refs, 0, is_short=True)])
    assert needs_of(reader)[-1] == set(range(1, 9))


def test_facts_of_a_small_pyramid():
    stream = Stream()
    facts, reader = read(
        [stream.sequence(), stream.frame(KEY)],
        [stream.frame(INTER, [0] * 7, 2, is_shown=False), stream.frame(INTER, [0, 1, 0, 0, 0, 0, 0], 0)],
        [stream.frame(INTER, [1, 0, 0, 0, 0, 0, 0], 0)],
        [stream.show(1)],
    )
    assert facts == [START | REFERENCE, REFERENCE, 0, 0]
    assert reader.coded_frames.packet.tolist() == [0, 1, 1, 2, 3]
    assert needs_of(reader) == [set(), {0}, {0, 1}, {0, 1}, {1}]


def test_a_key_frame_shown_late_is_no_start_but_renews_every_slot():
    stream = Stream()
    facts, reader = read(
        [stream.sequence(), stream.frame(KEY)],
        [stream.sequence(), stream.frame(KEY, writes=8, is_shown=False), stream.frame(INTER, [0] * 7, 0)],
        [stream.show(3)],
        [stream.frame(INTER, [0] * 7, 0)],
    )
    assert [fact & START for fact in facts] == [START, 0, 0, 0]
    assert facts[2] & REFERENCE
    assert needs_of(reader)[-2:] == [{1}, {3}]


@pytest.mark.parametrize(
    "oddity",
    [
        [Stream(points=2).sequence(), Stream().frame(KEY)],
        [Stream().sequence(), unit(FRAME, b"\x10" + bytes(40), layers=(0, 1))],
        [Stream().frame(INTER, [0] * 7, 0)[:3]],
        [b"\x92\x00"],
        [b"\x32\xff\xff\xff\xff\xff\xff\xff\xff\xff"],
        [b"\x36"],
    ],
    ids=["operating points", "layer in space", "cut off", "forbidden bit", "endless length", "no extension"],
)
def test_what_is_odd_is_a_reference_and_ends_all_knowledge(oddity):
    stream = Stream()
    facts, reader = read([stream.sequence(), stream.frame(KEY)], oddity, [stream.frame(INTER, [0] * 7, 0)])
    assert facts[1] == REFERENCE
    assert reader.coded_frames is None


def test_nothing_is_read_by_a_sequence_header_that_was_replaced():
    stream = Stream()
    odd = [Stream(points=2).sequence()]
    facts, _ = read([stream.sequence(), stream.frame(KEY)], odd, [stream.frame(INTER, [0] * 7, 0)])
    assert facts[2] == REFERENCE


@pytest.mark.parametrize("order", [(False,), (True, False)])
def test_a_packet_that_does_not_end_in_a_picture_misses_it(order):
    stream = Stream()
    packet = [stream.frame(INTER, [0] * 7, 2, is_shown=is_shown) for is_shown in order]
    facts, reader = read([stream.sequence(), stream.frame(KEY)], packet)
    assert facts[1] == REFERENCE
    assert reader.coded_frames is None


def test_two_pictures_in_a_packet():
    stream = Stream()
    facts, reader = read(
        [stream.sequence(), stream.frame(KEY)], [stream.frame(INTER, [0] * 7, 0), stream.frame(INTER, [0] * 7, 0)]
    )
    assert facts[1] & NOT_ONE_PICTURE
    assert reader.coded_frames is None


def test_layers_in_time_are_read():
    stream = Stream()
    frame = stream.frame(INTER, [0] * 7, 0)
    layered = unit(FRAME, frame[2:], layers=(2, 0), is_sized=False)
    facts, reader = read([stream.sequence(), stream.frame(KEY)], [layered])
    assert facts[1] == 0
    assert needs_of(reader)[1] == {0}


def test_a_still_picture():
    facts, reader = read([unit(SEQUENCE, bits_of((0, 3), (1, 1), (1, 1), (0, 5)) + b"\xff"), unit(FRAME, b"\x10" * 9)])
    assert facts == [START | REFERENCE]
    assert needs_of(reader) == [set()]


def test_frames_are_cut_out_with_their_tiles_and_nothing_else():
    stream = Stream()
    first, third = stream.frame(INTER, [0] * 7, 1, is_shown=False), stream.frame(INTER, [0] * 7, 0)
    second = stream.frame(INTER, [0] * 7, 2, is_shown=False, as_obu=HEADER)
    tiles, metadata = unit(TILES, b"\x77" * 200), unit(METADATA, b"\x01" * 5)
    packet = b"".join([stream.sequence(), first, metadata, second, tiles, tiles, third])
    assert without_frames(packet, {1}) == stream.sequence() + first + metadata + third
    assert without_frames(packet, {0, 2}) == stream.sequence() + metadata + second + tiles + tiles
    assert without_frames(packet, ()) == packet


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "webm", "ivf", "obu"])
def test_containers_give_the_same(tmp_path, suffix):
    path = tmp_path / f"clip.{suffix}"
    write_clip(path, 30, codec="libsvtav1", gop=15, options={"preset": "10", "svtav1-params": "lp=1"})
    index = scan(VideoSource.of(path)).index
    assert index.num_frames == 30
    assert np.flatnonzero(index.packet_is_keyframe).tolist() == [0, 15]
    assert index.coded_frames is not None
    assert len(index.coded_frames.packet) > 30
    assert not index.notes or suffix == "obu"
