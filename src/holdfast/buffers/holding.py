"""Taking a batch, and what may happen to it: acknowledged, given back, lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.buffers.flows import ask, raw_id, say_aged, shown
from holdfast.buffers.message import Message, Pair, Unreadable, parse_messages, parse_pairs
from holdfast.buffers.spec import BufferSpec, Place, Shard
from holdfast.engine.core import Core
from holdfast.engine.flow import INTERRUPTED, Detach, Flow, call
from holdfast.engine.keeper import Hold
from holdfast.errors import ConfigurationError, Indeterminate, LeaseLost, NewerPayload, NotAcquired, Unavailable
from holdfast.events import Acked, Buried, Dropped, Nacked, Taken
from holdfast.keys import decode

Home = Callable[[], bool]
RENEW = "buffers/renew"
LATER = 5.0
"""After how long a batch of a newer version is offered again: by then a newer worker may have looked."""
ERROR_TEXT = 2000


class Terms(NamedTuple):
    """How a batch is taken."""

    lease: float
    most: int
    attempts: int
    max_hold: float | None = None


class Taking(NamedTuple):
    """A batch as it was taken."""

    place: Place
    id: int
    attempt: int
    waiting: int
    messages: list[Message]
    pairs: list[Pair]
    hold: Hold


class Look(NamedTuple):
    """What a look at a shard found."""

    taking: Taking | None
    next_ms: int
    """Until the shard should be looked at again; -1: nobody waits."""
    idle: int
    """Workers that wait to be woken there."""
    configured: int
    """Does the shard know the triggers?"""


def take(core: Core, spec: BufferSpec, place: Place, terms: Terms, home: Home) -> Flow[Taking | None]:
    """What is ready of one user, as a batch; None if nothing is. Raises NotAcquired if a batch is in flight.

    Cancelled in the middle, it gives back what may have been taken."""
    core.use("buffer", spec.name)
    while True:
        token, asked = core.new_token(), core.clock()
        args = (place.user, place.base, token, int(terms.lease * 1000), terms.most, terms.attempts)
        try:
            reply = yield from ask(core, "buffers/take", place, (place.key,), args)
        except INTERRUPTED:
            yield Detach(hand_back(core, place, token, 0, 0.0, 0, ""))
            raise
        if reply[0] == b"empty":
            _say_removed(core, spec, reply[1], reply[2])
            return None
        if reply[0] == b"busy":
            raise NotAcquired(
                f"try again later: a batch of this user is in flight for up to {reply[1] / 1000:.3f} s",
                operation="buffers/take", key=shown(place),
            )  # fmt: skip
        taken = yield from settle_taken(core, spec, place, reply, token, asked, terms, home)
        if taken is not None:
            return taken


def claim(core: Core, spec: BufferSpec, shard: Shard, terms: Terms, worker: str, home: Home) -> Flow[Look]:
    """A batch of whoever is most overdue in a shard, if anybody is.

    Cancelled in the middle, it gives back what may have been taken."""
    token, asked = core.new_token(), core.clock()
    lease = int(terms.lease * 1000)
    until = asked + core.settings.retry_for
    args = (shard.base, token, lease, terms.most, terms.attempts, worker)
    try:
        try:
            reply = yield from call(
                core.scripts.get("buffers/claim"), shard.tag, (shard.due,), args, clock=core.clock, until=until
            )
        except Indeterminate:
            asked = core.clock()
            reply = yield from _find(core, shard, token, lease, until)
    except INTERRUPTED:
        yield Detach(_hand_back_claim(core, shard, token, lease))
        raise
    if reply[0] != b"taken":
        if len(reply) > 5:
            _say_removed(core, spec, reply[4], reply[5])
        return Look(None, *map(int, reply[1:4])) if len(reply) > 3 else Look(None, 0, 1, 1)
    place = place_in(shard, reply[1].decode())
    taken = yield from settle_taken(core, spec, place, reply, token, asked, terms, home)
    return Look(taken, int(reply[11]), 1, 1)


def _find(core: Core, shard: Shard, token: str, lease: int, until: float) -> Flow[list[Any]]:
    """The batch that a claim took whose reply was lost."""
    return call(
        core.scripts.get("buffers/find"), shard.tag, (shard.due,), (shard.base, token, lease), clock=core.clock,
        until=until,
    )  # fmt: skip


def place_in(shard: Shard, part: str) -> Place:
    return Place(part, shard.tag, shard.base, f"{shard.base}u:{part}", shard)


def settle_taken(
    core: Core, spec: BufferSpec, place: Place, reply: list[Any], token: str, asked: float, terms: Terms, home: Home
) -> Flow[Taking | None]:
    """Decode a batch and begin to hold it. None if nothing in it can be read: that is quarantined."""
    batch, fence, attempt, left, waiting = (int(number) for number in reply[2:7])
    messages, bad = parse_messages(reply[8], reply[10])
    _say_removed(core, spec, reply[12], reply[13])
    newer = [one for one in bad if isinstance(one.error, NewerPayload)]
    try:
        pairs, damaged = parse_pairs(reply[9])
    except NewerPayload as error:
        newer = [Unreadable("", error)]
    try:
        if newer:
            yield from hand_back(core, place, token, batch, LATER, 0, "")
            raise newer[0].error
        if bad:
            yield from _quarantine(core, spec, place, token, batch, bad)
    except NewerPayload:
        raise
    except INTERRUPTED:
        yield Detach(hand_back(core, place, token, 0, 0.0, 0, ""))
        raise
    if damaged and core.events:
        core.events.emit(Dropped(spec.name, "conversation pair", "unreadable", damaged))
    if bad and not messages:
        return None
    hold = Hold(
        name=f"{spec.name}:{shown(place)}", token=token, fence=fence, key=place.key,
        group=(RENEW, place.tag, place.shard.due), ttl=terms.lease, span=left / 1000, asked=asked,
        started=core.clock(), max_hold=terms.max_hold, renews=True, home=home,
    )  # fmt: skip
    hold.what = "batch"
    hold.back = lambda: hand_back(core, place, token, batch, 0.0, 0, "")
    core.begin(hold)
    if core.events:
        core.events.emit(Taken(spec.name, shown(place), str(batch), attempt, len(messages), fence))
    return Taking(place, batch, attempt, waiting, messages, pairs, hold)


def _say_removed(core: Core, spec: BufferSpec, aged: int, buried: list[Any]) -> None:
    """Whoever finds messages past their life, or batches whose holders were lost too often, says so."""
    say_aged(core, spec, aged)
    if core.events:
        for at in range(0, len(buried), 4):
            user, batch, attempt, why = buried[at : at + 4]
            core.events.emit(Buried(spec.name, str(decode(user)), str(batch), attempt, why.decode()))


def _quarantine(
    core: Core, spec: BufferSpec, place: Place, token: str, batch: int, bad: list[Unreadable]
) -> Flow[None]:
    """What cannot be read becomes a dead letter, so that its neighbours flow on."""
    args = (
        place.user,
        place.base,
        token,
        batch,
        str(bad[0].error)[:ERROR_TEXT],
        *(bytes.fromhex(one.id) for one in bad),
    )
    yield from ask(core, "buffers/quarantine", place, (place.key,), args)
    if core.events:
        core.events.emit(Dropped(spec.name, "message", "unreadable", len(bad)))


def ack(core: Core, spec: BufferSpec, taking: Taking, ids: Sequence[str] | None) -> Flow[int]:
    """Remove the batch, or some of its messages. Answers how many of the batch are left.

    Raises LeaseLost if it is no longer held: then it is, or will be, somebody else's. Raises Indeterminate if no answer
    came; a redelivered batch has the same id. A cancelled one goes on in the background."""
    place, hold = taking.place, taking.hold
    if hold.lost_reason:
        raise lost(hold, "buffers/ack")
    raw = [raw_id(one) for one in ids] if ids is not None else []
    if ids is not None and not raw:
        raise ConfigurationError("pass ids of messages, or nothing to acknowledge all: an empty list says neither")
    args: list[Any] = [place.user, place.base, hold.token, hold.fence, *raw]

    def request() -> Flow[list[Any]]:
        now, s = core.clock(), core.settings
        until = min(now + s.retry_for, max(hold.deadline, now + s.call_timeout))
        script = core.scripts.get("buffers/ack")
        return call(script, place.tag, (place.key,), args, clock=core.clock, until=until, key=shown(place))

    try:
        reply = yield from request()
    except (Unavailable, Indeterminate) as error:
        raise Indeterminate(
            "expect the same batch again, by its id: the acknowledgement got no answer",
            operation="buffers/ack", key=shown(place),
        ) from error  # fmt: skip
    except INTERRUPTED:
        if ids is None:
            core.end(hold)
        yield Detach(request())
        raise
    if reply[0] == b"not_held":
        if hold.lose("expired" if core.clock() >= hold.deadline else "taken away"):
            core.end_lost(hold)
        raise lost(hold, "buffers/ack")
    left = int(reply[2]) if len(reply) > 2 else 0
    if left == 0:
        core.end(hold)
    if core.events and len(reply) > 1:
        core.events.emit(Acked(spec.name, shown(place), str(taking.id), int(reply[1]), core.clock() - hold.started))
    return left


def nack(
    core: Core, spec: BufferSpec, taking: Taking, delay: float, attempts: int, error: str, *, lost_by: str = ""
) -> Flow[bool]:
    """Give it back, to be taken again after `delay`. Answers True if it went to the dead letters instead.

    `lost_by`: somebody may still be at work on it, and is told so before it is given back."""
    place, hold = taking.place, taking.hold
    if hold.lost_reason:
        core.end(hold)
        return False
    if lost_by:
        hold.lose(lost_by)
    core.end(hold)
    try:
        status = yield from hand_back(core, place, hold.token, taking.id, delay, attempts, error)
    except INTERRUPTED:
        yield Detach(hand_back(core, place, hold.token, taking.id, delay, attempts, error))
        raise
    if core.events:
        user, batch = shown(place), str(taking.id)
        if status == b"buried":
            core.events.emit(Buried(spec.name, user, batch, taking.attempt, error[:ERROR_TEXT]))
        elif status == b"returned":
            core.events.emit(Nacked(spec.name, user, batch, taking.attempt, delay))
    return bool(status == b"buried")


def hand_back(core: Core, place: Place, token: str, batch: int, delay: float, attempts: int, error: str) -> Flow[bytes]:
    text = error.encode("utf-8", "replace")[:ERROR_TEXT]
    args = (place.user, place.base, token, batch, int(delay * 1000), attempts, text)
    try:
        reply = yield from ask(core, "buffers/nack", place, (place.key,), args)
    except (Unavailable, Indeterminate):
        return b"unknown"  # it comes free when its lease ends
    return bytes(reply[0])


def _hand_back_claim(core: Core, shard: Shard, token: str, lease: int) -> Flow[None]:
    reply = yield from _find(core, shard, token, lease, core.clock() + core.settings.call_timeout)
    if reply[0] == b"taken":
        yield from hand_back(core, place_in(shard, reply[1].decode()), token, int(reply[2]), 0.0, 0, "")


def lost(hold: Hold, operation: str) -> LeaseLost:
    return LeaseLost(
        f"stop working on this batch: it is lost ({hold.lost_reason}) and is handed to somebody again",
        reason=hold.lost_reason, operation=operation, key=hold.name,
    )  # fmt: skip


def about(spec: BufferSpec, taking: Taking) -> dict[str, object]:
    """What its span says."""
    return {
        "collection": spec.name, "key": str(user_of(taking.place)), "batch": str(taking.id),
        "attempt": taking.attempt, "fence": taking.hold.fence, "messages": len(taking.messages),
    }  # fmt: skip


def user_of(place: Place) -> Any:
    return decode(place.user)
