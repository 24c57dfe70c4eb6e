"""Rows of the monitor's tables: what each record is as columns, and back, one-to-one."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields
from typing import Any

import msgspec

from holdfast.errors import ConfigurationError, InvalidPayload, NewerPayload, UnreadablePayload
from holdfast.keys import decode, encode
from holdfast.memory.batch import name_column, user_column
from holdfast.memory.entry import storable, to_json
from holdfast.monitor.record import Change, Key, Push, Snapshot, Subscriber

_LONGEST_IN_PLACE = 120  # characters of a key; with the longest names it must fit into one row of an index
_ALWAYS_WRITTEN = ("sink", "target")
_FIELDS = tuple(field.name for field in fields(Subscriber) if field.name != "name")  # which is a column


def monitor_column(name: str) -> str:
    return name_column(name, "name of the monitor")


def finite(what: str, value: Any) -> float:
    """Raises ConfigurationError unless it is a number that every database keeps as it is."""
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ConfigurationError(f"pass {what} as a number of seconds, not as {value!r:.60}")


# -- keys and places --------------------------------------------------------------------------------------------------


def key_text(key: Key) -> str:
    """A key as JSON, one-to-one: 1, "1", (1,) and ("1",) are four, and every text has an encoding of its own."""
    parts = key if isinstance(key, (tuple, list)) else (key,)
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (str, int)):
            raise ConfigurationError(f"pass a key of text and whole numbers, not of {type(part).__name__}")
    # JSON alone would not do: it writes halves of a surrogate pair like the character that they would be together.
    made = [encode(part.encode("utf-8", "surrogatepass")) if isinstance(part, str) else int(part) for part in parts]
    try:
        return json.dumps(made if isinstance(key, (tuple, list)) else made[0], separators=(",", ":"))
    except ValueError:
        raise ConfigurationError("pass a key of shorter numbers: one has thousands of digits") from None


def key_of(monitor: str, text: str) -> Key:
    """The inverse."""
    try:
        found = json.loads(text)
        parts = [str(decode(part)) if isinstance(part, str) else int(part) for part in _listed(found)]
    except (ValueError, TypeError):
        raise UnreadablePayload(
            f"inspect what wrote the history of monitor {monitor!r}: its key {text!r:.80} cannot be read"
        ) from None
    return tuple(parts) if isinstance(found, list) else parts[0]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def place_of(source: str, key_text: str) -> str:
    """Source and key as one text, short enough for an index. Neither of them has a blank in it."""
    if len(key_text) > _LONGEST_IN_PLACE:
        # Longer than any that is written out, so it is like none of them.
        key_text = f"{key_text[:_LONGEST_IN_PLACE]}~{hashlib.sha256(key_text.encode('ascii')).hexdigest()}"
    return f"{user_column(source)} {key_text}"


def places_of(source: str) -> tuple[str, str]:
    """All places of a source lie between: nothing is before the blank that ends its name, and `!` is the next one."""
    column = user_column(source)
    return f"{column} ", f"{column}!"


# -- rows -------------------------------------------------------------------------------------------------------------


def snapshot_row(monitor: str, change: Change) -> dict[str, Any]:
    text = key_text(change.key)
    return {
        "monitor": monitor, "id": name_column(change.id, "id of the change"), "place": place_of(change.source, text),
        "source": user_column(change.source), "key_text": text, "kind": storable(change.kind),
        "state": to_json(change.after), "observed_at": finite("observed_at", change.observed_at),
        "at": finite("at", change.at),
    }  # fmt: skip


def snapshot_of(monitor: str, row: Any) -> Snapshot:
    change = str(decode(row.id))
    try:
        state = json.loads(row.state)
    except (ValueError, RecursionError) as error:
        raise UnreadablePayload(
            f"inspect what wrote snapshot {change!r} of monitor {monitor!r}: its state cannot be read ({error})"
        ) from None
    return Snapshot(
        id=change, source=str(decode(row.source)), key=key_of(monitor, row.key_text), kind=row.kind, state=state,
        observed_at=row.observed_at,
    )  # fmt: skip


def push_row(push: Push) -> dict[str, Any]:
    return {
        "monitor": monitor_column(push.monitor), "subscriber": user_column(push.subscriber),
        "delivery": user_column(push.delivery), "attempt": push.attempt, "changes": push.changes,
        "outcome": storable(push.outcome), "detail": storable(push.detail), "latency": finite("latency", push.latency),
        "at": finite("at", push.at),
    }  # fmt: skip


def push_of(monitor: str, row: Any) -> Push:
    return Push(
        monitor=monitor, subscriber=str(decode(row.subscriber)), delivery=str(decode(row.delivery)),
        attempt=row.attempt, changes=row.changes, outcome=row.outcome, detail=row.detail, latency=row.latency,
        at=row.at,
    )  # fmt: skip


# -- subscribers as text ----------------------------------------------------------------------------------------------


def record_of(subscriber: Subscriber) -> str:
    """All but the name and what has its default, as JSON that is known to come back as it was."""
    usual = Subscriber(subscriber.name, subscriber.sink, subscriber.target)
    text = to_json(
        {
            name: getattr(subscriber, name)
            for name in _FIELDS
            if name in _ALWAYS_WRITTEN or getattr(subscriber, name) != getattr(usual, name)
        }
    )
    try:
        back = _converted(subscriber.name, json.loads(text))
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidPayload(f"pass the fields of a subscriber as they are declared: {error}") from None
    for name in _FIELDS:
        if not _alike(getattr(subscriber, name), getattr(back, name)):
            raise InvalidPayload(f"pass {name} of a subscriber as it is declared: it would come back as something else")
    return text


def subscriber_of(monitor: str, name: str, text: str) -> Subscriber:
    try:
        found = json.loads(text)
        unknown = sorted(found.keys() - set(_FIELDS))
        if not unknown:
            return _converted(name, found)
    except (msgspec.DecodeError, ValueError, AttributeError, RecursionError) as error:  # none of them shows a value
        raise UnreadablePayload(
            f"inspect what wrote subscriber {name!r} of monitor {monitor!r}: it cannot be read ({error})"
        ) from None
    raise NewerPayload(
        f"run a newer version here: subscriber {name!r} of monitor {monitor!r} has {', '.join(unknown)!r:.200}"
    )


def _converted(name: str, found: dict[str, Any]) -> Subscriber:
    return msgspec.convert({**found, "name": name}, Subscriber)


def _alike(value: Any, back: Any) -> bool:
    """Equal, where a list counts as the tuple it comes back as."""
    if isinstance(value, (list, tuple)) and isinstance(back, tuple):
        return len(value) == len(back) and all(map(_alike, value, back))
    return bool(value == back)
