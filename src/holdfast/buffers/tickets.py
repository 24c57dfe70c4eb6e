"""Batches that travel: kept by their token alone, for a worker outside this process. Without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.buffers import holding
from holdfast.buffers.flows import ask, raw_id
from holdfast.buffers.holding import Terms
from holdfast.buffers.message import Message, Pair
from holdfast.buffers.spec import BufferSpec
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, ReplyLost, call
from holdfast.engine.limits import check_token
from holdfast.errors import ConfigurationError, LeaseLost
from holdfast.keys import Id


@dataclass(frozen=True, slots=True)
class BatchTicket:
    """A batch as something to hand on. Nobody renews its lease but whoever has the token."""

    id: str
    """The same each time the batch is handed out."""
    key: Id
    """The user."""
    token: str = field(repr=False)
    """Proves ownership. Keep it secret."""
    fence: int
    attempt: int
    seconds: float
    """How long it is its holder's from now, when it is answered, unless it is renewed."""
    messages: Sequence[Message]
    pairs: Sequence[Pair]
    waiting: int
    """Messages of the user that are not in it."""


def take(core: Core, spec: BufferSpec, user: Id, terms: Terms) -> Flow[BatchTicket | None]:
    taking = yield from holding.take(core, spec, spec.place(user), terms, lambda: True)
    if taking is None:
        return None
    hold = taking.hold
    core.end(hold)
    return BatchTicket(
        str(taking.id), holding.user_of(taking.place), hold.token, hold.fence, taking.attempt,
        max(0.0, hold.deadline - core.clock()), taking.messages, taking.pairs, taking.waiting,
    )  # fmt: skip


def renew(core: Core, spec: BufferSpec, user: Id, token: str, lease: float) -> Flow[float]:
    place, asked = spec.place(user), core.clock()
    reply = yield from ask(
        core, "buffers/renew", place, (place.shard.due, place.key), (check_token(token), int(lease * 1000))
    )
    if not reply[2]:
        raise _lost(place.user, "buffers/renew")
    return max(0.0, lease - (core.clock() - asked))


def ack(core: Core, spec: BufferSpec, user: Id, token: str, fence: int, ids: Sequence[str] | None) -> Flow[int]:
    place = spec.place(user)
    raw = [raw_id(one) for one in ids] if ids is not None else []
    if ids is not None and not raw:
        raise ConfigurationError("pass ids of messages, or nothing to acknowledge all: an empty list says neither")
    args = (place.user, place.base, check_token(token), fence, *raw)
    reply = yield from ask(core, "buffers/ack", place, (place.key,), args)
    if reply[0] == b"not_held":
        raise _lost(place.user, "buffers/ack")
    return int(reply[2]) if len(reply) > 2 else 0


def nack(
    core: Core, spec: BufferSpec, user: Id, token: str, delay: float, attempts: int, error: str
) -> Flow[bool]:  # fmt: skip
    place, unanswered = spec.place(user), list[ReplyLost]()
    text = error.encode("utf-8", "replace")[: holding.ERROR_TEXT]
    reply = yield from call(
        core.scripts.get("buffers/nack"), place.tag, (place.key,),
        (place.user, place.base, check_token(token), 0, int(delay * 1000), attempts, text), clock=core.clock,
        until=core.clock() + core.settings.retry_for, key=place.user, lost=unanswered,
    )  # fmt: skip
    if reply[0] == b"not_held" and not unanswered:  # else it is the echo of our own
        raise _lost(place.user, "buffers/nack")
    return bool(reply[0] == b"buried")


def _lost(user: str, operation: str) -> LeaseLost:
    return LeaseLost(
        "stop working on this batch: nobody holds it with that token, and it is handed to somebody again",
        reason="not held", operation=operation, key=user,
    )  # fmt: skip
