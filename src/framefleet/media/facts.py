"""What one packet's bytes tell about it, as bits of an int (a table of many packets is then one numpy array).

`FactReader.read(packet_bytes, is_key_from_header)` gives the facts of a packet; readers keep what earlier packets told
(parameter sets, the last frame number), so feed them in decode order.
"""

from __future__ import annotations

from typing import Final, Protocol

START: Final = 1 << 0
"""Decoding can start here, and every packet that follows in decode and presentation order comes out right."""
RECOVERY: Final = 1 << 1
"""Decoding can start here, but pictures come out right only some frames later (gradual refresh)."""
REFERENCE: Final = 1 << 2
"""Later packets may depend on it."""
LEADS_BROKEN: Final = 1 << 3
"""Precedes its START in presentation order and leans on what came before that START (RASL)."""
LEADS_SAFELY: Final = 1 << 4
"""Precedes its START in presentation order, but leans on nothing before it (RADL, closed GOP)."""
DAMAGED: Final = 1 << 5
"""Its bytes cannot be what an encoder wrote."""
GAP: Final = 1 << 6
"""Reference pictures are missing between the packet before and this one."""
HIDDEN: Final = 1 << 7
"""Carries no picture that is shown (alternative reference frame, parameter sets alone)."""
NOT_ONE_PICTURE: Final = 1 << 8
"""Carries a single field, or more than one picture: only decoding tells which pictures come out."""
IS_B: Final = 1 << 9
"""Predicted from two sides, so presentation and decode order may differ."""
ORDERED: Final = 1 << 10
"""The stream itself counts where the picture is shown; see `ORDER_SHIFT`."""
LAYER_SHIFT, LAYER_MASK = 12, 7
"""Three bits: the temporal layer."""
RECOVERY_SHIFT, RECOVERY_MASK = 16, (1 << 20) - 1
"""Twenty bits, with RECOVERY: how many reference pictures later the pictures are right."""
ORDER_SHIFT, ORDER_BITS = 40, 16
"""With ORDERED: the picture's place in presentation order by the stream's own count. Shorter counts fill the high bits,
so that all of them wrap at 2**16."""

_ZERO_RUN = bytes(16)


class FactReader(Protocol):
    """Reads packets of one codec."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """The facts; `is_key` is what the container says. Damaged bytes are a fact, never an exception."""
        ...


class TrustingReader:
    """For codecs whose packets are not read: believes the container, and takes every packet for a reference."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        return REFERENCE | (START if is_key else 0)


class IntraReader:
    """For codecs where every packet stands alone."""

    def read(self, packet: bytes, *, is_key: bool) -> int:
        """See FactReader."""
        return START


INTRA_CODECS: Final = frozenset((
    "mjpeg", "mjpegb", "prores", "prores_raw", "dnxhd", "cfhd", "dvvideo", "rawvideo", "v210", "v410", "r210", "ljpeg",
    "jpeg2000", "jpegls", "png", "bmp", "tiff", "huffyuv", "ffvhuff", "utvideo", "magicyuv", "hap", "dxv", "qoi",
    "yuv4", "ayuv", "targa", "exr", "dpx", "speedhq", "hqx", "hq_hqa", "sheervideo", "cllc",
))  # fmt: skip


def order_of(count: int, num_bits: int) -> int:
    """The bits that say: shown at `count`, by a counter of `num_bits` bits."""
    whole = count << ORDER_BITS - num_bits if num_bits < ORDER_BITS else count
    return ORDERED | (whole & (1 << ORDER_BITS) - 1) << ORDER_SHIFT


def holds_zero_run(packet: bytes, *, may_end_in_zeros: bool) -> bool:
    """Whether a run of zeros lies inside, which no encoder here writes: a hole in the file.

    `may_end_in_zeros`: zeros at the very end, or before a start code, are padding.
    """
    at = packet.find(_ZERO_RUN)
    if at < 0:
        return False
    if not may_end_in_zeros:
        return True
    rest = packet[at:].lstrip(b"\0")
    return bool(rest) and rest[0] != 1
