"""Who may ask: API keys, of which a file of settings holds only SHA-256 sums.

[keys.labelling-team]
sha256 = "9f86d0..."          # printf %s "$KEY" | sha256sum
max_concurrent = 64           # 0: no limit
priority = "batch"            # the highest it may ask for: live or batch
is_admin = false              # may drain replicas
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from framefleet.config import read_file
from framefleet.errors import ConfigError, EngineBusy


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    name: str = ""
    max_concurrent: Annotated[int, Meta(ge=0)] = 0
    priority: Literal["live", "batch"] = "live"
    is_admin: bool = False


class _KeysFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, ApiKey]


ANYBODY = ApiKey(sha256="0" * 64, name="")
"""Whoever asks where no keys are set. No key has this sum."""


class ApiKeys:
    """Known keys, and how many requests each has."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys = tuple(keys)
        self._num_running: Counter[str] = Counter()

    @property
    def are_required(self) -> bool:
        """False: anybody may ask."""
        return bool(self._keys)

    def who(self, authorization: str) -> ApiKey | None:
        """The key in an Authorization header; None where keys are required and it holds none of them.

        Every known key is compared, in constant time, so that the time taken tells nothing.
        """
        if not self._keys:
            return ANYBODY
        scheme, _, given = authorization.partition(" ")
        digest = hashlib.sha256(given.strip().encode()).hexdigest()
        matches = [key for key in self._keys if hmac.compare_digest(key.sha256, digest)]
        return matches[0] if matches and scheme.lower() == "bearer" else None

    @contextmanager
    def running(self, key: ApiKey) -> Iterator[None]:
        """A request of the key runs. Raises EngineBusy above its limit."""
        if key.max_concurrent and self._num_running[key.name] >= key.max_concurrent:
            raise EngineBusy(
                "this API key has too many requests at a time",
                given=f"{key.name!r} has {self._num_running[key.name]}",
                allowed=f"{key.max_concurrent}",
                remedy="waiting for answers before asking more",
            )
        self._num_running[key.name] += 1
        try:
            yield
        finally:
            self._num_running[key.name] -= 1


def read_keys(path: str | os.PathLike[str]) -> ApiKeys:
    """The keys in a TOML file as above. Raises ConfigError."""
    try:
        content = msgspec.convert(read_file(path), _KeysFile)
    except msgspec.ValidationError as error:
        raise ConfigError("not a file of API keys", given=f"{str(path)!r}: {error}") from error
    return ApiKeys(msgspec.structs.replace(key, name=name) for name, key in content.keys.items())
