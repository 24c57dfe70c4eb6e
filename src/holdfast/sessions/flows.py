"""The operations of short-term memory, without I/O. See `engine/flow.py` for what a flow is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.engine import payload
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, call
from holdfast.engine.limits import check_count
from holdfast.engine.status import Status
from holdfast.errors import Indeterminate, NewerPayload, Unavailable, UnreadablePayload
from holdfast.events import Dropped
from holdfast.sessions import users
from holdfast.sessions.entry import Context, Draft, Entry, Saved, Trimmed, decode, open_raw, read
from holdfast.sessions.spec import MAX_ENTRIES, Batch, Place, Spec, entry_id

REASONS = ("entries", "bytes", "tokens", "orphan")
WHAT = "session entry"
_UNREADABLE = Status.UNREADABLE.encode()
_MISSING = Status.MISSING.encode()
_REPLAYED = Status.REPLAYED.encode()
_CHANGED = Status.CHANGED.encode()
_DOUBTFUL = Status.DOUBTFUL.encode()
_EMPTY = Status.EMPTY.encode()


def save(
    core: Core, spec: Spec, at: Place, drafts: Sequence[Draft], user: Place | None, ttl: float | None
) -> Flow[Saved]:
    """Store, trim and set the life in one step on the server.

    After a lost reply it goes on with a script that first looks whether the entries are there, so they are stored
    once. Cancelled in between, they may or may not be stored."""
    batch = spec.batch(core, drafts)
    if core.tally is not None:
        core.use("sessions", spec.name if isinstance(spec.name, str) else spec.name.decode("utf-8", "replace"))
    seconds = spec.seconds(ttl)
    started = core.clock()
    until = started + core.settings.retry_for
    life = "" if user is None else users.known_life(core, spec, at, user, seconds)
    if user is not None and not life:
        yield from _index(core, spec, at, user, seconds, until, None)
    lost: Exception | None = None
    while True:
        reply, error = yield from _send(core, spec, at, batch, seconds, life, started, until, lost)
        if error is not None:
            lost = error
        elif reply[0] == _CHANGED and user is not None:
            # The session is not the one that this process has indexed: it was cleared or ended, and may be new.
            yield from _index(core, spec, at, user, seconds, until, lost)
            life = ""
        elif reply[0] == _DOUBTFUL:
            if lost is not None:
                raise Indeterminate(
                    "find out whether it was stored: no reply came, and entries as new as it were removed since",
                    operation="sessions/resave", key=at.shown, elapsed=core.clock() - started,
                ) from lost  # fmt: skip
            lost = Indeterminate("find out whether it was stored", operation="sessions/save", key=at.shown)
        else:
            break
    saved = _saved(core, spec, at, batch, reply)
    if user is not None:
        users.remember(core, spec, at, user, reply[2].decode(), seconds)
    return saved


def _index(
    core: Core, spec: Spec, at: Place, user: Place, seconds: float, until: float, lost: Exception | None
) -> Flow[None]:
    """Before the entries are sent: when it fails nothing was stored, unless the reply to an earlier try was `lost`."""
    try:
        yield from users.index(core, spec, at, user, seconds, until)
    except (Indeterminate, Unavailable) as error:
        if lost is not None:
            raise Indeterminate(
                f"find out whether it was stored: the first reply was lost, and then: {error}",
                operation="sessions/index", key=at.shown,
            ) from error  # fmt: skip
        if isinstance(error, Unavailable):
            raise
        raise Unavailable(
            f"check that the server is up and reachable; nothing was stored: {error}",
            operation="sessions/index", key=at.shown,
        ) from error  # fmt: skip


def _send(
    core: Core, spec: Spec, at: Place, batch: Batch, seconds: float, life: str, started: float, until: float,
    lost: Exception | None,
) -> Flow[tuple[list[Any], Exception | None]]:  # fmt: skip
    """The reply, or the loss of it. The first request is never repeated as it is; `lost` makes it the careful one."""
    args: tuple[Any, ...] = (int(seconds * 1000), spec.entries, spec.bytes, spec.tokens, life, batch.id)
    if lost is None:
        script, args = core.scripts.get("sessions/save"), (*args, *batch.parts)
    else:
        # As long as any earlier request of this save can be under way, the careful ones too.
        window = int((max(until, core.clock()) - started + core.settings.call_timeout) * 1000) + 1
        script, args = core.scripts.get("sessions/resave"), (*args, window, *batch.parts)
    try:
        reply = yield from call(script, at.tag, (at.key,), args, clock=core.clock, until=until, key=at.shown)
    except Indeterminate as error:
        if lost is not None:
            raise
        return [], error
    except Unavailable as error:
        if lost is None:
            raise
        raise Indeterminate(
            f"find out whether it was stored: the first reply was lost, and then: {error}",
            operation=script.name, key=at.shown, elapsed=core.clock() - started,
        ) from error  # fmt: skip
    return reply, None


def _saved(core: Core, spec: Spec, at: Place, batch: Batch, reply: list[Any]) -> Saved:
    check_readable(reply, at, "sessions/save")
    count = int(reply[1])
    if reply[0] == _REPLAYED:
        return Saved(batch.ids[-1], count, ids=batch.ids)
    trimmed = Trimmed(*(int(number) for number in reply[5:9]))
    for reason, number in zip(REASONS, trimmed, strict=True):
        if number:
            dropped(core, spec, at, reason, number)
    ids = tuple(one if kept == "1" else None for one, kept in zip(batch.ids, reply[4].decode(), strict=True))
    return Saved(ids[-1], count, trimmed, ids, bool(reply[3]))


def dropped(core: Core, spec: Spec, at: Place, reason: str, count: int) -> None:
    if core.events:
        core.events.emit(Dropped(f"{spec.part}:{at.shown}", WHAT, reason, count))


def check_readable(reply: list[Any], at: Place, operation: str) -> None:
    if reply[0] == _UNREADABLE:
        if reply[1]:
            raise NewerPayload("run a newer version here: a newer one wrote this", operation=operation, key=at.shown)
        raise UnreadablePayload(
            "clear this session: something else wrote to its key", operation=operation, key=at.shown
        )


def ask(core: Core, script: str, at: Place, *args: Any) -> Flow[list[Any]]:
    until = core.clock() + core.settings.retry_for
    reply = yield from call(
        core.scripts.get(script), at.tag, (at.key,), args, clock=core.clock, until=until, key=at.shown
    )
    check_readable(reply, at, script)
    return reply


def context(core: Core, spec: Spec, at: Place, limit: int) -> Flow[Context]:
    check_count("limit", limit, 1, MAX_ENTRIES)
    reply = yield from ask(core, "sessions/read", at, limit)
    found = read(reply[1])
    for reason, number in (("unreadable", found.unreadable), ("newer", found.newer)):
        if number:
            dropped(core, spec, at, reason, number)
    return found


def get(core: Core, at: Place, value: str) -> Flow[Entry | None]:
    reply = yield from ask(core, "sessions/get", at, entry_id(value))
    return None if reply[0] == _MISSING else decode(open_raw(reply[1]))


def count(core: Core, at: Place) -> Flow[int]:
    reply = yield from ask(core, "sessions/look", at)
    return 0 if reply[0] == _MISSING else int(reply[1])


def touch(core: Core, spec: Spec, at: Place, user: Place | None, ttl: float | None) -> Flow[bool]:
    seconds = spec.seconds(ttl)
    if user is not None:
        yield from users.index(core, spec, at, user, seconds, core.clock() + core.settings.retry_for)
    reply = yield from ask(core, "sessions/touch", at, int(seconds * 1000))
    return bool(reply[0] != _MISSING)


def pop_last(core: Core, spec: Spec, at: Place) -> Flow[Entry | None]:
    """What cannot be read is removed, counted, and the one before it taken; but not what is of a newer version."""
    while True:
        reply = yield from ask(core, "sessions/pop", at, payload.VERSION)
        if reply[0] == _EMPTY:
            return None
        try:
            return decode(open_raw(reply[1]))
        except UnreadablePayload:
            dropped(core, spec, at, "unreadable", 1)


def clear(core: Core, at: Place) -> Flow[bool]:
    reply = yield from ask(core, "sessions/clear", at)
    return bool(reply[1])
