"""Dead letters, and the numbers of a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.buffers.flows import ask, doubt
from holdfast.buffers.message import Message, parse_messages
from holdfast.buffers.spec import BufferSpec
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, ReplyLost, Together, call
from holdfast.engine.limits import check_count
from holdfast.errors import InvalidId, NotAcquired
from holdfast.keys import SHARDS, Id, decode

PAGE = 1000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A batch that was tried often enough, or messages that nobody could read."""

    id: str
    """`shard.batch`: pass it to `dead_letter`, `replay` and `purge`."""
    key: Id
    """The user."""
    error: str
    """Of the last attempt."""
    attempts: int
    at: float
    """When it died: server time, in seconds since 1970."""
    count: int
    """Messages in it."""
    messages: tuple[Message, ...] = ()
    """Only when it is inspected; those that cannot be read are left out."""


@dataclass(frozen=True, slots=True)
class BufferStats:
    """One user's buffer."""

    waiting: int
    bytes: int
    age: float | None
    """Seconds since the oldest waiting message was appended; None if nothing waits."""
    in_flight: int
    """Messages in the batch that a worker has, or that waits to be handed out again."""
    attempt: int
    held: bool
    """Does somebody have that batch now?"""
    free_in: float
    """Seconds until it may be handed out again, unless renewed."""
    fence: int
    pairs: int


@dataclass(frozen=True, slots=True)
class BufferTotals:
    """All users of a buffer together."""

    users: int
    due: int
    """Users whom a worker should look at now."""
    idle_workers: int
    dead_letters: int
    counts: dict[str, int]
    """Messages by what became of them: `absorbed`, `popped`, `cleared`, `forgotten`, `dead`, `replayed`, `purged`,
    `dropped.age`, `dropped.capacity`, `dropped.bytes`, `dropped.dead`; pairs: `dropped.pair_age`,
    `dropped.pair_capacity`; batches: `batches`, `redelivered`; whole buffers that ended with nobody there to count
    their messages: `vanished`."""
    oldest: float | None = None
    """Seconds since the oldest message of all that wait was appended, or since a batch whose worker was lost could be
    taken; None if nothing waits."""


@dataclass(frozen=True, slots=True)
class UserStats:
    """One user among many."""

    user: Id
    waiting: int
    age: float | None
    """Seconds since the oldest waiting message was appended; None if nothing waits."""
    in_flight: int
    """Messages in the batch that a worker has, or that waits to be handed out again."""
    attempt: int = 0
    held: bool = False
    """Does somebody have that batch now?"""
    free_in: float = 0.0
    """Seconds until it may be handed out again, unless renewed."""


def look(core: Core, spec: BufferSpec, user: Id, limit: int) -> Flow[tuple[BufferStats, list[Message]]]:
    place = spec.place(user)
    reply = yield from ask(core, "buffers/look", place, (place.key, f"{place.base}c:{place.user}"), (limit,))
    _, _, n, size, age, b, attempt, free, fence, held, pairs, entries = reply
    stats = BufferStats(n, size, None if age < 0 else age / 1000, b, attempt, bool(held), free / 1000, fence, pairs)
    return stats, parse_messages(entries, ())[0]


def totals(core: Core, spec: BufferSpec) -> Flow[BufferTotals]:
    script = core.scripts.get("buffers/totals")
    until = core.clock() + core.settings.retry_for
    replies = yield Together(
        [
            call(
                script,
                shard.tag,
                (shard.stat, shard.due, shard.idle, shard.dead, shard.old),
                (),
                clock=core.clock,
                until=until,
            )
            for shard in spec.shards
        ]
    )
    counts: dict[str, int] = {}
    users = due = dead = idle = 0
    oldest = -1
    for reply in _all_good(replies):
        fields = reply[2]
        for at in range(0, len(fields), 2):
            name = fields[at].decode()
            if not name.startswith("conf"):
                counts[name] = counts.get(name, 0) + int(fields[at + 1])
        users, due, idle, dead = users + reply[3], due + reply[4], max(idle, reply[5]), dead + reply[6]
        oldest = max(oldest, reply[7])
    return BufferTotals(users, due, idle, dead, counts, None if oldest < 0 else oldest / 1000)


def users(core: Core, spec: BufferSpec, largest: bool, count: int, offset: int) -> Flow[list[UserStats]]:
    """The largest or the oldest users, from the shards' indexes, and then as they are now: two round trips."""
    check_count("count", count, 1, PAGE)
    check_count("offset", offset, 0, PAGE)
    indexes = [shard.big if largest else shard.old for shard in spec.shards]
    found = yield from _ranked(core, spec, indexes, "high" if largest else "low", offset + count)
    page = [user for _, user in sorted(found, reverse=largest)[offset : offset + count]]
    if not largest and offset == 0:  # whose batch was lost is in no index of those that wait, but is due
        late = yield from _ranked(core, spec, [shard.due for shard in spec.shards], "past", count + 1)
        page = list(dict.fromkeys([*(user for _, user in sorted(late) if user != b"!"), *page]))[: 2 * count]
    stats = yield from _as_they_are(core, spec, page)
    if largest:
        return sorted(stats, key=lambda one: -one.waiting)
    return sorted(stats, key=lambda one: float("-inf") if one.age is None else -one.age)[:count]


def in_hand(core: Core, spec: BufferSpec, count: int) -> Flow[list[UserStats]]:
    """Users with a batch. They are looked at when its time ends, which is sooner than most of those who only wait."""
    check_count("count", count, 1, PAGE)
    most = min(PAGE, 4 * count)
    found = yield from _ranked(core, spec, [shard.due for shard in spec.shards], "low", most + 1)
    page = [user for _, user in sorted(found) if user != b"!"][:most]
    return [one for one in (yield from _as_they_are(core, spec, page)) if one.in_flight][:count]


def _as_they_are(core: Core, spec: BufferSpec, page: Sequence[bytes]) -> Flow[list[UserStats]]:
    looks = _all_good((yield Together([look(core, spec, decode(user), 0) for user in page])))
    return [
        UserStats(decode(user), one.waiting, one.age, one.in_flight, one.attempt, one.held, one.free_in)
        for user, (one, _) in zip(page, looks, strict=True)
        if one.waiting or one.in_flight
    ]


def due(core: Core, spec: BufferSpec, count: int) -> Flow[list[Id]]:
    """Whom a worker should look at now, the most overdue first."""
    check_count("count", count, 1, PAGE)
    found = yield from _ranked(core, spec, [shard.due for shard in spec.shards], "past", count + 1)
    return [decode(user) for _, user in sorted(found) if user != b"!"][:count]


def _ranked(
    core: Core, spec: BufferSpec, indexes: list[str], way: str, most: int
) -> Flow[list[tuple[float, bytes]]]:  # fmt: skip
    script, until = core.scripts.get("buffers/users"), core.clock() + core.settings.retry_for
    replies = yield Together(
        [
            call(script, shard.tag, (index,), (way, most), clock=core.clock, until=until)
            for shard, index in zip(spec.shards, indexes, strict=True)
        ]
    )
    return [
        (float(reply[2][at + 1]), reply[2][at]) for reply in _all_good(replies) for at in range(0, len(reply[2]), 2)
    ]


def _all_good(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return replies


def dead_letters(core: Core, spec: BufferSpec, count: int) -> Flow[list[DeadLetter]]:
    """The newest first, at most `count`."""
    check_count("count", count, 1, PAGE)
    script = core.scripts.get("buffers/dead")
    until = core.clock() + core.settings.retry_for
    replies = yield Together(
        [
            call(script, shard.tag, (shard.dead,), (shard.base, 0, count, 0, 0), clock=core.clock, until=until)
            for shard in spec.shards
        ]
    )
    found = [
        _letter(number, reply[at], reply[at + 1])
        for number, reply in enumerate(_all_good(replies))
        for at in range(2, len(reply), 2)
    ]
    return sorted(found, key=lambda one: -one.at)[:count]


def dead_letter(core: Core, spec: BufferSpec, letter: str) -> Flow[DeadLetter | None]:
    """One of them, with its messages."""
    shard, batch = _parts(spec, letter)
    reply = yield from call(
        core.scripts.get("buffers/dead"), shard.tag, (shard.dead,), (shard.base, 0, 1, batch, 1), clock=core.clock,
        until=core.clock() + core.settings.retry_for, key=letter,
    )  # fmt: skip
    return _letter(shard.number, reply[2], reply[3]) if len(reply) > 2 else None


def revive(core: Core, spec: BufferSpec, letter: str, how: str) -> Flow[int]:
    """Put it back (`r`) or remove it (`p`). Answers how many messages; 0 if there is no such letter."""
    shard, batch = _parts(spec, letter)
    unanswered: list[ReplyLost] = []
    reply = yield from call(
        core.scripts.get("buffers/revive"), shard.tag, (shard.dead,), (shard.base, batch, how), clock=core.clock,
        until=core.clock() + core.settings.retry_for, key=letter, lost=unanswered,
    )  # fmt: skip
    if reply[0] == b"missing" and unanswered:
        raise doubt("buffers/revive", letter)
    if reply[0] == b"busy":
        raise NotAcquired(
            "try again later: the user has a batch in flight, and only one is allowed",
            operation="buffers/revive", key=letter,
        )  # fmt: skip
    return int(reply[1]) if len(reply) > 1 else 0


def _parts(spec: BufferSpec, letter: str) -> tuple[Any, str]:
    shard, _, batch = letter.partition(".") if isinstance(letter, str) else ("", "", "")
    if not (shard.isdecimal() and batch.isdecimal() and int(shard) < SHARDS):
        raise InvalidId(f"pass the id of a dead letter as `dead_letters` answered it, not {letter!r}")
    return spec.shards[int(shard)], batch


def _letter(shard: int, batch: bytes, parts: list[bytes]) -> DeadLetter:
    head = parts[0]
    at, count = int.from_bytes(head[1:7], "big") / 1000, int.from_bytes(head[7:10], "big")
    pairs, attempts = int.from_bytes(head[10:13], "big"), int.from_bytes(head[16:18], "big")
    messages, _ = parse_messages(parts[3 : 3 + count], parts[3 + count + pairs :]) if len(parts) > 3 else ([], [])
    return DeadLetter(
        f"{shard}.{batch.decode()}", decode(parts[1]), parts[2].decode("utf-8", "replace"), attempts, at, count,
        tuple(messages),
    )  # fmt: skip
