"""Locks over HTTP: the client holds them by a token, and renews them itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

import holdfast
from holdfast import Lock, LockInfo
from holdfast.node.access import operate
from holdfast.node.api.operation import Call, Operation
from holdfast.node.api.shapes import Limit, Reason, Text, TokenText, Whole, shape
from holdfast.node.api.waiting import left, while_there

Kind = Literal["lock", "rw", "sem"]
Ttl = Annotated[float, Meta(ge=0.05, le=86_400)]


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """`kind`: a mutex (lock), a read/write lock (rw; `write` says which side), or a semaphore (sem), of whose `permits`
    the holder takes `take`. Name the same kind and numbers each time. `ttl`: seconds it lasts unless renewed."""

    name: Text
    kind: Kind = "lock"
    ttl: Ttl | None = None
    write: bool = True
    permits: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    take: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class Acquire(Asked, forbid_unknown_fields=True):
    """`wait`: seconds to stand in line; 0: not at all. The node allows `max_wait` at most."""

    wait: Annotated[float, Meta(ge=0, le=3600)] = 0.0


class Held(Asked, forbid_unknown_fields=True, kw_only=True):
    token: TokenText


class Ticket(msgspec.Struct):
    """Yours for `seconds` from when the node answered: take off a round trip. Send `fence` with each write."""

    name: str
    token: str
    fence: int
    seconds: float


class Until(msgspec.Struct):
    seconds: float


class Released(msgspec.Struct):
    """False: it had ended before."""

    released: bool


class Force(msgspec.Struct, forbid_unknown_fields=True):
    """`fence`: only the holder with this one."""

    name: Text
    reason: Reason
    kind: Kind = "lock"
    fence: Whole | None = None


class Ended(msgspec.Struct):
    ended: int


class Which(msgspec.Struct):
    kind: Kind = "lock"


class Page(msgspec.Struct):
    limit: Limit = 100
    offset: Annotated[int, Meta(ge=0, le=10_000)] = 0


class Holder(msgspec.Struct):
    host: str
    pid: int
    label: str
    fence: int
    permits: int
    age: float
    remaining: float


class Waiter(msgspec.Struct):
    host: str
    pid: int
    label: str
    permits: int


class Info(msgspec.Struct):
    name: Any
    kind: Kind
    permits: int
    holders: list[Holder]
    waiters: list[Waiter]
    waiting: int


class Entry(msgspec.Struct):
    id: str
    reason: str
    by: str
    ended: int
    fences: list[int]
    owners: list[str]


def _lock(call: Call) -> Lock:
    asked, hf = call.body, call.node.hf
    if asked.kind == "rw":
        pair = hf.rwlock(asked.name, ttl=asked.ttl, renew=False)
        return pair.write() if asked.write else pair.read()
    if asked.kind == "sem":
        return hf.semaphore(asked.name, asked.permits, take=asked.take, ttl=asked.ttl, renew=False)
    return hf.lock(asked.name, ttl=asked.ttl, renew=False)


def _info(found: LockInfo) -> Info:
    return shape(
        Info, found, holders=[shape(Holder, one) for one in found.holders],
        waiters=[shape(Waiter, one) for one in found.waiters],
    )  # fmt: skip


async def acquire(call: Call) -> Ticket:
    """Take a lock. Renew it before its seconds are over, or it ends."""
    lock, wait = _lock(call), min(call.body.wait, call.node.config.max_wait)

    async def undo(found: holdfast.Ticket) -> None:  # else it would be nobody's for its whole time
        await lock.return_ticket(found.token)

    asked = lock.ticket(wait=wait)
    found = await (call.node.patiently(while_there(call.request, asked, undo)) if wait else asked)
    if wait and await call.request.is_disconnected():
        await undo(found)
        raise left()
    return Ticket(call.body.name, found.token, found.fence, found.seconds)


async def renew(call: Call) -> Until:
    """Let a lock last its `ttl` from now on. 409: it has ended, and stays so."""
    return Until(await _lock(call).renew_ticket(call.body.token))


async def release(call: Call) -> Released:
    """Give a lock back; the next in line is granted in the same step. Safe to repeat."""
    return Released(await _lock(call).return_ticket(call.body.token))


async def locks(call: Call) -> list[Info]:
    """Locks in use, from indexes."""
    return [_info(one) for one in await call.node.hf.list_locks(call.query.limit, offset=call.query.offset)]


async def inspect(call: Call) -> Info:
    """Who holds a lock, since when and with which fence, and who waits."""
    return _info(await call.node.hf.inspect(call.path["name"], call.query.kind))


async def history(call: Call) -> list[Entry]:
    """Forced releases of a lock, newest first."""
    found = await call.node.hf.audit(call.path["name"], kind=call.query.kind)
    return [shape(Entry, one) for one in found]


async def force(call: Call) -> Ended:
    """End somebody else's lease. Until that one notices it may still act: guard by fence."""
    body: Force = call.body
    number = 0

    async def go() -> str:
        nonlocal number
        number = await call.node.hf.force_release(
            body.name, reason=body.reason, by=call.caller.name, kind=body.kind, fence=body.fence
        )
        return f"{number} leases ended"

    await operate(call.request, "force-release", f"{body.kind}:{body.name}", body.reason, go)
    return Ended(number)


AT = "/v1/locks"
OPERATIONS = [
    Operation("GET", AT, "read", locks, query=Page, answer=list[Info]),
    Operation("POST", f"{AT}/acquire", "write", acquire, body=Acquire, answer=Ticket, errors=(409,)),
    Operation("POST", f"{AT}/renew", "write", renew, body=Held, answer=Until, errors=(409,)),
    Operation("POST", f"{AT}/release", "write", release, body=Held, answer=Released, repeatable=True),
    Operation("POST", f"{AT}/force-release", "operate", force, body=Force, answer=Ended, repeatable=True),
    Operation("GET", f"{AT}/{{name}}", "read", inspect, query=Which, answer=Info),
    Operation("GET", f"{AT}/{{name}}/history", "read", history, query=Which, answer=list[Entry]),
]  # fmt: skip
