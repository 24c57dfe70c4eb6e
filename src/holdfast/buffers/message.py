"""What goes into a buffer and comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.engine.payload import decode, trace_of
from holdfast.errors import NewerPayload, UnreadablePayload

HEAD = 17
"""Id (10 bytes), server time in ms (6), kind (1), payload."""
PAIR_HEAD = 19
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Appended(NamedTuple):
    """What became of an append."""

    id: str
    """Of the message; of the last one after `extend`."""
    length: int
    """Messages that wait now, not counting a batch in flight."""
    dropped: Mapping[str, int]
    """How many messages were removed to make room, by reason: `age`, `capacity`, `bytes`."""
    ids: tuple[str, ...]
    """Of all messages of an `extend`."""
    replayed: bool = False
    """True if the first reply was lost and it had been stored: then `dropped` is not known, only counted."""


class Message(NamedTuple):
    """One message of a user."""

    id: str
    data: Any
    at: float
    """When it was appended: the server's time, in seconds since 1970."""
    attachments: Mapping[str, Any] = NOTHING
    """Those that were resolved in time, by name. One that failed, or came too late, is not here."""
    trace: str | None = None
    """The W3C traceparent of the span in which it was appended, where tracing was on."""


class Pair(NamedTuple):
    """One turn of a conversation, for the context of the messages."""

    user: Any
    assistant: Any
    at: float


class Unreadable(NamedTuple):
    """A message that this process cannot decode."""

    id: str
    error: UnreadablePayload


def parse_messages(entries: Sequence[bytes], files: Sequence[bytes]) -> tuple[list[Message], list[Unreadable]]:
    """Messages in order, and those that cannot be read."""
    attached = _attachments(files) if files else {}
    good: list[Message] = []
    bad: list[Unreadable] = []
    for entry in entries:
        raw = entry[:10]
        if len(entry) < HEAD:
            bad.append(Unreadable(raw.hex(), UnreadablePayload("inspect what wrote this: a message has no head")))
            continue
        try:
            data = decode(entry[HEAD:])
            files_of = {name: decode(value) for name, value in attached.get(raw, {}).items()} if entry[16] else NOTHING
        except UnreadablePayload as error:
            bad.append(Unreadable(raw.hex(), error))
        else:
            trace = None if entry[HEAD] == 1 else trace_of(entry[HEAD:])
            good.append(Message(raw.hex(), data, int.from_bytes(entry[10:16], "big") / 1000, files_of, trace))
    return good, bad


def parse_pairs(entries: Sequence[bytes]) -> tuple[list[Pair], int]:
    """Pairs in order, and how many cannot be read."""
    good: list[Pair] = []
    bad = 0
    for entry in entries:
        try:
            user, assistant = decode(entry[PAIR_HEAD:])
        except NewerPayload:
            raise
        except (UnreadablePayload, ValueError, TypeError):
            bad += 1
        else:
            good.append(Pair(user, assistant, int.from_bytes(entry[:6], "big") / 1000))
    return good, bad


def _attachments(fields: Sequence[bytes]) -> dict[bytes, dict[str, bytes]]:
    """Resolved attachments by message and name. Failed ones are left out."""
    found: dict[bytes, dict[str, bytes]] = {}
    for at in range(0, len(fields), 2):
        field, value = fields[at], fields[at + 1]
        if len(field) > 10 and value[:1] == b"r":
            found.setdefault(field[:10], {})[field[10:].decode()] = value[1:]
    return found
