"""What the user typed, as words and phrases; and two rankings made one. Pure.

The text is never a program: there are no operators but the double quote, and no character has a meaning to Lance.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from framefleet.errors import ConfigError

MAX_QUERY_CHARS = 4_096
RRF_K = 60
"""Of Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet" (SIGIR 2009)."""

_PHRASE = re.compile('["\u201c\u201d\u201e]([^"\u201c\u201d\u201e]*)["\u201c\u201d]')
_UNSEARCHABLE = re.compile("[\ud800-\udfff\0]")

Id = TypeVar("Id", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Query:
    """`words` in any order and number, each `phrases` entry as it stands; `text` is all of it in its order, without the
    quotes, for a model that reads sentences."""

    words: str
    phrases: tuple[str, ...]
    text: str

    @property
    def is_empty(self) -> bool:
        """Nothing to look for: no letter, digit or other sign of a script."""
        return not has_words(self.words) and not self.phrases


def parse_query(text: str) -> Query:
    """`red "traffic light"` -> words `red`, phrase `traffic light`. A quote without its fellow is no quote.

    Raises ConfigError for a text longer than MAX_QUERY_CHARS.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise ConfigError("the query is too long", given=f"{len(text)} characters", allowed=f"{MAX_QUERY_CHARS}")
    text = _UNSEARCHABLE.sub(" ", text)
    phrases = tuple(" ".join(found.split()) for found in _PHRASE.findall(text))
    words, plain = _PHRASE.sub(" ", text), _PHRASE.sub(r" \1 ", text)
    return Query(
        words=" ".join(words.split()),
        phrases=tuple(phrase for phrase in phrases if has_words(phrase)),
        text=" ".join(plain.split()),
    )


def has_words(text: str) -> bool:
    """Whether there is a letter or digit of any script in it."""
    return any(char.isalnum() for char in text)


def fuse(rankings: Iterable[Sequence[Id]], *, k: int = RRF_K) -> list[tuple[Id, float]]:
    """Reciprocal rank fusion: an item scores the sum of 1 / (k + rank) over the rankings that have it (rank from 1).

    Best first; of equals the one that was met first. An item counts once a ranking, at its best place.
    """
    scores: dict[Id, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(dict.fromkeys(ranking), start=1):
            scores[item] = scores.get(item, 0.0) + 1.0 / (k + rank)
    return sorted(scores.items(), key=lambda scored: -scored[1])
