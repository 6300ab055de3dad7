"""Exact time, byte sizes and half-open spans. Nothing here imports anything of ours but `errors`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from framefleet.errors import ConfigError

NS_PER_S = 1_000_000_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kb": 1000, "kib": KIB,
    "m": MIB, "mb": 1000**2, "mib": MIB,
    "g": GIB, "gb": 1000**3, "gib": GIB,
}  # fmt: skip
_TIME_UNITS_S = {
    "ms": Fraction(1, 1000), "s": Fraction(1), "": Fraction(1), "m": Fraction(60), "min": Fraction(60),
    "h": Fraction(3600),
}  # fmt: skip
_NUMBER = r"(\d+(?:\.\d+)?)"


def ticks_to_ns(ticks: int, time_base: Fraction) -> int:
    """Stream ticks to nanoseconds, rounded half to even (exact rational arithmetic, no float)."""
    return round(ticks * time_base * NS_PER_S)


def s_to_ns(seconds: float) -> int:
    """Seconds to nanoseconds."""
    return round(seconds * NS_PER_S)


def parse_bytes(text: str | int) -> int:
    """`"2GiB"`, `"512M"`, `"1.5 GB"` or a plain number, to bytes. K, M and G alone are binary.

    Raises ConfigError for anything else.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise ConfigError("not a size", given=repr(text), allowed="a number with B, KiB, MiB, GiB, kB, MB or GB")
    return int(float(match[1]) * _BYTE_UNITS[match[2].lower()])


def parse_duration_ns(text: str | float) -> int:
    """`"30s"`, `"1m30s"`, `"500ms"`, `"2h"` or plain seconds, to nanoseconds. Raises ConfigError for anything else."""
    if isinstance(text, int | float):
        return s_to_ns(text)
    compact = text.replace(" ", "").lower()
    parts = re.findall(rf"{_NUMBER}(ms|min|s|m|h|)", compact)
    if not parts or "".join(n + u for n, u in parts) != compact:
        raise ConfigError("not a duration", given=repr(text), allowed="like 30s, 1m30s, 500ms, 2h")
    return int(sum(Fraction(n) * _TIME_UNITS_S[u] for n, u in parts) * NS_PER_S)


def parse_duration_s(text: str | float) -> float:
    """As `parse_duration_ns`, in seconds."""
    return parse_duration_ns(text) / NS_PER_S


def parse_share(text: str | float) -> float:
    """`"5%"` or `0.05` to 0.05. Raises ConfigError for anything else, or what is not above 0 and below 1."""
    match = re.fullmatch(rf"\s*{_NUMBER}\s*(%?)\s*", str(text))
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise ConfigError("not a share", given=repr(text), allowed="above 0 and below 1, like 5% or 0.05")
    return share


def format_bytes(num_bytes: int) -> str:
    """A size for people: `1.5 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open stretch of a clip, `start_ns <= t < end_ns`, on the clip's own presentation clock."""

    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns <= self.start_ns:
            raise ConfigError("empty span", given=f"[{self.start_ns}, {self.end_ns}) ns", allowed="end after start")

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / NS_PER_S

    def __str__(self) -> str:
        return f"{self.start_ns / NS_PER_S:.3f}-{self.end_ns / NS_PER_S:.3f}s"
