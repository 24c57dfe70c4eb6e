"""What is remembered: one entry, before and after it is stored."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigurationError, InvalidPayload
from holdfast.keys import Id

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
# No database takes these in text: NUL (PostgreSQL), halves of surrogate pairs (both).
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class NewEntry:
    """What an agent wants remembered.

    `kind` is episodic, semantic, procedural or any short name. `content` is what recall searches. `data` is any JSON
    value. `at` is Unix seconds of server time; without it the newest message of the batch gives it. `message` is the id
    of the one message that this says: it is then kept once, also when a failover that forgot the batch hands the
    message out again in another one.
    """

    kind: str
    content: str
    data: Any = None
    at: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is remembered of a user. `batch`, `agent` and `position` say where it came from."""

    user: Id
    kind: str
    content: str
    data: Any
    batch: str
    agent: str
    position: int
    fence: int
    at: float
    id: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How much `forget` removed from the database."""

    entries: int
    checkpoints: int


def check_kind(kind: object) -> str:
    """Raises ConfigurationError unless it is a short lower-case name."""
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ConfigurationError(
            f"pass a kind of 1 to 32 small letters, digits, _ or -, beginning with a letter, not {kind!r:.60}"
        )
    return kind


def check_new(entry: object) -> NewEntry:
    """Raises ConfigurationError unless an agent may hand this in."""
    if not isinstance(entry, NewEntry):
        raise ConfigurationError(f"make the agent answer a sequence of NewEntry, not of {type(entry).__name__}")
    check_kind(entry.kind)
    if not isinstance(entry.content, str):
        raise ConfigurationError(f"pass the content as text, not {type(entry.content).__name__}")
    if entry.at is not None and not (isinstance(entry.at, (int, float)) and math.isfinite(entry.at)):
        raise ConfigurationError("pass `at` as Unix seconds, or leave it out")
    if entry.message is not None and not isinstance(entry.message, str):
        raise ConfigurationError(f"pass `message` as the id of a message, not {type(entry.message).__name__}")
    return entry


def storable(text: str) -> str:
    """The same text, with U+FFFD where a character cannot be stored by every database."""
    return _UNSTORABLE.sub("\ufffd", text)


def to_json(value: Any, *, short: bool = False) -> str:
    """Compact JSON of a JSON value or bytes. Raises InvalidPayload.

    Bytes become {"$bytes": base64}, or are only named with their length if it shall be short.
    """
    try:
        plain = _plain(value, short)
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if _UNSTORABLE.search(text):
            text = json.dumps(plain, allow_nan=False, separators=(",", ":"))  # as escapes, which every database takes
    except RecursionError:
        raise InvalidPayload("nest the data less deeply: it has more levels than can be written") from None
    except (TypeError, ValueError) as error:
        raise InvalidPayload(f"pass a JSON value or bytes: {error}") from None
    return text


def _plain(value: Any, short: bool) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _named(value) if short else {"$bytes": b64encode(value).decode("ascii")}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _plain(item, short) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, short) for item in value]
    return value


def _named(value: bytes | bytearray | memoryview) -> str:
    return f"[{len(bytes(value))} bytes]"


def text_of(data: Any) -> str:
    """What a person would read in a message: itself, its `text` or `content`, or compact JSON. Bytes are only named."""
    if isinstance(data, str):
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return _named(data)
    if isinstance(data, Mapping):
        for name in ("text", "content"):
            if isinstance(data.get(name), str):
                return str(data[name])
    return to_json(data, short=True)
