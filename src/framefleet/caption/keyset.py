"""A set of request digests with a small number each, at 17 bytes a digest: ten million fit in 170 MB."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

KEY_BYTES = 16
_FIRST_MERGE = 1 << 16


class DigestMap:
    """128-bit digest (32 hex digits) -> number 0..255. Sorted arrays, and a small dict of the newest entries."""

    def __init__(self, entries: Iterable[tuple[str, int]] = ()) -> None:
        # Zero bytes at a key's end vanish in numpy's S dtype; all keys have one length, so none become equal by that.
        self._keys: npt.NDArray[np.bytes_] = np.empty(0, dtype=f"S{KEY_BYTES}")
        self._values: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._newest: dict[bytes, int] = {}
        for digest, value in entries:
            self[digest] = value

    def get(self, digest: str) -> int | None:
        """The number, or None."""
        key = bytes.fromhex(digest)
        if (found := self._newest.get(key)) is not None:
            return found
        at = self._find(key)
        return None if at is None else int(self._values[at])

    def __setitem__(self, digest: str, value: int) -> None:
        key = bytes.fromhex(digest)
        if len(key) != KEY_BYTES:
            raise ValueError(f"a digest of {KEY_BYTES} bytes is needed, not {digest!r}")
        if (at := self._find(key)) is not None:
            self._values[at] = value
            return
        self._newest[key] = value
        if len(self._newest) >= max(_FIRST_MERGE, len(self._keys) // 8):
            self._merge()

    def __contains__(self, digest: str) -> bool:
        return self.get(digest) is not None

    def __len__(self) -> int:
        return len(self._keys) + len(self._newest)

    def _find(self, key: bytes) -> int | None:
        at = int(np.searchsorted(self._keys, key))
        return at if at < len(self._keys) and self._keys[at] == key.rstrip(b"\0") else None

    def _merge(self) -> None:
        order = sorted(self._newest)
        keys = np.array(order, dtype=self._keys.dtype)
        places = np.searchsorted(self._keys, keys)
        values = np.fromiter((self._newest[key] for key in order), dtype=np.uint8, count=len(order))
        self._keys = np.insert(self._keys, places, keys)
        self._values = np.insert(self._values, places, values)
        self._newest = {}
