"""Leases that travel: kept by their token alone, for a holder outside this process. Without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.flow import INTERRUPTED, Detach, Flow, ReplyLost, call
from holdfast.engine.limits import check_token
from holdfast.engine.status import Status
from holdfast.errors import LeaseLost
from holdfast.keys import Id
from holdfast.locks import flows
from holdfast.locks.spec import Spec


@dataclass(frozen=True, slots=True)
class Ticket:
    """One grant, as something to hand on. Nobody renews it but whoever has the token."""

    name: Id
    token: str = field(repr=False)
    """Proves ownership, for `renew_ticket` and `return_ticket`. Keep it secret."""
    fence: int
    seconds: float
    """How long it lasts from now, when it is answered, unless it is renewed."""


def grant(core: Core, spec: Spec, name: Id, wait: float | None) -> Flow[Ticket]:
    """Take it, and let the keeper know nothing of it."""
    hold = yield from flows.acquire(core, spec, wait, lambda: True, handed_on=True)
    core.end(hold)
    seconds = hold.deadline - core.clock()
    if hold.span < spec.ttl:  # handed over in the line, which is short until it is confirmed
        try:
            seconds = yield from renew(core, spec, hold.token)
        except INTERRUPTED:
            yield Detach(give_back(core, spec, hold.token))
            raise
    return Ticket(name, hold.token, hold.fence, max(0.0, seconds))


def renew(core: Core, spec: Spec, token: str) -> Flow[float]:
    """From now on it lasts its TTL again. Answers how long that is, counted from before it was asked."""
    place, asked = spec.place, core.clock()
    reply = yield from call(
        core.scripts.get(flows.RENEW), place.tag, (place.shard, place.lock),
        (check_token(token), int(spec.ttl * 1000)), clock=core.clock, until=asked + core.settings.retry_for,
        key=place.name,
    )  # fmt: skip
    if not reply[2]:
        raise lost(place.name, "locks/renew")
    return max(0.0, spec.ttl - (core.clock() - asked))


def give_back(core: Core, spec: Spec, token: str) -> Flow[bool]:
    """False: it had ended before, or the first of several requests ended it."""
    place = spec.place
    unanswered: list[ReplyLost] = []
    reply: list[Any] = yield from call(
        core.scripts.get("locks/release"), place.tag, place.keys, (check_token(token), place.channels),
        clock=core.clock, until=core.clock() + core.settings.retry_for, key=place.name, lost=unanswered,
    )  # fmt: skip
    return bool(reply[0] == Status.RELEASED.encode() or unanswered)


def lost(name: str, operation: str) -> LeaseLost:
    return LeaseLost(
        "treat what was done after its deadline as unprotected: nobody holds this with that token",
        reason="not held", operation=operation, key=name,
    )  # fmt: skip
