"""Text as search terms, the same for every database.

Databases cut text into words in ways of their own, and leave Chinese, Japanese or Thai, which have no spaces, in one
piece. So text is cut here, when it is written and when it is looked for:

    "Green tea, 東京都"  ->  green  tea  東京 京都 都

A script without spaces becomes pairs of neighbours, and its last character alone. A query of two or more characters is
then a phrase of such pairs; a query of one character is the beginning of a pair.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

MOST_QUERY_TERMS = 64
_LONGEST_QUERY = 10_000  # characters
_LONGEST_WORD = 100
_MOST_INDEXED = 256 * 1024  # characters read, bytes kept; PostgreSQL refuses an index entry above a megabyte

_SEPARATOR, _WORD, _UNSPACED = range(3)
_UNSPACED_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),
    (0x3021, 0x303C),
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x3130, 0x318F),  # Hangul
    (0x31A0, 0x4DBF),
    (0x4E00, 0x9FFF),  # Han
    (0xA960, 0xA97F),
    (0xAC00, 0xD7FF),  # Hangul
    (0xF900, 0xFAFF),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),  # Han, rarer
)


@dataclass(frozen=True, slots=True)
class Term:
    """Words that must follow each other; `prefix`: the one word only begins so."""

    words: tuple[str, ...]
    prefix: bool = False


def indexed(text: str) -> list[str]:
    """The words by which a text is found, in order. Of a very long text those of its beginning."""
    words: list[str] = []
    size = 0
    for run, unspaced in _runs(text[:_MOST_INDEXED]):
        for word in [*_pairs(run), run[-1]] if unspaced else [run]:
            size += len(word.encode("utf-8")) + 1
            if size > _MOST_INDEXED:
                return words
            words.append(word)
    return words


def query_terms(query: str) -> list[Term]:
    """What a query asks for. Nothing in it is an operator."""
    terms: dict[Term, None] = {}
    for run, unspaced in _runs(query[:_LONGEST_QUERY]):
        if not unspaced:
            terms[Term((run,))] = None
        elif len(run) == 1:
            terms[Term((run,), prefix=True)] = None
        else:
            terms[Term(tuple(_pairs(run[:_LONGEST_WORD])))] = None
        if len(terms) >= MOST_QUERY_TERMS:
            break
    return list(terms)


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def _runs(text: str) -> Iterator[tuple[str, bool]]:
    """Words, and runs of scripts without spaces."""
    for kind, characters in groupby(_folded(text), _kind):
        run = "".join(characters)
        if kind == _UNSPACED:
            yield run, True
        elif kind == _WORD:
            yield run[:_LONGEST_WORD], False


def _folded(text: str) -> str:
    """One spelling: case, width and accents do not matter. Japanese voice marks do, and stay."""
    apart = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFKC", "".join(c for c in apart if not "\u0300" <= c <= "\u036f"))


def _kind(character: str) -> int:
    if unicodedata.category(character)[0] not in "LNM":
        return _SEPARATOR
    code = ord(character)
    if code >= _UNSPACED_RANGES[0][0] and any(low <= code <= high for low, high in _UNSPACED_RANGES):
        return _UNSPACED
    return _WORD
