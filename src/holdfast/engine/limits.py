"""Checks of numbers that callers pass: nonsense is refused before anything is sent, with the range that works."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import ConfigurationError
from holdfast.settings import MAX_SECONDS


def check_seconds(what: str, value: float, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigurationError(f"pass {what} as seconds between {low:g} and {high:g}, not {value!r}")
    return float(value)


def check_count(what: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(f"pass {what} as a whole number between {low} and {high}, not {value!r}")
    return value


def check_wait(wait: float | None) -> float | None:
    """None: no limit. 0: do not wait."""
    return None if wait is None else check_seconds("wait", wait, 0.0, MAX_SECONDS)


def check_names(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """Several names; one text would be taken for its letters."""
    if isinstance(names, (str, bytes)):
        raise ConfigurationError(f"pass {what} as a list of names, not as one text")
    found = tuple(names)
    if not all(isinstance(name, str) for name in found):
        raise ConfigurationError(f"pass {what} as a list of names, not {found!r:.100}")
    return found


TOKEN_MAX = 100


def check_token(token: str) -> str:
    """A token from outside."""
    if not isinstance(token, str) or not 1 <= len(token) <= TOKEN_MAX or not token.isascii():
        raise ConfigurationError("pass the token as it was answered")
    return token
