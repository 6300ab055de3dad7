"""Every setting that was ever put into effect, whole, so that going back restores it: one JSON file each.

`revisions/7.json` is a Revision. A file is written when its roll begins and again when it has ended; one that still
says `applying` after a crash was never in effect.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from framefleet.errors import ConfigError, ReplicaError
from framefleet.serve.fleet_settings import FleetSettings

Outcome = Literal["applying", "applied", "rolled_back"]


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One."""

    number: int
    at: str
    """UTC, ISO 8601."""
    digest: str
    """Of the settings: equal settings, equal digest."""
    settings: FleetSettings
    origin: str
    """What brought it: a file's name, `serve`, `rollback to 3`, `tune` ..."""
    outcome: Outcome = "applying"
    reasons: tuple[str, ...] = ()
    """Why it was rolled back."""
    canary: dict[str, Any] = {}
    """What was measured of the first replica."""
    is_confirmed: bool = False
    """Somebody said that it is to stay (`keep`)."""


class Revisions:
    """Those of one folder. One process writes; any may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> list[Revision]:
        """Oldest first. A file that is no revision (torn by a crash of the machine) is passed over."""
        found = []
        for path in self._folder.glob("*.json"):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Revision))
            except (msgspec.DecodeError, OSError):
                continue
        return sorted(found, key=lambda revision: revision.number)

    def current(self) -> Revision | None:
        """The last that was put into effect."""
        return next((one for one in reversed(self.all()) if one.outcome == "applied"), None)

    def numbered(self, number: int) -> Revision:
        """Raises ReplicaError when there is none."""
        known = self.all()
        for revision in known:
            if revision.number == number:
                return revision
        raise ReplicaError("no such revision", given=str(number), allowed=", ".join(str(one.number) for one in known))

    def before_current(self) -> Revision:
        """The one in effect before the current one, with other settings. Raises ReplicaError when there is none."""
        applied = [one for one in self.all() if one.outcome == "applied"]
        others = [one for one in applied[:-1] if one.digest != applied[-1].digest]
        if not others:
            raise ReplicaError("there is no earlier revision to go back to")
        return others[-1]

    def begin(self, settings: FleetSettings, origin: str) -> Revision:
        """A new one, being applied."""
        numbers = [int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdecimal()]
        at = datetime.now(UTC).isoformat(timespec="seconds")
        revision = Revision(
            number=max(numbers, default=0) + 1, at=at, digest=digest_of(settings), settings=settings, origin=origin
        )
        return self.write(revision)

    def write(self, revision: Revision) -> Revision:
        """Keep it as it now stands: all of it or nothing, also across a crash."""
        path = self._folder / f"{revision.number}.json"
        half = path.with_suffix(".half")
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(revision)))
            stream.flush()
            os.fsync(stream.fileno())
        half.replace(path)
        return revision


def digest_of(settings: FleetSettings) -> str:
    """16 hex digits. Pure."""
    return hashlib.blake2b(msgspec.json.encode(settings, order="sorted"), digest_size=8).hexdigest()


def settings_of(tree: dict[str, Any]) -> FleetSettings:
    """Whole settings as `msgspec.to_builtins` wrote them. Raises ConfigError."""
    try:
        return msgspec.convert(tree, FleetSettings)
    except msgspec.ValidationError as error:
        raise ConfigError("not the settings of a fleet", given=str(error)) from error


def changes_between(old: FleetSettings, new: FleetSettings) -> dict[str, tuple[Any, Any]]:
    """Dotted setting -> (old, new), of those that differ. Pure."""
    before, after = _flat(msgspec.to_builtins(old)), _flat(msgspec.to_builtins(new))
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    parts = ("vllm", "embedded", "canary")
    top = {name: value for name, value in tree.items() if name not in parts}
    return top | {f"{part}.{name}": value for part in parts for name, value in tree[part].items()}
