"""Which records are wanted. One value, told to the database as SQL and to Python as a predicate that agree.

What the user gives never becomes SQL: values are quoted literals, a glob becomes an escaped regular expression.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from framefleet.engine.captioner import CaptionRecord, Status
from framefleet.errors import ConfigError

_MAGIC = re.compile(r"[*?\[]")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Where(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every condition given must hold."""

    clip: str | None = None
    """Glob on the clip's name: `*` (also across `/`), `?`, `[abc]`, `[!abc]`. Upper and lower case differ."""
    model: str | None = None
    prompt: str | None = None
    status: tuple[Status, ...] = ()
    """Any of these; none given: all."""
    created_from: datetime | None = None
    created_before: datetime | None = None
    """Half open, by `created_at`; without a zone, UTC. Records without a time meet neither."""
    overlaps_s: tuple[float, float] | None = None
    """The window shares a moment with [start, end) of the clip."""

    def __post_init__(self) -> None:
        if self.overlaps_s is not None and not self.overlaps_s[0] < self.overlaps_s[1]:
            raise ConfigError("empty stretch of time", given=f"{self.overlaps_s} s", allowed="end after start")

    def sql(self) -> str | None:
        """As a filter for Lance (DataFusion); None: all."""
        terms = [f"{name} = {quoted(value)}" for name, value in self._equal()]
        if self.clip is not None and _MAGIC.search(self.clip):
            terms.append(f"regexp_like(clip, {quoted(f'^(?s:{glob_pattern(self.clip)})$')})")
        if self.status:
            terms.append(f"status IN ({', '.join(map(quoted, self.status))})")
        if self.created_from is not None:
            terms.append(f"created_at >= {_timestamp(self.created_from)}")
        if self.created_before is not None:
            terms.append(f"created_at < {_timestamp(self.created_before)}")
        if self.overlaps_s is not None:
            start_s, end_s = map(float, self.overlaps_s)
            terms.append(f"start_s < {end_s!r} AND (end_s > {start_s!r} OR start_s >= {start_s!r})")
        return " AND ".join(terms) or None

    def __call__(self, record: CaptionRecord) -> bool:
        """Whether the record meets it."""
        return (
            all(getattr(record, name) == value for name, value in self._equal())
            and (self.clip is None or re.fullmatch(f"(?s:{glob_pattern(self.clip)})", record.clip) is not None)
            and (not self.status or record.status in self.status)
            and self._is_in_time(record.created_at)
            and self._overlaps(record)
        )

    def _equal(self) -> list[tuple[str, str]]:
        """The fields that must equal a text. A glob without magic is one: it can use an index."""
        exact_clip = self.clip if self.clip is not None and not _MAGIC.search(self.clip) else None
        pairs = (("clip", exact_clip), ("model", self.model), ("prompt", self.prompt))
        return [(name, _plain(value)) for name, value in pairs if value is not None]

    def _is_in_time(self, created_at: str) -> bool:
        if self.created_from is None and self.created_before is None:
            return True
        if not created_at:
            return False
        time = datetime.fromisoformat(created_at)
        return (self.created_from is None or time >= _utc(self.created_from)) and (
            self.created_before is None or time < _utc(self.created_before)
        )

    def _overlaps(self, record: CaptionRecord) -> bool:
        if self.overlaps_s is None:
            return True
        start_s, end_s = self.overlaps_s
        return record.start_s < end_s and (record.end_s > start_s or record.start_s >= start_s)


def glob_pattern(glob: str) -> str:
    """The glob as a regular expression that Python and Rust read alike."""
    pieces, rest = [], _plain(glob)
    while rest:
        matched = re.match(r"\[(!?)(\]?[^\]]*)\]", rest)
        if rest[0] in "*?":
            pieces.append({"*": ".*", "?": "."}[rest[0]])
            rest = rest[1:]
        elif matched and matched[2]:
            pieces.append(_char_class(matched[2], negated=bool(matched[1])))
            rest = rest[matched.end() :]
        else:
            pieces.append(_escaped(rest[0]))
            rest = rest[1:]
    return "".join(pieces)


def quoted(text: str) -> str:
    """A SQL string literal: in DataFusion's dialect only the quote itself needs care."""
    return "'" + _plain(text).replace("'", "''") + "'"


def _char_class(inner: str, *, negated: bool) -> str:
    """`[a-z_]`; a range that runs backwards holds nothing of its own and is left out."""
    pieces, at = [], 0
    while at < len(inner):
        if at + 2 < len(inner) and inner[at + 1] == "-":
            first, last = inner[at], inner[at + 2]
            pieces += [f"{_escaped(first)}-{_escaped(last)}"] if first <= last else []
            at += 3
        else:
            pieces.append(_escaped(inner[at]))
            at += 1
    if not pieces:
        return "." if negated else r"[^\s\S]"
    return f"[{'^' if negated else ''}{''.join(pieces)}]"


def _escaped(char: str) -> str:
    return f"\\{char}" if char in r"\.+*?()|[]{}^$-&~#" else char


def _plain(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _timestamp(time: datetime) -> str:
    return f"timestamp '{_utc(time).isoformat(timespec='microseconds')}'"
