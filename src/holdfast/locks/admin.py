"""Looking at locks and ending them by force, without I/O."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, Together, call
from holdfast.engine.limits import check_count, check_seconds
from holdfast.engine.status import Status
from holdfast.errors import ConfigurationError, Fenced, ServerError
from holdfast.events import Forced
from holdfast.keys import SHARDS, Id, decode, encode, id_bytes, shard_of
from holdfast.locks.inspect import AuditEntry, LockInfo, parse_audit, parse_lock
from holdfast.locks.spec import ROOM, Place, Spec, place

SHOWN_WAITERS = 100
PAGE = 1000
DEEPEST = 10_000
BUSY_KNOWN = 4096
MAX_REASON = 1000
GUARD_LIFE = 7 * 86_400.0


def _ask(core: Core, script: str, tag: str, keys: Sequence[str], args: Sequence[Any], key: str = "") -> Flow[list[Any]]:
    until = core.clock() + core.settings.retry_for
    return (yield from call(core.scripts.get(script), tag, keys, args, clock=core.clock, until=until, key=key))


def inspect(core: Core, at: Place, waiters: int = SHOWN_WAITERS) -> Flow[LockInfo]:
    reply = yield from _ask(core, "locks/inspect", at.tag, (at.lock, at.queue), (waiters,), at.name)
    return parse_lock(at.kind, at.part, int(reply[1]), reply[2], reply[3], int(reply[4]))


def busy(core: Core, spec: Spec, max_age: float) -> Flow[bool]:
    check_seconds("max_age", max_age, 0.0, 3600.0)
    known = core.busy_until.get((spec.place.lock, spec.weight))
    now = core.clock()
    if known is not None and now < min(known[1], known[0] + max_age):
        return True
    info = yield from inspect(core, spec.place, 1)
    taken = [holder for holder in info.holders if holder.remaining > 0]
    used = sum(holder.permits for holder in taken)
    if used + spec.weight <= spec.limit and not info.waiting:
        core.busy_until.pop((spec.place.lock, spec.weight), None)
        return False
    if len(core.busy_until) >= BUSY_KNOWN:
        core.busy_until.clear()
    core.busy_until[(spec.place.lock, spec.weight)] = (
        now,
        now + min((h.remaining for h in taken), default=0.0),
    )
    return True


def force(core: Core, at: Place, fence: int | None, reason: str, by: str) -> Flow[int]:
    """Repeatable by its operation id: after a lost reply the audit log tells whether it was done."""
    if not reason or len(reason) > MAX_REASON or len(by) > MAX_REASON:
        raise ConfigurationError(f"give a reason of 1 to {MAX_REASON} characters: it goes into the audit log")
    who = by or core.owner
    reply = yield from _ask(
        core, "locks/force", at.tag, (*at.keys, at.audit),
        (fence or 0, reason, who, secrets.token_hex(8), at.channels), at.name,
    )  # fmt: skip
    if reply[0] == Status.NOT_HELD.encode():
        return 0
    if core.events:
        core.events.emit(Forced(at.name, int(reply[1]), reason, who))
    return int(reply[1])


def list_locks(core: Core, shard: int, offset: int, count: int) -> Flow[list[tuple[str, str]]]:
    """Kind and encoded name of the locks in use in one shard; a look-up in its index, never a scan."""
    check_count("count", count, 1, PAGE + DEEPEST)
    tag = core.keys.tag(ROOM, shard)
    reply = yield from _ask(core, "locks/list", tag, (core.keys.base(tag) + "shard",), (offset, count))
    return [(kind, name) for kind, _, name in (member.decode().partition(":") for member in reply[2])]


def count_locks(core: Core) -> Flow[int]:
    """How many are in use, over all shards in one round trip."""

    def of(shard: int) -> Flow[int]:
        tag = core.keys.tag(ROOM, shard)
        return int((yield from _ask(core, "locks/count", tag, (core.keys.base(tag) + "shard",), ()))[1])

    counts = yield Together([of(shard) for shard in range(SHARDS)])
    for count in counts:
        if isinstance(count, BaseException):
            raise count
    return sum(counts)


def list_all(core: Core, count: int, offset: int = 0) -> Flow[list[tuple[str, str]]]:
    """The `count` locks after the first `offset`, over all shards, each asked in the same round trip."""
    check_count("count", count, 1, PAGE)
    check_count("offset", offset, 0, DEEPEST)
    pages = yield Together([list_locks(core, shard, 0, offset + count) for shard in range(SHARDS)])
    found: list[tuple[str, str]] = []
    for page in pages:
        if isinstance(page, BaseException):
            raise page
        found.extend(page)
    return found[offset : offset + count]


def look_at_all(core: Core, count: int, offset: int = 0) -> Flow[list[LockInfo]]:
    """Two round trips, whatever the number: the indexes, then the locks found there."""
    found = yield from list_all(core, count, offset)
    infos = yield Together([inspect(core, place(core, kind, decode(name))) for kind, name in found])
    for info in infos:
        if isinstance(info, BaseException):
            raise info
    return list(infos)


def audit(core: Core, at: Place, count: int) -> Flow[list[AuditEntry]]:
    check_count("count", count, 1, PAGE)
    reply = yield from _ask(core, "locks/audit", at.tag, (at.audit,), (PAGE,))
    entries = [parse_audit(entry[0], entry[1]) for entry in reply[1]]
    return [entry for entry in entries if (entry.kind, entry.name) == (at.kind, decode(at.part))][:count]


def guard_key(core: Core, resource: Id, part: str) -> str:
    """`resource:part` with the colons of the resource escaped, so that no two pairs make the same key."""
    raw = id_bytes(resource)
    return f"{core.keys.base(core.keys.tag('guards', shard_of(raw)))}{encode(raw).replace(':', '%3a')}:{part}"


def guarded(
    core: Core, resource: Id, fence: int, commands: Sequence[Sequence[Any]], remember: float
) -> Flow[list[Any]]:
    """Run commands only if no higher fence was seen for the resource; all of it in one step."""
    if not commands or any(not command for command in commands):
        raise ConfigurationError('pass at least one command, each as a tuple: ("SET", key, value)')
    args: list[Any] = [
        fence,
        int(check_seconds("remember", remember, 1.0, 3650 * 86_400.0) * 1000),
        secrets.token_hex(8),
    ]
    for command in commands:
        args += (len(command), *command)
    key = guard_key(core, resource, "fence")
    tag = core.keys.tag("guards", shard_of(id_bytes(resource)))
    reply = yield from _ask(core, "locks/guarded", tag, (key,), args, key)
    if reply[0] == Status.FAILED.encode():
        raise ServerError(
            f"mend the commands: number {int(reply[1]) or '?'} failed, {reply[2].decode('utf-8', 'replace')}. "
            "Those before it were done",
            operation="locks/guarded", key=key,
        )  # fmt: skip
    if reply[0] == Status.REPLAYED.encode():
        return [None] * len(commands)
    if reply[0] == Status.FENCED.encode():
        raise Fenced(
            f"stop: fence {fence} is older than {int(reply[1])}, so a newer holder has written",
            fence=fence, seen=int(reply[1]), operation="locks/guarded", key=key,
        )  # fmt: skip
    return list(reply[1:])
