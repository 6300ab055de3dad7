"""Reading bits of H.26x headers: unsigned and Exp-Golomb numbers out of a raw byte sequence payload. Pure."""

from __future__ import annotations

from framefleet.errors import SourceCorrupt


def unescape(payload: bytes) -> bytes:
    """Without the emulation prevention bytes (`00 00 03` -> `00 00`; H.264 7.4.1, H.265 7.4.2)."""
    return payload.replace(b"\0\0\3", b"\0\0") if b"\0\0\3" in payload else payload


class BitReader:
    """Reads from the front of `payload`. Raises SourceCorrupt past its end."""

    __slots__ = ("_left", "_value")

    def __init__(self, payload: bytes) -> None:
        self._value = int.from_bytes(payload, "big")
        self._left = 8 * len(payload)

    def u(self, num_bits: int) -> int:
        """An unsigned number of `num_bits`."""
        self._left -= num_bits
        if self._left < 0:
            raise SourceCorrupt("a header ends too early")
        return (self._value >> self._left) & ((1 << num_bits) - 1)

    def ue(self) -> int:
        """An unsigned Exp-Golomb number (H.264 9.1)."""
        rest = self._value & ((1 << self._left) - 1)
        zeros = self._left - rest.bit_length()
        if not rest or zeros > 32:
            raise SourceCorrupt("a header holds an impossible number")
        return self.u(2 * zeros + 1) - 1

    def se(self) -> int:
        """A signed Exp-Golomb number (H.264 9.1.1)."""
        code = self.ue()
        return (code + 1) // 2 if code & 1 else -(code // 2)
