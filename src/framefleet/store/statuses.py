"""Digest -> status of every record, at 17 bytes each: ten million fit in 170 MB, where a dict would take gigabytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from framefleet.engine.captioner import Status

_NAMES: tuple[Status, ...] = ("ok", "truncated", "rejected", "failed")
_CODES = {name: code for code, name in enumerate(_NAMES)}
_KEY = np.dtype("S16")
_HEX_CHARS = 32
_MERGE_ABOVE = 1 << 16


class Statuses(Mapping[str, Status]):
    """A mapping that only its maker changes (`put`). Iteration order is the digests' own.

    Sorted arrays, and a dict of the newest entries that is merged in when it grows.
    """

    def __init__(self, chunks: Iterable[tuple[Any, Any]] = ()) -> None:
        """From equally long sequences (or Arrow columns) of digests and statuses, chunk by chunk. Of a digest given
        twice the later wins."""
        pairs = [(_keys_of(digests), _codes_of(statuses)) for digests, statuses in chunks]
        keys = np.concatenate([np.empty(0, _KEY), *(keys for keys, _ in pairs)])[::-1]
        codes = np.concatenate([np.empty(0, np.uint8), *(codes for _, codes in pairs)])[::-1]
        self._keys, first = np.unique(keys, return_index=True)  # the first of equals: the later one, as it is reversed
        self._codes = codes[first]
        self._newest: dict[bytes, int] = {}

    def put(self, digest: str, status: Status) -> None:
        """Set or change one."""
        key = bytes.fromhex(digest)
        at = self._find(key)
        if at is not None:
            self._codes[at] = _CODES[status]
            return
        self._newest[key] = _CODES[status]
        if len(self._newest) >= max(_MERGE_ABOVE, len(self._keys) // 8):
            self._merge()

    def counts(self) -> dict[Status, int]:
        """How many of each status; zeros included."""
        totals = np.bincount(self._codes, minlength=len(_NAMES))
        for code in self._newest.values():
            totals[code] += 1
        return {name: int(total) for name, total in zip(_NAMES, totals, strict=True)}

    def having(self, status: Status) -> set[str]:
        """The digests of this status."""
        code = _CODES[status]
        found = {_hex(key) for key in self._keys[self._codes == code].tolist()}
        return found | {key.hex() for key, newest in self._newest.items() if newest == code}

    def copy(self) -> Statuses:
        """A snapshot that later `put`s do not reach."""
        twin = Statuses.__new__(Statuses)
        twin._keys, twin._codes, twin._newest = self._keys, self._codes.copy(), dict(self._newest)  # noqa: SLF001
        return twin

    def __getitem__(self, digest: str) -> Status:
        try:
            key = bytes.fromhex(digest)
        except ValueError:
            raise KeyError(digest) from None
        if (code := self._newest.get(key)) is not None:
            return _NAMES[code]
        if (at := self._find(key)) is None:
            raise KeyError(digest)
        return _NAMES[int(self._codes[at])]

    def __iter__(self) -> Iterator[str]:
        yield from map(_hex, self._keys.tolist())
        yield from (key.hex() for key in self._newest)

    def __len__(self) -> int:
        return len(self._keys) + len(self._newest)

    def _find(self, key: bytes) -> int | None:
        if len(key) != _KEY.itemsize:
            return None
        at = int(np.searchsorted(self._keys, np.array(key, dtype=_KEY)))
        # numpy drops zero bytes at a key's end; all keys have one length, so none become equal by that
        return at if at < len(self._keys) and self._keys[at] == key.rstrip(b"\0") else None

    def _merge(self) -> None:
        keys = np.array(list(self._newest), dtype=_KEY)
        codes = np.fromiter(self._newest.values(), dtype=np.uint8, count=len(keys))
        order = np.argsort(keys)
        places = np.searchsorted(self._keys, keys[order])
        self._keys = np.insert(self._keys, places, keys[order])
        self._codes = np.insert(self._codes, places, codes[order])
        self._newest = {}


def _hex(key: bytes) -> str:
    return key.ljust(_KEY.itemsize, b"\0").hex()


def _keys_of(digests: Any) -> npt.NDArray[np.bytes_]:
    """`[N] S16` of N digests in hex."""
    if len(digests) == 0:
        return np.empty(0, dtype=_KEY)
    chars = np.asarray(digests, dtype=f"S{_HEX_CHARS}").view(np.uint8).reshape(-1, _HEX_CHARS)
    nibbles = np.where(chars >= ord("a"), chars - (ord("a") - 10), chars - ord("0"))
    return np.ascontiguousarray(nibbles[:, 0::2] << 4 | nibbles[:, 1::2]).view(_KEY).ravel()


def _codes_of(statuses: Any) -> npt.NDArray[np.uint8]:
    """`[N] uint8` of N status names; a name that is not known counts as failed."""
    names = np.asarray(statuses, dtype="U9")
    codes = np.full(len(names), _CODES["failed"], dtype=np.uint8)
    for name, code in _CODES.items():
        codes[names == name] = code
    return codes
