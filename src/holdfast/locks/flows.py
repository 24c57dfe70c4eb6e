"""The lock operations, without I/O. See `engine/flow.py` for what a flow is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import ReplyError

from holdfast.engine.core import Core
from holdfast.engine.flow import INTERRUPTED, Await, Detach, Flow, Listen, NotSent, ReplyLost, Send, Together, call
from holdfast.engine.keeper import Hold
from holdfast.engine.resp import pack
from holdfast.engine.status import Status
from holdfast.errors import Indeterminate, LeaseLost, NotAcquired, NotReplicated, Unavailable, WouldDeadlock
from holdfast.events import Expired, Granted, Refused, Released, TakenOver, Waited
from holdfast.locks.spec import Spec

Home = Callable[[], bool]

RENEW = "locks/renew"
WAIT_OVER = "wait ran out"
_GRANTED = Status.GRANTED.encode()
_BUSY = Status.BUSY.encode()


def acquire(core: Core, spec: Spec, wait: float | None, home: Home, *, handed_on: bool = False) -> Flow[Hold]:
    """Take the lock, waiting in its queue if asked to.

    Every request carries the same token: a repeated one asks again and never takes twice. Whatever ends this early,
    a time-out, an error or a cancellation, gives back what may have been granted and the place in the queue."""
    token = core.new_token()
    started = core.clock()
    if wait != 0:
        core.mailbox.expect(token)
    try:
        outcome = yield from _ask_until(core, spec, wait, home, token, started, handed_on)
        if isinstance(outcome, str):
            if wait != 0:  # a try leaves nothing behind
                yield from _give_back(core, spec, token)
        elif spec.replicas:
            yield from _confirm_replicas(core, spec, outcome)
    except INTERRUPTED:
        yield Detach(_give_back(core, spec, token))
        raise
    finally:
        core.mailbox.forget(token)
    if isinstance(outcome, str):
        raise _refused(core, spec, started, outcome)
    core.begin(outcome)
    return outcome


def _refused(core: Core, spec: Spec, started: float, reason: str) -> NotAcquired:
    waited = core.clock() - started
    if core.events:
        core.events.emit(Refused(spec.place.name, waited, reason))
    return NotAcquired(
        f"try later or wait longer: somebody else has it ({reason})",
        operation="locks/acquire", key=spec.place.name, elapsed=waited,
    )  # fmt: skip


def _ask_until(
    core: Core, spec: Spec, wait: float | None, home: Home, token: str, started: float, handed_on: bool
) -> Flow[Hold | str]:  # fmt: skip
    """Ask, and if queued wait for the signal, until granted. Text: why not."""
    clock, settings, place = core.clock, core.settings, spec.place
    give_up = math.inf if wait is None else started + wait
    lease = 0 if wait == 0 else int(settings.waiter_lease * 1000)
    patience = settings.retry_for if wait is None else min(settings.retry_for, max(wait, settings.call_timeout))
    script = core.scripts.get("locks/acquire")
    args = (
        token, spec.weight, spec.limit, int(spec.ttl * 1000), lease, "f" if spec.fair else "b", core.owner,
        place.channels,
    )  # fmt: skip
    first = True
    while True:
        asked = clock()
        reply = yield from call(
            script, place.tag, place.keys, args, clock=clock, until=asked + patience, key=place.name
        )
        if reply[0] == _GRANTED:
            return _granted(
                core, spec, token, int(reply[1]), int(reply[2]) / 1000, asked, started, home, reply, handed_on
            )
        if reply[0] == _BUSY:
            return f"busy for up to {int(reply[1]) / 1000:.3f} s more"
        rank, remaining = int(reply[1]), int(reply[2]) / 1000
        if first and core.events:
            core.events.emit(Waited(place.name, rank))
        first = False
        if clock() >= give_up:
            return WAIT_OVER
        pause = min(_pause(min(settings.waiter_lease, spec.ttl), rank, remaining), max(0.0, give_up - clock()))
        # A subscription that takes its time must not cost the place in the queue: ask again meanwhile.
        if (yield Listen(place.tag, place.channels + core.client_id, pause)):
            continue  # a grant may have come between the request and the subscription
        message = yield Await(token, min(pause, give_up - clock()))
        if message is not None and message.startswith("grant "):
            _, _, fence, ms = message.split(" ")
            return _granted(core, spec, token, int(fence), int(ms) / 1000, asked, started, home, None, handed_on)
        if clock() >= give_up:
            return WAIT_OVER


def _pause(span: float, rank: int, remaining: float) -> float:
    """How long to wait for a signal before asking again.

    Asking keeps the place in the queue, and finds out about a holder that died. A hand-over counts from the last time
    we asked, so most of its `span` must be left then. The first in the line looks when the holder's time is up; the
    others, so as not to come as a herd, only to show that they live."""
    pause = span / 3 * (0.85 + random.random() * 0.15)  # noqa: S311
    if rank == 0 and remaining > 0:
        pause = min(pause, remaining + 0.002)
    return pause


def _granted(
    core: Core, spec: Spec, token: str, fence: int, span: float, asked: float, started: float, home: Home,
    reply: Sequence[Any] | None, handed_on: bool,
) -> Hold:  # fmt: skip
    """`asked` is from before the request after which the grant was made, so the deadline is never too late."""
    now = core.clock()
    place = spec.place
    if core.events:
        if core.events.observed:
            core.events.emit(Granted(place.name, fence, now - started, reply is None, handed_on))
        elif core.tally is not None:  # only counted, and then an object for each would be a tenth of the cost
            core.tally.timed("granted", "wait", now - started)
        if reply is not None and reply[3]:
            owner = reply[4].decode("utf-8", "replace")
            core.events.emit(Expired(place.name, int(reply[3]), owner))
            core.events.emit(TakenOver(place.name, fence, owner))
    return Hold(
        name=place.name, token=token, fence=fence, key=place.lock, group=(RENEW, place.tag, place.shard),
        ttl=spec.ttl, span=span, asked=asked, started=now, max_hold=spec.max_hold, renews=spec.renew, home=home,
    )  # fmt: skip


def _give_back(core: Core, spec: Spec, token: str) -> Flow[str]:
    """Leave the queue and drop the grant, if there is one. What cannot be reached ends by itself."""
    place = spec.place
    try:
        reply = yield from call(
            core.scripts.get("locks/release"), place.tag, place.keys, (token, place.channels), clock=core.clock,
            until=core.clock() + core.settings.call_timeout, key=place.name,
        )  # fmt: skip
    except (Unavailable, Indeterminate):
        return ""
    return str(reply[0].decode())


def _confirm_replicas(core: Core, spec: Spec, hold: Hold) -> Flow[None]:
    """Write once more on a connection of its own and WAIT there: it counts replicas that have that write."""
    place = spec.place
    script = core.scripts.get(RENEW)
    renew = script.pack((place.shard, place.lock), (hold.token, int(spec.ttl * 1000)))
    wait = pack(b"WAIT", spec.replicas, int(spec.replica_timeout * 1000))
    try:
        confirmed = yield Send(place.tag, script.pack_load() + renew + wait, replies=3, alone=True)
    except (NotSent, ReplyLost) as error:
        confirmed = error
    if isinstance(confirmed, (ReplyError, Exception)) or confirmed < spec.replicas:
        raise NotReplicated(
            f"check the replicas: {confirmed} of {spec.replicas} confirmed in {spec.replica_timeout:g} s",
            operation="locks/acquire", key=place.name,
        )  # fmt: skip


def release(core: Core, spec: Spec, hold: Hold) -> Flow[None]:
    """Give the lock back; the next live waiter is granted in the same step.

    Raises LeaseLost if it was no longer held, Indeterminate if no answer came: then it ends by itself at its deadline.
    A release that is cancelled goes on in the background."""
    place = spec.place
    started = core.clock()
    over = hold.lost_reason
    if over:
        core.end(hold)
        if over != "forked":  # then the parent has it, and goes on holding it
            yield Detach(_give_back(core, spec, hold.token))
        raise lost_error(hold, "locks/release")
    hold.over = True  # from here on nobody may call it lost; the books are closed while the server works
    unanswered: list[ReplyLost] = []
    flow = call(
        core.scripts.get("locks/release"), place.tag, place.keys, (hold.token, place.channels), clock=core.clock,
        until=min(started + core.settings.retry_for, max(hold.deadline, started + core.settings.call_timeout)),
        key=place.name, lost=unanswered,
    )  # fmt: skip
    try:
        reply = yield from flow
        core.end(hold)
    except (Unavailable, Indeterminate) as error:
        core.end(hold)
        raise Indeterminate(
            f"go on: it ends by itself in at most {max(0.0, hold.deadline - core.clock()):.1f} s. "
            "The release got no answer",
            operation="locks/release", key=place.name, elapsed=core.clock() - started,
        ) from error  # fmt: skip
    except INTERRUPTED:
        core.end(hold)
        yield Detach(_give_back(core, spec, hold.token))
        raise
    now = core.clock()
    status = reply[0].decode()
    # After a lost reply "not held" is the echo of our own release, as long as the lease had not run out by then.
    done = status == Status.RELEASED or (status == Status.NOT_HELD and unanswered and now < hold.deadline)
    if not done:
        hold.over = False
        hold.lose("expired" if now >= hold.deadline or status == Status.EXPIRED else "taken away")
        core.end_lost(hold)
        raise lost_error(hold, "locks/release")
    if core.events.observed:
        core.events.emit(Released(place.name, hold.fence, now - hold.started))
    elif core.tally is not None:
        core.tally.timed("released", "hold", now - hold.started)


def lost_error(hold: Hold, operation: str) -> LeaseLost:
    return LeaseLost(
        f"treat what was done after its deadline as unprotected: the lease is lost ({hold.lost_reason})",
        reason=hold.lost_reason, operation=operation, key=hold.name,
    )  # fmt: skip


def would_deadlock(name: str, advice: str) -> WouldDeadlock:
    return WouldDeadlock(
        f"{advice}: the caller would wait for itself",
        operation="locks/acquire", key=name,
    )  # fmt: skip


def try_all(core: Core, specs: Sequence[Spec], home: Home) -> Flow[list[Hold | None]]:
    """Try every lock at once, in one round trip. None where somebody else has it.

    If one fails for another reason, what was granted is given back and that error is raised."""
    holds: list[Hold | None] = [None] * len(specs)

    def one(at: int) -> Flow[None]:
        holds[at] = yield from acquire(core, specs[at], 0, home)

    try:
        results = yield Together([one(at) for at in range(len(specs))])
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, NotAcquired):
                raise result
    except INTERRUPTED:
        # Cancelled in the middle, some may be granted already: they are in `holds`, wherever the others are.
        yield Detach(release_all(core, specs, holds))
        raise
    return holds


def acquire_all(core: Core, specs: Sequence[Spec], wait: float | None, home: Home) -> Flow[list[Hold]]:
    """Take every lock or none. `specs` are in the one order that everybody uses.

    First all at once. Where one is taken, those behind it are given back before waiting for it: whoever waits holds
    only locks that come earlier in the order, so no circle of waiters can form."""
    started = core.clock()
    holds: list[Hold | None] = yield from try_all(core, specs, home)
    if None not in holds:
        return [hold for hold in holds if hold is not None]
    kept = holds.index(None)
    held: list[Hold | None] = holds[:kept]
    try:
        yield from release_all(core, specs[kept:], holds[kept:])
        for spec in specs[kept:]:
            left = None if wait is None else max(0.0, wait - (core.clock() - started))
            held.append((yield from acquire(core, spec, left, home)))
    except NotAcquired:
        yield from release_all(core, specs, held)  # who is told that nothing is held can rely on it
        raise
    except INTERRUPTED:
        yield Detach(release_all(core, specs, held))
        raise
    return [hold for hold in held if hold is not None]


def release_all(core: Core, specs: Sequence[Spec], holds: Sequence[Hold | None]) -> Flow[list[Any]]:
    """Give all back in one round trip. Answers None or the error for each. Cancelled, it goes on in the background."""
    pairs = [(spec, hold) for spec, hold in zip(specs, holds, strict=False) if hold is not None]
    try:
        results = yield Together([release(core, spec, hold) for spec, hold in pairs])
    except INTERRUPTED:
        # Those that have begun see to themselves. A task that is cancelled before its first step never begins.
        rest = [(spec, hold) for spec, hold in pairs if not hold.over]
        if rest:
            yield Detach(release_all(core, [spec for spec, _ in rest], [hold for _, hold in rest]))
        raise
    return list(results)


def release_tokens(core: Core) -> Flow[None]:
    """Give back whatever this client still holds: it is closing."""
    script = core.scripts.get("locks/release")
    until = core.clock() + core.settings.call_timeout
    calls: list[Flow[Any]] = []
    for hold in list(core.holds.values()):
        core.end(hold)
        if hold.back is not None:
            calls.append(hold.back())
            continue
        _, tag, _ = hold.group
        base = core.keys.base(tag)
        kind_and_name = hold.key.removeprefix(base)
        keys = (hold.key, f"{base}q.{kind_and_name}", f"{base}shard")
        calls.append(call(script, tag, keys, (hold.token, f"{base}sig:"), clock=core.clock, until=until, key=hold.name))
    if calls:
        yield Together(calls)
