"""What differs between two states, and where. No I/O.

diff({"price": 1, "tags": ["a"]}, {"price": 2, "tags": ["a", "b"]})
    price: 1 -> 2
    tags[1]: "b" added
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine.limits import check_count
from holdfast.errors import ConfigurationError

Path = tuple[str | int, ...]

MAX_DEPTH = 200
"""As deep as data may be nested at all."""
_LONGEST_SHOWN = 80
_PLAIN = re.compile(r"[^\W\d][\w-]*")
_POSITION = re.compile(r"[0-9]{1,9}")
_STEP = re.compile(r"""\[(-?\d+)\]|\[("(?:[^"\\]|\\.)*")\]|(?:^|\.)([^.\[\]]+)""")


class Missing(enum.Enum):
    """The one value of this type stands where there is none: `MISSING`."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing.MISSING


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two states differ. `before` is MISSING where it was added, `after` where it was removed."""

    path: Path
    before: Any
    after: Any

    @property
    def where(self) -> str:
        """The path as text, such as `a.b[0]`; "" for the whole."""
        return path_text(self.path)

    def __str__(self) -> str:
        where = self.where or "(the whole)"
        if self.before is MISSING:
            return f"{where}: {_shown(self.after)} added"
        if self.after is MISSING:
            return f"{where}: {_shown(self.before)} removed"
        return f"{where}: {_shown(self.before)} -> {_shown(self.after)}"


def diff(before: Any, after: Any, *, depth: int = MAX_DEPTH) -> tuple[Difference, ...]:
    """The places where two states differ: dicts are compared by key, lists by position, numbers by value.

    1 and 1.0 are the same, 1 and True are not. Below `depth` levels two values are compared as wholes. The order is
    that of `before`; what was added comes last."""
    return tuple(_differences((), before, after, check_count("depth", depth, 0, MAX_DEPTH)))


def _differences(path: Path, before: Any, after: Any, depth: int) -> Iterator[Difference]:
    if depth and isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            yield from _inside(path, key, before.get(key, MISSING), after.get(key, MISSING), depth)
    elif depth and isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        for at in range(max(len(before), len(after))):
            one, other = (side[at] if at < len(side) else MISSING for side in (before, after))
            yield from _inside(path, at, one, other, depth)
    elif not _same(before, after):
        yield Difference(path, before, after)


def _inside(path: Path, step: str | int, before: Any, after: Any, depth: int) -> Iterator[Difference]:
    return _differences((*path, step), before, after, depth - 1)


def _same(before: Any, after: Any) -> bool:
    """Without recursion: what is too deep to be walked through may be deeper still."""
    pairs = [(before, after)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pairs += ((item, other[key]) for key, item in one.items())
        elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif isinstance(one, bool) is not isinstance(other, bool) or one != other:
            return False
    return True


# -- paths ------------------------------------------------------------------------------------------------------------


def path_text(path: Sequence[str | int]) -> str:
    """A path as text: `a.b[0]`. A name that has other signs in it is quoted: `a["b.c"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return text


def path_of(text: str) -> Path:
    """The inverse of `path_text`. A name after a dot need not be quoted unless it has a dot or a bracket in it."""
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ConfigurationError(f"write the path like a.b[0], not {text!r:.80}")
        number, quoted, name = found.groups()
        steps.append(name if name is not None else int(number) if number is not None else json.loads(quoted))
        at = found.end()
    return tuple(steps)


def value_at(state: Any, path: Sequence[str | int]) -> Any:
    """What is there; MISSING if nothing is. Digits after a dot are a position, where there is a list."""
    for step in path:
        if isinstance(state, dict):
            state = state.get(step, MISSING)
        elif isinstance(state, (list, tuple)) and (isinstance(step, int) or _POSITION.fullmatch(step)):
            at = int(step)
            state = state[at] if -len(state) <= at < len(state) else MISSING
        else:
            return MISSING
    return state


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=_named)
    except (TypeError, ValueError, RecursionError):  # keys that JSON has not, or too many levels
        text = f"({type(value).__name__})"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _named(value: Any) -> str:
    return f"[{len(value)} bytes]" if isinstance(value, (bytes, bytearray)) else f"[{type(value).__name__}]"
