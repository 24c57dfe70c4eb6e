"""What is remembered: entries on their way in, entries that were read, and what a save answers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.engine import payload
from holdfast.errors import ConfigurationError, NewerPayload, UnreadablePayload

FORMAT = 1
HEAD = 23
MAX_LINKS = 255
MAX_TOKENS = 2**32 - 1
CountTokens = Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry that is not saved yet.

    `content` is any JSON value, or bytes. `tool_calls` are the calls that it makes: ids, or mappings with an `id` (or
    `call_id`) as the providers' APIs have them. `tool_call_id` is the call that it answers. `extra` is kept with it.
    """

    content: Any
    role: str = "user"
    tool_calls: Sequence[str | Mapping[str, Any]] = ()
    tool_call_id: str | None = None
    extra: Mapping[str, Any] | None = None

    def message(self) -> dict[str, Any]:
        """As a chat message: role, content, tool calls, extra."""
        return _message(self)


@dataclass(frozen=True, slots=True)
class Entry:
    """One remembered entry."""

    id: str
    role: str
    content: Any
    at: float
    """Server time of the save, in seconds since 1970. Never earlier than that of the entry before."""
    tokens: int
    tool_calls: tuple[Any, ...]
    tool_call_id: str | None
    extra: dict[str, Any]

    def message(self) -> dict[str, Any]:
        """As a chat message: role, content, tool calls, extra."""
        return _message(self)


def _message(entry: Draft | Entry) -> dict[str, Any]:
    found: dict[str, Any] = {"role": entry.role, "content": entry.content}
    if entry.tool_calls:
        found["tool_calls"] = list(entry.tool_calls)
    if entry.tool_call_id is not None:
        found["tool_call_id"] = entry.tool_call_id
    return {**found, **(entry.extra or {})}


class Context(tuple[Entry, ...]):
    """Entries, oldest first. `unreadable` and `newer` say how many were left out: damaged, or of a newer version."""

    unreadable: int
    newer: int

    @classmethod
    def of(cls, entries: Iterable[Entry], unreadable: int = 0, newer: int = 0) -> Context:
        """Entries, and how many of them could not be read."""
        made = cls(entries)
        made.unreadable, made.newer = unreadable, newer
        return made

    @property
    def tokens(self) -> int:
        """Sum of the entries' tokens."""
        return sum(entry.tokens for entry in self)

    def messages(self) -> list[dict[str, Any]]:
        """As chat messages."""
        return [entry.message() for entry in self]


class Trimmed(NamedTuple):
    """How many entries a save removed, by reason."""

    entries: int = 0
    """There were more than `max_entries`."""
    bytes: int = 0
    """They were larger than `max_bytes` together."""
    tokens: int = 0
    """They had more than `max_tokens` together."""
    orphans: int = 0
    """Tool results whose call is not in the session; they were not stored."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


NOTHING_TRIMMED = Trimmed()


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a save."""

    id: str | None
    """Of the entry, the last one of several. None: it is not in the session, and `trimmed` says why."""
    count: int
    """Entries in the session now."""
    trimmed: Trimmed = NOTHING_TRIMMED
    ids: tuple[str | None, ...] = ()
    """Of all entries of a `save_many`."""
    over_budget: bool = False
    """The newest entry, with the tool calls that it belongs to, has more tokens than `max_tokens` by itself."""


# -- on the wire ----------------------------------------------------------------------------------------------------


def digest(call_id: str) -> bytes:
    """Four bytes that stand for a call id where scripts compare them."""
    return zlib.crc32(call_id.encode("utf-8", "surrogatepass")).to_bytes(4, "big")


def _call_id(call: object) -> str:
    found = (call.get("id") or call.get("call_id")) if isinstance(call, Mapping) else call
    if not isinstance(found, str) or not found:
        raise ConfigurationError(f"pass tool_calls as ids or as mappings with an id, not {type(call).__name__}")
    return found


def encode(draft: Draft, limit: int, count_tokens: CountTokens | None) -> bytes:
    """All that follows the time: tokens, links, payload. Raises InvalidPayload or TooLarge; sends nothing."""
    if not isinstance(draft.role, str):
        raise ConfigurationError(f"pass role as text, not {type(draft.role).__name__}")
    if isinstance(draft.tool_calls, (str, bytes, Mapping)):
        raise ConfigurationError("pass tool_calls as a list, not as one call")
    calls = [digest(_call_id(call)) for call in draft.tool_calls]
    results = [] if draft.tool_call_id is None else [digest(_call_id(draft.tool_call_id))]
    if len(calls) > MAX_LINKS:
        raise ConfigurationError(f"pass at most {MAX_LINKS} tool_calls in one entry, not {len(calls)}")
    data: dict[str, Any] = {"r": draft.role, "c": draft.content}
    if calls:
        data["t"] = list(draft.tool_calls)
    if results:
        data["i"] = draft.tool_call_id
    if draft.extra:
        data["x"] = dict(draft.extra)
    body = payload.encode(data, limit - HEAD - 4 * (len(calls) + len(results)))
    tokens = (len(body) + 3) // 4 if count_tokens is None else _checked(count_tokens(draft.message()))
    return struct.pack(">IBB", tokens, len(calls), len(results)) + b"".join(calls) + b"".join(results) + body


def _checked(tokens: object) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= MAX_TOKENS:
        raise ConfigurationError(f"make count_tokens answer a whole number from 0 to {MAX_TOKENS}, not {tokens!r}")
    return tokens


class Raw(NamedTuple):
    """An entry whose payload has not been looked at."""

    id: str
    at: float
    tokens: int
    calls: tuple[bytes, ...]
    results: tuple[bytes, ...]
    body: bytes


def open_raw(data: bytes) -> Raw:
    """Raises NewerPayload or UnreadablePayload."""
    if data[:1] != b"\x01":
        if data[:1] > b"\x01":
            raise NewerPayload(f"run a newer version here: this entry was written in format {data[0]}")
        raise UnreadablePayload("inspect what wrote this: it is no entry of a session")
    if len(data) < HEAD:
        raise UnreadablePayload("inspect what wrote this: the entry is cut off")
    tokens, made, given = struct.unpack_from(">IBB", data, 17)
    start = HEAD + 4 * (made + given)
    if len(data) <= start:
        raise UnreadablePayload("inspect what wrote this: the entry is cut off")
    marks = [data[at : at + 4] for at in range(HEAD, start, 4)]
    at = int.from_bytes(data[11:17], "big") / 1000
    return Raw(data[1:11].hex(), at, tokens, tuple(marks[:made]), tuple(marks[made:]), data[start:])


def decode(raw: Raw) -> Entry:
    """Raises NewerPayload or UnreadablePayload."""
    data = payload.decode(raw.body)
    try:
        calls, extra = data.get("t", ()), data.get("x", {})
        return Entry(raw.id, str(data["r"]), data["c"], raw.at, raw.tokens, tuple(calls), data.get("i"), dict(extra))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnreadablePayload("inspect what wrote this: the data is no entry of a session") from None


def read(items: Sequence[bytes]) -> Context:
    """Entries in order, without what cannot be read and without results whose call is not among those before them.

    A call that cannot be read takes its results along: a provider refuses a result without its call."""
    entries: list[Entry] = []
    made: set[bytes] = set()
    unreadable = newer = 0
    for item in items:
        try:
            raw = open_raw(item)
            answers = made.issuperset(raw.results)
            made.difference_update(raw.calls)  # an id that is used again belongs to the nearest call before
            if answers:
                entries.append(decode(raw))
                made.update(raw.calls)
        except NewerPayload:
            newer += 1
        except UnreadablePayload:
            unreadable += 1
    return Context.of(entries, unreadable, newer)
