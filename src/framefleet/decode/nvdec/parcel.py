"""Parcel: exactly the packets that a plan feeds, shaped for NVDEC, in one piece of memory.

Packing (opening, demuxing, rewriting) is CPU work on untrusted bytes: it can be done in a killable worker and the
parcel handed over in shared memory, so that the GPU's process runs no demuxer and little Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefleet.decode.nvdec.bitstream import PacketShaper
from framefleet.decode.plan import DecodePlan
from framefleet.decode.walk import PacketWalk
from framefleet.errors import DecodeError
from framefleet.media.clip import ScannedClip
from framefleet.media.index import FrameIndex, Int64
from framefleet.media.limits import ScanLimits


@dataclass(frozen=True, slots=True)
class Parcel:
    """F packets in feeding order, in G runs.

    A packet's *stamp* is its rank in presentation order. It travels through the decoder in place of a pts and comes
    back with the picture. It must not be the packet's number: stamps that grow in decode order are taken for decode
    times by NVDEC's parser, which then deals them out anew in display order (seen on an H200: the right pictures
    under the wrong names, wherever there are B-frames).
    """

    clip: ScannedClip
    """Without the bytes of a clip in memory."""
    width: int
    height: int
    rows: Int64
    """[T] the target rows, as planned."""
    wanted_stamps: Int64
    """[R] the stamps of the unique target rows, in the rows' order."""
    payload: npt.NDArray[np.uint8]
    """[B] all packets, one after the other."""
    ends: Int64
    """[F] where each packet ends in `payload`."""
    stamps: Int64
    """[F]"""
    run_ends: Int64
    """[G] past-the-end packet of each run."""

    def runs(self) -> list[range]:
        """The packets of each run, in feeding order."""
        return [range(a, b) for a, b in zip([0, *self.run_ends[:-1].tolist()], self.run_ends.tolist(), strict=True)]

    def packet(self, number: int) -> npt.NDArray[np.uint8]:
        """A view of one packet's bytes."""
        return self.payload[self.ends[number - 1] if number else 0 : self.ends[number]]


def pack(clip: ScannedClip, plan: DecodePlan, limits: ScanLimits) -> Parcel:
    """Read and shape the plan's packets. Raises SourceError, SeekFailed or DecodeTimeout."""
    pieces, stamps, run_ends = [], [], []
    stamp_of_packet = presentation_ranks(clip.index)
    for run in _shaped_runs(clip, plan, limits):
        for number, piece in run:
            pieces.append(piece)
            stamps.append(stamp_of_packet[number])
        run_ends.append(len(pieces))
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    rows = np.unique(plan.targets.rows)
    return Parcel(
        clip=dataclasses.replace(clip, source=dataclasses.replace(clip.source, content=None)),
        width=plan.width,
        height=plan.height,
        rows=plan.targets.rows,
        wanted_stamps=stamp_of_packet[clip.index.packet_of_row[rows]],
        payload=np.frombuffer(b"".join(pieces), np.uint8),
        ends=np.cumsum(sizes),
        stamps=np.array(stamps, np.int64),
        run_ends=np.array(run_ends, np.int64),
    )


def presentation_ranks(index: FrameIndex) -> Int64:
    """[P] each packet's place in presentation order. Raises DecodeError where stamps are missing or shared."""
    stamps, ranks = np.unique(index.packet_pts, return_inverse=True)
    if len(stamps) != len(index.packet_pts) or (len(stamps) and stamps[0] == index.NO_PTS):
        raise DecodeError("packets share time stamps, or have none", remedy="backend='pyav'")
    return ranks.astype(np.int64)


def _shaped_runs(clip: ScannedClip, plan: DecodePlan, limits: ScanLimits) -> Iterator[Iterator[tuple[int, bytes]]]:
    with PacketWalk(clip, limits) as walk:
        shaper = PacketShaper(clip.info.codec, walk.stream.codec_context.extradata or b"")
        for group in plan.groups:
            yield (
                (number, shaper.shape(bytes(packet), is_first=number == group.first_packet))
                for number, packet in walk.feed(group)
            )
