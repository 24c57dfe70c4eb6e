"""Buffers over HTTP: append, take and acknowledge, look, dead letters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast import BatchTicket, Buffer, ConfigurationError
from holdfast.node.access import operate
from holdfast.node.api import taking
from holdfast.node.api.operation import Call, Created, Operation
from holdfast.node.api.shapes import (
    Limit,
    Named,
    Offset,
    Page,
    Removed,
    Text,
    TokenText,
    Whole,
    Why,
    plain,
    shape,
)
from holdfast.node.api.waiting import left, while_there

MOST_ATTEMPTS = 60_000
"""It is given back, and not for having failed."""


class Message(msgspec.Struct):
    id: str
    data: Any
    at: float
    attachments: dict[str, Any] = {}


class Pair(msgspec.Struct):
    user: Any
    assistant: Any
    at: float


class Totals(msgspec.Struct):
    """All users of a buffer together. `counts`: messages by what became of them."""

    users: int
    due: int
    idle_workers: int
    dead_letters: int
    oldest: float | None
    counts: dict[str, int]


class Stats(msgspec.Struct):
    """One user. `in_flight`: messages in the batch that a worker has, or that waits to be handed out again."""

    waiting: int
    bytes: int
    age: float | None
    in_flight: int
    attempt: int
    held: bool
    free_in: float
    fence: int
    pairs: int


class User(msgspec.Struct):
    user: Any
    waiting: int
    age: float | None
    in_flight: int
    attempt: int
    held: bool
    free_in: float


class Users(msgspec.Struct):
    """Whom to answer: those whose oldest message waits longest, those with the most messages, or those with a batch
    that somebody has or that waits for its next attempt (without `offset`)."""

    by: Literal["oldest", "largest", "in_hand"] = "oldest"
    limit: Limit = 50
    offset: Offset = 0


class Append(msgspec.Struct, forbid_unknown_fields=True):
    """`data` is one message, `items` several, stored in one step: pass one of the two. `pending`: attachments of one
    message that are still under way, with the seconds until each counts as failed."""

    user: Text
    data: Any = msgspec.UNSET
    items: Annotated[list[Any], Meta(min_length=1, max_length=1000)] | None = None
    pending: dict[Text, Annotated[float, Meta(gt=0, le=86_400)]] | None = None


class Appended(msgspec.Struct):
    id: str
    ids: list[str]
    length: int
    dropped: dict[str, int]


class Take(msgspec.Struct, forbid_unknown_fields=True):
    """Without `user`, whoever waits longest. `lease`: seconds until somebody else is given it, unless renewed; by
    default the setting `ttl`, 30 s. `wait`: seconds to wait for something, up to the node's `max_wait`."""

    user: Text | None = None
    limit: Limit = 100
    lease: Annotated[float, Meta(ge=0.05, le=86_400)] | None = None
    wait: Annotated[float, Meta(ge=0, le=3600)] = 0.0


class Batch(msgspec.Struct):
    """Messages that are yours until `seconds` are over. The same batch again has the same id and a higher fence."""

    id: str
    user: Any
    token: str
    fence: int
    attempt: int
    seconds: float
    messages: list[Message]
    pairs: list[Pair]
    waiting: int


class Held(msgspec.Struct, forbid_unknown_fields=True):
    """`lease`: seconds from now on; by default the setting `ttl`, 30 s, also where it was taken for longer. `fence` may
    be sent along; the token says enough."""

    user: Text
    token: TokenText
    fence: Whole | None = None
    lease: Annotated[float, Meta(ge=0.05, le=86_400)] | None = None


class Ack(msgspec.Struct, forbid_unknown_fields=True):
    """`ids`: only these messages; without, all."""

    user: Text
    token: TokenText
    fence: Whole
    ids: Annotated[list[str], Meta(min_length=1, max_length=1000)] | None = None


class Left(msgspec.Struct):
    left: int


class Nack(msgspec.Struct, forbid_unknown_fields=True):
    """`fence` may be sent along; the token says enough."""

    user: Text
    token: TokenText
    fence: Whole | None = None
    delay: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    error: Annotated[str, Meta(max_length=2000)] = ""


class Returned(msgspec.Struct):
    dead: bool


class Until(msgspec.Struct):
    seconds: float


class Whose(msgspec.Struct, forbid_unknown_fields=True):
    user: Text


class Flushed(msgspec.Struct):
    flushed: bool


class Talk(msgspec.Struct, forbid_unknown_fields=True):
    user: Text
    said: Any
    answered: Any


class Talked(msgspec.Struct):
    pairs: int


class Attachment(msgspec.Struct, forbid_unknown_fields=True):
    """`failed`: it will not come, and `data` is not looked at."""

    user: Text
    message: Text
    name: Text
    data: Any = None
    failed: bool = False


class InTime(msgspec.Struct):
    in_time: bool


class Letter(msgspec.Struct):
    id: str
    user: Any
    error: str
    attempts: int
    at: float
    count: int
    messages: list[Message] = []


def _buffer(call: Call) -> Buffer:
    return call.node.buffer(call.path["buffer"])


def _message(found: Any) -> Message:
    return shape(Message, found)


async def names(call: Call) -> list[Named]:
    """Buffers that the fleet uses."""
    return [Named(one.name, one.seen) for one in await call.node.hf.fleet.names() if one.kind == "buffer"]


async def totals(call: Call) -> Totals:
    """The numbers of all users of a buffer."""
    return shape(Totals, await _buffer(call).totals())


async def users(call: Call) -> list[User]:
    """The oldest or the largest users, or those with a batch in hand, from indexes."""
    buffer, query = _buffer(call), call.query
    if query.by == "in_hand":
        return [shape(User, one) for one in await buffer.in_hand(query.limit)]
    ask = buffer.largest if query.by == "largest" else buffer.oldest
    return [shape(User, one) for one in await ask(query.limit, offset=query.offset)]


async def append(call: Call) -> Created:
    """Store messages of a user. The oldest are dropped where there is no room, and counted."""
    body: Append = call.body
    if (body.data is msgspec.UNSET) == (body.items is None):
        raise ConfigurationError("pass data, for one message, or items, for several")
    if body.items is not None:
        if body.pending:
            raise ConfigurationError("pass pending with one message only")
        found = await _buffer(call).extend(body.user, body.items)
    else:
        found = await _buffer(call).append(body.user, body.data, pending=body.pending)
    return Created(Appended(found.id, list(found.ids), found.length, dict(found.dropped)))


async def stats(call: Call) -> Stats:
    """The numbers of one user."""
    return shape(Stats, await _buffer(call).stats(call.path["user"]))


async def peek(call: Call) -> list[Message]:
    """The oldest waiting messages of a user, which stay."""
    return [_message(one) for one in await _buffer(call).peek(call.path["user"], call.query.limit)]


async def take(call: Call) -> Batch | None:
    """Lease a batch: nobody else is given it until its seconds are over."""
    node, buffer, body = call.node, _buffer(call), call.body

    async def undo(found: BatchTicket | None) -> None:  # nobody would hear of it
        if found is not None:
            await buffer.nack_ticket(found.key, found.token, max_attempts=MOST_ATTEMPTS)

    if not body.wait:
        found = await taking.take(node, buffer, body)
    else:
        found = await node.patiently(while_there(call.request, taking.take_in_time(node, buffer, body), undo))
        if await call.request.is_disconnected():
            await undo(found)
            raise left()
    return None if found is None else _batch(found)


def _batch(found: BatchTicket) -> Batch:
    return shape(
        Batch, found, user=plain(found.key), messages=[_message(one) for one in found.messages],
        pairs=[shape(Pair, one) for one in found.pairs],
    )  # fmt: skip


async def renew(call: Call) -> Until:
    """Keep a batch for longer."""
    return Until(await _buffer(call).renew_ticket(call.body.user, call.body.token, lease=call.body.lease))


async def ack(call: Call) -> Left:
    """Remove a batch, or some of its messages: they are absorbed. Safe to repeat."""
    body: Ack = call.body
    return Left(await _buffer(call).ack_ticket(body.user, body.token, body.fence, body.ids))


async def nack(call: Call) -> Returned:
    """Give a batch back: it is handed out again, or goes to the dead letters when it was tried too often."""
    body: Nack = call.body
    return Returned(await _buffer(call).nack_ticket(body.user, body.token, delay=body.delay, error=body.error))


async def flush(call: Call) -> Flushed:
    """Let a worker take what waits of a user now, whatever its triggers say."""
    return Flushed(await _buffer(call).flush(call.body.user))


async def converse(call: Call) -> Talked:
    """Add one turn of the conversation, which is handed out with the messages it explains."""
    body: Talk = call.body
    return Talked(await _buffer(call).converse(body.user, body.said, body.answered))


async def attach(call: Call) -> InTime:
    """An attachment is there, or will not come. False: that was too late."""
    body: Attachment = call.body
    buffer = _buffer(call)
    if body.failed:
        return InTime(await buffer.fail(body.user, body.message, body.name))
    return InTime(await buffer.resolve(body.user, body.message, body.name, body.data))


async def dead(call: Call) -> list[Letter]:
    """Dead letters, the newest first, without their messages."""
    found = await _buffer(call).dead_letters(call.query.limit)
    return [shape(Letter, one, user=plain(one.key), messages=[]) for one in found]


async def letter(call: Call) -> Letter:
    """One dead letter with its messages."""
    found = await _buffer(call).dead_letter(call.path["letter"])
    if found is None:
        raise _no_letter()
    return shape(Letter, found, user=plain(found.key), messages=[_message(one) for one in found.messages])


async def replay(call: Call) -> Removed:
    """Put a dead letter back, as the same batch with its attempts counted anew."""
    return await _revive(call, "replay", _buffer(call).replay)


async def purge(call: Call) -> Removed:
    """Remove a dead letter for good."""
    return await _revive(call, "purge", _buffer(call).purge)


async def _revive(call: Call, action: str, work: Any) -> Removed:
    name, number = call.path["letter"], 0

    async def go() -> str:
        nonlocal number
        number = await work(name)
        return f"{number} messages"

    await operate(call.request, action, f"buffer:{call.path['buffer']} letter {name}"[:1000], call.body.reason, go)
    if not number:
        raise _no_letter()
    return Removed(number)


def _no_letter() -> Exception:
    from holdfast.node.problems import Refused

    return Refused(404, "no-letter", "look at the dead letters: there is no such one, or no longer")


AT = "/v1/buffers"
OPERATIONS = [
    Operation("GET", AT, "read", names, answer=list[Named]),
    Operation("GET", f"{AT}/{{buffer}}", "read", totals, answer=Totals),
    Operation("GET", f"{AT}/{{buffer}}/users", "read", users, query=Users, answer=list[User], cost=5.0),
    Operation("GET", f"{AT}/{{buffer}}/users/{{user}}", "read", stats, answer=Stats),
    Operation("GET", f"{AT}/{{buffer}}/users/{{user}}/messages", "operate", peek, query=Page, answer=list[Message]),
    Operation("POST", f"{AT}/{{buffer}}/messages", "write", append, body=Append, answer=Appended, status=201,
              repeatable=True, errors=(413, 422)),
    Operation("POST", f"{AT}/{{buffer}}/pairs", "write", converse, body=Talk, answer=Talked, repeatable=True,
              errors=(413, 422)),
    Operation("POST", f"{AT}/{{buffer}}/attachments", "write", attach, body=Attachment, answer=InTime, repeatable=True,
              errors=(413, 422)),
    Operation("POST", f"{AT}/{{buffer}}/take", "write", take, body=Take, answer=Batch, empty="Nothing waits.",
              errors=(409,)),
    Operation("POST", f"{AT}/{{buffer}}/renew", "write", renew, body=Held, answer=Until, errors=(409,)),
    Operation("POST", f"{AT}/{{buffer}}/ack", "write", ack, body=Ack, answer=Left, repeatable=True, errors=(409,)),
    Operation("POST", f"{AT}/{{buffer}}/nack", "write", nack, body=Nack, answer=Returned, repeatable=True,
              errors=(409,)),
    Operation("POST", f"{AT}/{{buffer}}/flush", "write", flush, body=Whose, answer=Flushed, repeatable=True),
    Operation("GET", f"{AT}/{{buffer}}/dead", "read", dead, query=Page, answer=list[Letter]),
    Operation("GET", f"{AT}/{{buffer}}/dead/{{letter}}", "operate", letter, answer=Letter, errors=(404,)),
    Operation("POST", f"{AT}/{{buffer}}/dead/{{letter}}/replay", "operate", replay, body=Why, answer=Removed,
              repeatable=True, errors=(404, 409)),
    Operation("POST", f"{AT}/{{buffer}}/dead/{{letter}}/purge", "operate", purge, body=Why, answer=Removed,
              repeatable=True, errors=(404,)),
]  # fmt: skip
