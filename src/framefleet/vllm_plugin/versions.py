"""What differs between versions of vLLM, in one table. No vLLM here."""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class VllmFacts:
    """What holds from one version of vLLM on."""

    since: Version
    counts_hw_decoders: bool
    """Its reservation grows with `hw_decoders`; before, one decoder is counted."""
    counts_max_size: bool
    """Its reservation grows with `max_width` and `max_height`."""


TABLE = (
    VllmFacts((0, 25, 1), counts_hw_decoders=False, counts_max_size=False),
    VllmFacts((0, 27, 1), counts_hw_decoders=True, counts_max_size=False),
    VllmFacts((0, 33, 0), counts_hw_decoders=True, counts_max_size=True),
)
NEWEST_KNOWN = (0, 33)


def parse_version(text: str) -> Version:
    """`"0.32.0+cpu"` to (0, 32, 0). A version that does not begin with two numbers is one of a working copy: (0, 0, 0).

    Pure.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def facts_of(version: Version) -> VllmFacts | None:
    """The last row that holds for `version`; None for one before the table. Pure."""
    rows = [row for row in TABLE if row.since <= version]
    return rows[-1] if rows else None
