"""Who wants to know of a change, and when. No I/O."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.keys import id_bytes
from holdfast.monitor.record import Change, Key, Subscriber

SINKS = ("webhook", "slack", "dingtalk", "apprise", "call")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


# -- what is asked for ------------------------------------------------------------------------------------------------


def check_subscriber(subscriber: Subscriber) -> Subscriber:
    """Raises ConfigurationError that says what to change. Answers the record with lists as tuples."""
    s = subscriber
    if not isinstance(s.name, str):
        raise ConfigurationError(f"pass the name of a subscriber as text, not {type(s.name).__name__}")
    id_bytes(s.name)
    if s.sink not in SINKS:
        raise ConfigurationError(f"pass sink as one of {', '.join(SINKS)}, not {s.sink!r}")
    if not isinstance(s.target, str) or not s.target:
        raise ConfigurationError("pass target as the URL, or the name of a registered function")
    check_seconds("interval", s.interval, 0.0, 30 * 86_400.0)
    check_count("max_changes", s.max_changes, 1, 1000)
    check_count("retries", s.retries, 0, 1000)
    check_seconds("retry_delay", s.retry_delay, 0.0, 86_400.0)
    check_seconds("timeout", s.timeout, 0.01, 600.0)
    _check_times(s)
    for what, names in (("sources", s.sources), ("keys", s.keys), ("fields", s.fields)):
        if isinstance(names, str):  # type: ignore[unreachable]
            raise ConfigurationError(f"pass {what} as a list, not as one text")
    for name in (*s.sources, *s.fields, *s.min_change, *(part for one in s.keys for part in _parts(one))):
        if not isinstance(name, str):
            raise ConfigurationError(f"pass sources, keys and fields as text, not {name!r:.100}")
    keys = tuple(tuple(one) if isinstance(one, (list, tuple)) else one for one in s.keys)
    quiet = None if s.quiet is None else (s.quiet[0], s.quiet[1])
    return replace(s, sources=tuple(s.sources), keys=keys, fields=tuple(s.fields), quiet=quiet)


def _check_times(s: Subscriber) -> None:
    for value, low, high in ((s.backoff, 1.0, 10.0), (s.jitter, 0.0, 1.0)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ConfigurationError("pass backoff between 1 and 10, and jitter between 0 and 1")
    if not isinstance(s.min_change, Mapping):
        raise ConfigurationError('pass min_change as a dict, such as {"price": "5%"}')
    for name, least in s.min_change.items():
        _share(name, least)
    if s.quiet is not None and (
        not isinstance(s.quiet, (list, tuple)) or len(s.quiet) != 2 or s.quiet[0] == s.quiet[1]
    ):
        raise ConfigurationError('pass quiet as two different times, such as ("22:00", "07:00")')
    for text in s.quiet or ():
        _time(text)
    _zone(s.timezone)


def _parts(pattern: Any) -> Iterable[Any]:
    return pattern if isinstance(pattern, (list, tuple)) else (pattern,)


def as_record(subscriber: Subscriber) -> dict[str, Any]:
    """As plain data, which `from_record` turns back."""
    return {item.name: getattr(subscriber, item.name) for item in dataclass_fields(Subscriber)}


def from_record(record: Mapping[str, Any]) -> Subscriber:
    """What a newer version knows beside this is left out."""
    known = {item.name for item in dataclass_fields(Subscriber)}
    return check_subscriber(Subscriber(**{name: value for name, value in record.items() if name in known}))


def _share(name: str, least: float | str) -> tuple[float, bool]:
    if isinstance(least, str) and (found := _SHARE.fullmatch(least.strip())):
        return float(found[1]) / 100, True
    if isinstance(least, bool) or not isinstance(least, (int, float)) or not math.isfinite(least) or least < 0:
        raise ConfigurationError(f'pass the least change of {name!r} as a number or a share like "5%", not {least!r}')
    return float(least), False


def _time(text: Any) -> time:
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigurationError(f'pass times as "HH:MM", not {text!r}')
    return time(int(found[1]), int(found[2]))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise ConfigurationError(f'pass timezone as a name such as "Europe/Berlin", not {name!r}') from None


# -- who --------------------------------------------------------------------------------------------------------------


def wants(subscriber: Subscriber, change: Change, fields: frozenset[str] | None = None) -> bool:
    """Does every filter agree? `fields`: those of the change, where they are known."""
    s = subscriber
    if not s.enabled or (change.kind == "first" and not s.first):
        return False
    if s.sources and change.source not in s.sources:
        return False
    if s.keys and not any(_fits(pattern, change.key) for pattern in s.keys):
        return False
    if change.before is None:  # not known before, or settled: nothing to compare with
        return True
    if s.fields and not (frozenset(change.fields) if fields is None else fields).intersection(s.fields):
        return False
    return not s.min_change or any(_moved(name, least, change) for name, least in s.min_change.items())


def _fits(pattern: str | tuple[str, ...], key: Key) -> bool:
    patterns = pattern if isinstance(pattern, tuple) else (pattern,)
    parts = key if isinstance(key, tuple) else (key,)
    return len(patterns) == len(parts) and all(
        fnmatchcase(str(part), one) for part, one in zip(parts, patterns, strict=True)
    )


def _moved(name: str, least: float | str, change: Change) -> bool:
    before, after = _number(change.before, name), _number(change.after, name)
    if before is None or after is None:
        return before is not after
    amount, share = _share(name, least)
    try:
        return before != after and abs(after - before) >= (amount * abs(before) if share else amount)
    except OverflowError:  # too large for what a float holds: then it is no small change
        return before != after


def _number(state: Any, name: str) -> float | None:
    value = state.get(name) if isinstance(state, dict) else None
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value


# -- when -------------------------------------------------------------------------------------------------------------


def quiet_for(subscriber: Subscriber, at: float) -> float:
    """Seconds until the subscriber may be told, at this time of the server."""
    if subscriber.quiet is None:
        return 0.0
    zone = _zone(subscriber.timezone)
    begin, end = (_time(text) for text in subscriber.quiet)
    now = datetime.fromtimestamp(at, UTC).astimezone(zone)
    clock = now.time().replace(tzinfo=None)
    inside = begin <= clock < end if begin < end else clock >= begin or clock < end
    if not inside:
        return 0.0
    day = now.date() if clock < end else now.date() + timedelta(days=1)
    # By the wall: the night may be an hour longer or shorter.
    return max(0.0, datetime.combine(day, end, zone).timestamp() - at)


def retry_in(subscriber: Subscriber, failures: int, asked: float | None) -> float:
    """Seconds until the next try, after so many failures; at least what the receiver asked for, up to an hour."""
    wait = min(subscriber.retry_delay * subscriber.backoff ** min(100, max(0, failures - 1)), 86_400.0)
    wait *= 1 + subscriber.jitter * (random.random() * 2 - 1)  # noqa: S311
    return max(wait, min(asked or 0.0, 3600.0))
