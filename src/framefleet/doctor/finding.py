"""Finding: one fact about the machine, how bad it is, and what to do about it."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "info", "warning", "error"]
"""ok: as it should be; info: not there, and not needed by everybody; warning: works, but worse; error: cannot work."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, what was found, and the remedy where one is needed."""

    area: str
    name: str
    level: Level
    found: str
    remedy: str = ""
