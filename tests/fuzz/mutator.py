"""Damaged video files by seed: `damage(seed, corpus)` names a file and a list of edits, `apply` makes the bytes. Pure.

The edits are values with explicit places, so that a file once found bad can be made again whatever becomes of the
rules that chose it (`Damage.to_json`, `Damage.from_json`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

CONTAINER_BOXES = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"udta", b"moof", b"traf", b"dinf"))
INTERESTING = [
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFE,
    0xFFFFFFFF,
]
EBML_IDS = [
    b"\xe7", b"\xa3", b"\xa1", b"\x44\x89", b"\xb0", b"\xba", b"\x54\xb0", b"\x2a\xd7\xb1", b"\x63\xa2", b"\x86",
    b"\xae", b"\x1f\x43\xb6\x75", b"\x18\x53\x80\x67", b"\x1c\x53\xbb\x6b", b"\x23\xe3\x83", b"\x9b", b"\xfb", b"\x83",
]  # fmt: skip
TS_PACKET_BYTES = 188

Edit = tuple[str, int, int, str]
"""(what, offset, length, hex): `put` overwrites with the hex bytes, `cut` removes, `add` inserts, `end` truncates."""


@dataclass(frozen=True)
class Damage:
    """One damaged file: a file of the corpus, and edits in the order of their making."""

    file: str
    edits: tuple[Edit, ...]

    def to_json(self) -> str:
        return json.dumps({"file": self.file, "edits": self.edits}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Damage:
        fields = json.loads(line)
        return cls(fields["file"], tuple((w, o, n, h) for w, o, n, h in fields["edits"]))


def apply(content: bytes, edits: Sequence[Edit]) -> bytes:
    """The damaged bytes."""
    for what, offset, length, text in edits:
        new = bytes.fromhex(text)
        if what == "put":
            content = content[:offset] + new + content[offset + len(new) :]
        elif what == "cut":
            content = content[:offset] + content[offset + length :]
        elif what == "add":
            content = content[:offset] + new + content[offset:]
        else:
            content = content[:offset]
    return content


def damage(seed: int, corpus: Mapping[str, bytes]) -> Damage:
    """One to four kinds of damage to one file, by the seed alone."""
    rng = random.Random(seed)
    names = sorted(corpus)
    name = names[seed % len(names)]  # every file in its turn
    content, edits = corpus[name], []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        if not content:
            break
        rule = rng.choice(rules_for(content))
        for edit in rule(rng, content, corpus[rng.choice(names)]):
            edits.append(edit)
            content = apply(content, [edit])
    return Damage(name, tuple(edits))


Rule = Callable[[random.Random, bytes, bytes], list[Edit]]


def rules_for(content: bytes) -> list[Rule]:
    """Those that make sense for a file of this kind; the general ones always."""
    rules: list[Rule] = [
        flip_bits, flip_bits_at_the_start, cut_tail, cut_chunk, zero_chunk, repeat_chunk, borrow_chunk, put_number,
    ]  # fmt: skip
    if content[4:8] in (b"ftyp", b"moov", b"wide", b"free", b"mdat"):
        rules += [box_gone, box_twice, box_size, box_field, box_field, box_borrowed, unit_gone, unit_borrowed]
    if content[:4] == b"\x1a\x45\xdf\xa3":
        rules += [ebml_field, ebml_field, ebml_size]
    if content[:1] == b"\x47" and content[TS_PACKET_BYTES : TS_PACKET_BYTES + 1] == b"\x47":
        rules += [packets_gone, packets_swapped, packet_header]
    if content[:4] in (b"\0\0\0\1", b"\0\0\1\xba"):
        rules += [start_code_unit_gone, start_code_unit_twice]
    return rules


def place(rng: random.Random, content: bytes, length: int = 1) -> int:
    """Anywhere, headers (first and last kilobyte) as often as all the rest."""
    last = max(0, len(content) - length)
    return rng.choice((rng.randint(0, last), rng.randint(0, min(last, 1024)), rng.randint(max(0, last - 1024), last)))


def chunk(rng: random.Random, content: bytes) -> tuple[int, int]:
    length = min(len(content), rng.choice((1, 2, 4, 16, 64, 188, 512, 1024, 4096)))
    return place(rng, content, length), length


def flip(rng: random.Random, content: bytes, offsets: Sequence[int]) -> list[Edit]:
    return [("put", at, 1, f"{content[at] ^ (1 << rng.randrange(8)):02x}") for at in sorted(set(offsets))]


def flip_bits(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    return flip(rng, content, [rng.randrange(len(content)) for _ in range(rng.choice((1, 2, 4, 16, 64)))])


def flip_bits_at_the_start(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    return flip(rng, content, [rng.randrange(min(len(content), 700)) for _ in range(rng.choice((1, 2, 4)))])


def cut_tail(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    return [("end", rng.randrange(len(content)), 0, "")]


def cut_chunk(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    return [("cut", *chunk(rng, content), "")]


def zero_chunk(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    offset, length = chunk(rng, content)
    return [("put", offset, length, bytes(length).hex())]


def repeat_chunk(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    offset, length = chunk(rng, content)
    return [("add", place(rng, content), 0, content[offset : offset + length].hex() * rng.choice((1, 1, 3)))]


def borrow_chunk(rng: random.Random, content: bytes, other: bytes) -> list[Edit]:
    if not other:
        return []
    offset, length = chunk(rng, other)
    return [(rng.choice(("add", "put")), place(rng, content), length, other[offset : offset + length].hex())]


def number(rng: random.Random, width: int) -> str:
    value = rng.choice((*INTERESTING, rng.getrandbits(32)))
    return (value & ((1 << (8 * width)) - 1)).to_bytes(width, rng.choice(("big", "little"))).hex()


def put_number(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    width = rng.choice((1, 2, 4, 8))
    return [("put", place(rng, content, width), width, number(rng, width))]


def boxes(content: bytes, start: int = 0, end: int | None = None) -> list[tuple[int, int, bytes]]:
    """(offset, size, type) of every MP4 box, containers' children included."""
    found, end = [], len(content) if end is None else end
    while start + 8 <= end:
        size, kind = int.from_bytes(content[start : start + 4], "big"), content[start + 4 : start + 8]
        size = size if 8 <= size <= end - start else end - start
        found.append((start, size, kind))
        if kind in CONTAINER_BOXES:
            found += boxes(content, start + 8, start + size)
        start += size
    return found


def box_gone(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    offset, size, _ = rng.choice(boxes(content) or [(0, 0, b"")])
    return [("cut", offset, size, "")]


def box_twice(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    offset, size, _ = rng.choice(boxes(content) or [(0, 0, b"")])
    return [("add", offset, 0, content[offset : offset + min(size, 8192)].hex())]


def box_size(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    offset, size, _ = rng.choice(boxes(content) or [(0, 8, b"")])
    near = (size + rng.choice((-8, -4, -1, 1, 4, 8))) & 0xFFFFFFFF
    return [("put", offset, 4, rng.choice((f"{near:08x}", number(rng, 4))))]


def box_field(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    """A number somewhere in a leaf box that is no `mdat`: times, counts, sizes, matrices, codec headers."""
    leaves = [b for b in boxes(content) if b[2] not in CONTAINER_BOXES | {b"mdat"} and b[1] >= 12]
    if not leaves:
        return []
    offset, size, _ = rng.choice(leaves)
    width = rng.choice((1, 2, 4))
    at = offset + 8 + rng.randrange(max(1, min(size - 8 - width, 200) + 1))
    return [("put", at, width, number(rng, width))]


def box_borrowed(rng: random.Random, content: bytes, other: bytes) -> list[Edit]:
    """A box in place of one of the same type from another file."""
    mine = boxes(content)
    theirs = {kind: (offset, size) for offset, size, kind in boxes(other) if size <= 8192}
    same = [(offset, size, kind) for offset, size, kind in mine if kind in theirs]
    if not same:
        return []
    offset, size, kind = rng.choice(same)
    at, length = theirs[kind]
    return [("cut", offset, size, ""), ("add", offset, 0, other[at : at + length].hex())]


def units(content: bytes) -> list[tuple[int, int]]:
    """(offset, size) of the length-prefixed NAL units of the first `mdat`, as far as they look like such."""
    offset, size, _ = next((b for b in boxes(content) if b[2] == b"mdat"), (0, 0, b""))
    at, end, found = offset + 8, offset + size, []
    while at + 4 < end:
        length = int.from_bytes(content[at : at + 4], "big")
        if not 0 < length <= end - at - 4:
            break
        found.append((at, 4 + length))
        at += 4 + length
    return found


def unit_gone(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    """A NAL unit whose bytes are overwritten with another's: sizes in the index stay true."""
    found = units(content)
    if len(found) < 2:
        return []
    (to, room), (source, size) = rng.sample(found, 2)
    length = min(room, size)
    return [("put", to, length, content[source : source + length].hex())]


def unit_borrowed(rng: random.Random, content: bytes, other: bytes) -> list[Edit]:
    found, theirs = units(content), units(other)
    if not found or not theirs:
        return []
    (to, room), (source, size) = rng.choice(found), rng.choice(theirs)
    length = min(room, size)
    return [("put", to + 4, length, other[source + 4 : source + 4 + length].hex())]


def matches(pattern: bytes, content: bytes) -> list[int]:
    return [m.start() for m in re.finditer(re.escape(pattern), content)]


def ebml_field(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    """The content of an element: times, sizes, codec, block headers."""
    identity = rng.choice(EBML_IDS)
    at = matches(identity, content)
    if not at:
        return []
    width = rng.choice((1, 2, 4))
    return [
        ("put", min(rng.choice(at) + len(identity) + 1 + rng.randrange(4), len(content) - 1), width, number(rng, width))
    ]


def ebml_size(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    identity = rng.choice(EBML_IDS)
    at = matches(identity, content)
    return [("put", rng.choice(at) + len(identity), 1, f"{rng.randrange(256):02x}")] if at else []


def packet_at(rng: random.Random, content: bytes) -> int:
    return rng.randrange(max(1, len(content) // TS_PACKET_BYTES)) * TS_PACKET_BYTES


def packets_gone(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    return [("cut", packet_at(rng, content), TS_PACKET_BYTES * rng.choice((1, 1, 2, 10)), "")]


def packets_swapped(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    one, two = packet_at(rng, content), packet_at(rng, content)
    take = [content[at : at + TS_PACKET_BYTES].hex() for at in (one, two)]
    return [("put", one, TS_PACKET_BYTES, take[1]), ("put", two, TS_PACKET_BYTES, take[0])]


def packet_header(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    """Packet id, continuity, adaptation field, clock reference, PES header."""
    at = packet_at(rng, content) + rng.randrange(30)
    return [("put", min(at, len(content) - 1), 1, f"{rng.randrange(256):02x}")]


def start_code_units(content: bytes) -> list[tuple[int, int]]:
    at = [*matches(b"\0\0\1", content), len(content)]
    return [(one, two - one) for one, two in pairwise(at)]


def start_code_unit_gone(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    return [("cut", *rng.choice(start_code_units(content) or [(0, 0)]), "")]


def start_code_unit_twice(rng: random.Random, content: bytes, _: bytes) -> list[Edit]:
    found = start_code_units(content) or [(0, 0)]
    offset, size = rng.choice(found)
    return [("add", rng.choice(found)[0], 0, content[offset : offset + size].hex())]
