"""The buffer operations, without I/O. See `engine/flow.py` for what a flow is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.buffers.message import NOTHING, Appended, Message, parse_messages
from holdfast.buffers.spec import MAX_EXTEND, BufferSpec, Place
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, ReplyLost, call
from holdfast.engine.limits import check_count, check_seconds
from holdfast.engine.payload import encode
from holdfast.errors import ConfigurationError, Indeterminate, InvalidId, TooLarge, Unavailable
from holdfast.events import Dropped, Expiring, NearlyFull
from holdfast.keys import Id, decode
from holdfast.settings import MAX_SECONDS

REPEAT_WITHIN = 30.0
"""A repeated append is recognised for 60 s, so it is not repeated for longer than this."""
MAX_NAME = 200
MAX_ATTACHMENTS = 100
_STORED = b"stored"
_PLAIN = b"\x00"
_PENDING = b"\x01"


def shown(place: Place) -> str:
    """The user for people."""
    name = decode(place.user)
    return name if isinstance(name, str) else place.user


def append(
    core: Core, spec: BufferSpec, user: Id, items: Sequence[Any], pending: Mapping[str, float]
) -> Flow[Appended]:
    """Store messages in one step. Cancelled in the middle, they may or may not have been stored.

    The first request is not looked up; only when its reply is lost a second script asks for the operation id."""
    place, op = spec.place(user), core.new_op()
    count = len(items)
    args: Sequence[Any]
    if count == 1 and not pending:  # most of them, and so without lists
        body = encode(items[0], spec.max_message)
        if core.tracing is not None:
            body = _traced(core, spec, body)
        args = (op, place.user, spec.limits_of_one, _PLAIN + body)
    else:
        kind = _PENDING if pending else _PLAIN
        bodies = [kind + encode(item, spec.max_message) for item in items]
        if core.tracing is not None:
            bodies = [kind + _traced(core, spec, body[1:]) for body in bodies]
        files = [part for name, seconds in pending.items() for part in (0, name, int(seconds * 1000))]
        args = (op, place.user, spec.limits(count), *bodies, *files)
    until = core.clock() + min(core.settings.retry_for, REPEAT_WITHIN)
    keys = (place.key,)
    try:
        reply = yield from call(
            core.scripts.get("buffers/append"), place.tag, keys, args, clock=core.clock, until=until, key=place.user
        )
    except Indeterminate:
        reply = yield from _again(ask(core, "buffers/reappend", place, keys, args, until=until), place)
    stem = op.hex()
    ids = (f"{stem}0000",) if count == 1 else tuple(f"{stem}{at:04x}" for at in range(count))
    dropped = NOTHING
    if len(reply) > 3:
        counts = zip(("age", "capacity", "bytes"), reply[3:6], strict=True)
        dropped = {reason: number for reason, number in counts if number} or NOTHING
    if core.tally is not None:
        core.tally.add("appended", count)
        if not spec.used:
            core.use("buffer", spec.name)
            spec.used = True
    # Looked at before anything else is: mostly there is nothing to say.
    if (dropped or reply[1] >= spec.alert_at or reply[2] > spec.alert_age) and core.events:
        _alert(core, spec, place, reply[1], reply[2] / 1000, count, dropped)
    return Appended(ids[-1], reply[1], dropped, ids, reply[0] != _STORED)


def _traced(core: Core, spec: BufferSpec, body: bytes) -> bytes:
    """With the span in which it is appended, unless a message that fits would not fit with it."""
    return core.carried(spec.max_bytes - 32 - len(body)) + body


def _again(repeat: Flow[list[Any]], place: Place) -> Flow[list[Any]]:
    """A repeat that was surely not executed says nothing about the first request."""
    try:
        return (yield from repeat)
    except Unavailable as error:
        raise Indeterminate(
            "find out whether it happened before you repeat it: no reply came, and asking again failed",
            operation=error.operation, key=shown(place), elapsed=error.elapsed,
        ) from error  # fmt: skip


def _alert(
    core: Core, spec: BufferSpec, place: Place, length: int, age: float, added: int, dropped: Mapping[str, int]
) -> None:
    for reason, number in dropped.items():
        core.events.emit(Dropped(spec.name, "message", reason, number))
    if length >= spec.alert_at > length - added:
        core.events.emit(NearlyFull(spec.name, shown(place), length, spec.capacity))
    if age * 1000 > spec.alert_age:
        core.events.emit(Expiring(spec.name, shown(place), spec.ttl - age))


def check_items(items: Sequence[Any]) -> Sequence[Any]:
    if isinstance(items, (str, bytes, dict)) or not isinstance(items, Sequence):
        raise ConfigurationError("pass a list of messages; for one message use append")
    check_count("the number of messages", len(items), 1, MAX_EXTEND)
    return items


def check_pending(pending: Mapping[str, float | None] | Sequence[str] | None, default: float) -> Mapping[str, float]:
    """Names of attachments and seconds until each counts as failed."""
    if not pending and isinstance(pending, (Mapping, list, tuple, set, frozenset)):
        return {}
    if isinstance(pending, (str, bytes)) or not isinstance(pending, (Mapping, Sequence, set, frozenset)):
        raise ConfigurationError(f"pass pending as a list of names, or as names with seconds, not {pending!r:.80}")
    given = pending if isinstance(pending, Mapping) else dict.fromkeys(pending)
    check_count("the number of attachments", len(given), 1, MAX_ATTACHMENTS)
    checked = {}
    for name, seconds in given.items():
        check_name(name)
        checked[name] = default if seconds is None else check_seconds("a deadline", seconds, 0.001, MAX_SECONDS)
    return checked


def check_name(name: str) -> str:
    try:
        fits = 1 <= len(name.encode()) <= MAX_NAME
    except (AttributeError, UnicodeEncodeError):
        fits = False
    if not fits:
        raise InvalidId(f"name an attachment with text of 1 to {MAX_NAME} bytes, not {name!r:.80}")
    return name


def raw_id(message: str) -> bytes:
    """The ten bytes of a message's id."""
    try:
        raw = bytes.fromhex(message)
    except (ValueError, TypeError):
        raw = b""
    if len(raw) != 10:
        raise InvalidId(f"pass the id of a message as `append` answered it, not {message!r}")
    return raw


def ask(
    core: Core, script: str, place: Place, keys: Sequence[str], args: Sequence[Any],
    lost: list[ReplyLost] | None = None, until: float | None = None,
) -> Flow[list[Any]]:  # fmt: skip
    """One call about one user."""
    return call(
        core.scripts.get(script), place.tag, keys, args, clock=core.clock,
        until=core.clock() + core.settings.retry_for if until is None else until, key=place.user, lost=lost,
    )  # fmt: skip


def pop(core: Core, spec: BufferSpec, user: Id, limit: int) -> Flow[list[Message]]:
    place = spec.place(user)
    reply = yield from ask(core, "buffers/pop", place, (place.key,), (place.user, place.base, limit))
    good, bad = parse_messages(reply[2], reply[3])
    say_aged(core, spec, reply[4])
    if bad and core.events:
        core.events.emit(Dropped(spec.name, "message", "unreadable", len(bad)))
    return good


def say_aged(core: Core, spec: BufferSpec, count: int) -> None:
    """Whoever finds messages past their life, and removes them, says so."""
    if count and core.events:
        core.events.emit(Dropped(spec.name, "message", "age", count))


def converse(core: Core, spec: BufferSpec, user: Id, turns: Sequence[tuple[Any, Any]]) -> Flow[int]:
    """Add pairs; answers how many wait."""
    place = spec.place(user)
    payloads = [encode([said, answered], spec.max_message) for said, answered in turns]
    args = (
        place.user, place.base, spec.conversations, int(spec.conversation_ttl * 1000), int(spec.ttl * 1000),
        core.new_op(), *payloads,
    )  # fmt: skip
    keys = (f"{place.base}c:{place.user}", place.key)
    until = core.clock() + min(core.settings.retry_for, REPEAT_WITHIN)
    try:
        reply = yield from ask(core, "buffers/converse", place, keys, args, until=until)
    except Indeterminate:
        reply = yield from _again(ask(core, "buffers/reconverse", place, keys, args, until=until), place)
    if len(reply) > 2 and core.events:
        for reason, number in zip(("age", "capacity"), reply[2:4], strict=True):
            if number:
                core.events.emit(Dropped(spec.name, "conversation pair", reason, number))
    return int(reply[1])


def settle(core: Core, spec: BufferSpec, user: Id, message: str, name: str, outcome: bytes) -> Flow[bool]:
    place = spec.place(user)
    args = (place.user, place.base, raw_id(message), check_name(name), outcome, spec.max_bytes)
    reply = yield from ask(core, "buffers/settle", place, (f"{place.base}a:{place.user}", place.key), args)
    if reply[0] == b"full":
        raise TooLarge(
            f"store attachments elsewhere and pass where they are: those of a user may have {spec.max_bytes} bytes",
            operation="buffers/settle", key=shown(place),
        )  # fmt: skip
    return bool(reply[0] == b"settled")


def clear(core: Core, place: Place, how: str) -> Flow[tuple[int, int]]:
    """Remove what waits (`w`) or every trace (`a`). Answers messages removed, and a new fence."""
    unanswered: list[ReplyLost] = []
    reply = yield from ask(core, "buffers/clear", place, (place.key,), (place.user, place.base, how), unanswered)
    if unanswered and how == "w":
        raise doubt("buffers/clear", shown(place))
    return int(reply[1]), int(reply[2])


def doubt(operation: str, key: str) -> Indeterminate:
    """After a lost reply: it is done, but what the first request found is not known."""
    return Indeterminate(
        "inspect before you rely on a number: it was done, and the reply that had the number was lost",
        operation=operation, key=key,
    )  # fmt: skip
