"""Ids: seen, claimed, confirmed, given back. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.engine.core import Core
from holdfast.engine.flow import INTERRUPTED, Await, Detach, Flow, Listen, Together, call
from holdfast.engine.keeper import Hold
from holdfast.errors import HoldfastError, Indeterminate, KeyMismatch, LeaseLost, Unavailable
from holdfast.events import Claimed, Filtered, Outage
from holdfast.once.spec import Place, Space

T = TypeVar("T")
AT_ONCE = 4096
"""Ids in one script: more would keep the server from others for too long."""
CHECK = 2.0
"""Who waits for somebody else's claim asks this often: the message may be lost."""
UNDO_FOR, UNDONE = 300.0, 16
"""For so long it is tried to take a mark back; of so many at once the next call of this process knows."""
RENEW = "once/renew"
DOWN = (Unavailable, Indeterminate)


def ask(core: Core, script: str, tag: str, keys: Sequence[Any], args: Sequence[Any], shown: str) -> Flow[list[Any]]:
    until = core.clock() + core.settings.retry_for
    return call(core.scripts.get(script), tag, keys, args, clock=core.clock, until=until, key=shown)


def in_groups(core: Core, space: Space, shards: Sequence[int], size: int = AT_ONCE) -> list[list[int]]:
    """Which of these go together in one script: on a Cluster those of one shard, elsewhere all."""
    groups: dict[int, list[int]] = {}
    for at, shard in enumerate(shards):
        groups.setdefault(shard if core.target.kind == "cluster" else 0, []).append(at)
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]


def all_or_raise(results: Sequence[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


def outage(core: Core, name: str, policy: str, error: HoldfastError, operation: str) -> bool:
    """What to say while the server cannot be asked: yes, no, or raise. Counted."""
    if core.events:
        core.events.emit(Outage(name, operation, policy))
    if policy == "raise":
        raise error
    return policy == "allow"


# -- seen -------------------------------------------------------------------------------------------------------------


def mark(core: Core, space: Space, ids: Sequence[Any], within: float, policy: str) -> Flow[list[bool]]:
    """Which of these are new, in one round trip for each shard touched; from now on none is. Twins count once.

    When it fails or is cancelled, what may have been marked is taken back, so that nothing counts as seen that nobody
    was told of."""
    places = [space.key(one) for one in ids]
    first = {key: at for at, (_, key) in reversed(list(enumerate(places)))}
    wanted = sorted(first.values())
    groups = in_groups(core, space, [places[at][0] for at in wanted])
    word = b"m" + core.new_op()
    life = max(1, int(within * 1000))
    batches = [[places[wanted[at]] for at in group] for group in groups]

    def one(script: str, batch: list[tuple[int, str]], args: Sequence[Any]) -> Flow[list[Any]]:
        return ask(core, script, space.tags[batch[0][0]], [key for _, key in batch], args, space.name)

    undone = core.undoing.get(space.name, {})
    args = (word, life, *list(undone)[:UNDONE])
    try:
        if len(batches) == 1:
            replies = [(yield from one("once/mark", batches[0], args))]
        else:
            replies = all_or_raise((yield Together([one("once/mark", batch, args) for batch in batches])))
    except INTERRUPTED as error:
        if policy != "allow" or not isinstance(error, DOWN):
            core.undoing.setdefault(space.name, {})[word] = None
            yield Detach(_undo(core, space, word, batches, min(within, UNDO_FOR)), patient=True)
        if not isinstance(error, DOWN):
            raise
        return [outage(core, space.name, policy, error, "once/mark")] * len(ids)
    new = [False] * len(ids)
    for group, reply in zip(groups, replies, strict=True):
        for at, letter in zip(group, reply[1], strict=True):
            new[wanted[at]] = letter == 49
    if core.events and ids:
        fresh = sum(new)
        core.events.emit(Filtered(space.name, fresh, len(ids) - fresh))
    return new


def _undo(core: Core, space: Space, word: bytes, batches: list[list[tuple[int, str]]], seconds: float) -> Flow[None]:
    """Take a mark back, for as long as it may come to life: a server that stood still executes what it was sent."""
    until = core.clock() + seconds

    def one(batch: list[tuple[int, str]]) -> Flow[list[Any]]:
        script, keys = core.scripts.get("once/forget"), [key for _, key in batch]
        return call(script, space.tags[batch[0][0]], keys, (word,), clock=core.clock, until=until, key=space.name)

    try:
        yield Together([one(batch) for batch in batches])
    finally:
        pending = core.undoing.get(space.name, {})
        pending.pop(word, None)
        if not pending:
            core.undoing.pop(space.name, None)


def forget(core: Core, space: Space, ids: Sequence[Any]) -> Flow[int]:
    places = list(dict.fromkeys(space.key(one) for one in ids))
    batches = [[places[at] for at in group] for group in in_groups(core, space, [shard for shard, _ in places])]
    asked = [
        ask(core, "once/forget", space.tags[batch[0][0]], [key for _, key in batch], (b"",), space.name)
        for batch in batches
    ]
    return sum(int(reply[1]) for reply in all_or_raise((yield Together(asked))))


# -- claimed ----------------------------------------------------------------------------------------------------------


class Waiters:
    """Those in this process who wait for one id. Any message wakes them all."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.readers: dict[str, None] = {}

    def pushed(self, message: bytes) -> None:
        for token in list(self.readers):
            self._core.mailbox.wake(token, "look")


class Begun(NamedTuple):
    """How asking for an id went: `mine` with a hold, `busy`, or `done` with what was left."""

    state: str
    hold: Hold | None = None
    result: bytes = b""


class Asking:
    """One caller who wants an id, and waits while somebody else works on it. `leave` must be called at the end."""

    def __init__(self, core: Core, place: Place, digest: bytes, lease: float, wait: float | None) -> None:
        self._core = core
        self._place = place
        self._digest = digest
        self._lease = lease
        self._wait = wait
        self._joined: tuple[Waiters, str] | None = None

    def leave(self, driver: Any) -> None:
        if self._joined is not None:
            feed, token = self._joined
            self._joined = None
            self._core.leave_feed(self._place.channel, feed, token, driver)

    def begin(self, home: Callable[[], bool]) -> Flow[Begun]:
        """Cancelled in the middle, it gives back what may have been granted."""
        core, place = self._core, self._place
        token = core.new_token()
        until = None if self._wait is None else core.clock() + self._wait
        again = False
        while True:
            asked = core.clock()
            try:
                args = (token, self._digest, int(self._lease * 1000))
                reply = yield from ask(core, "once/begin", place.tag, (place.key,), args, place.shown)
            except INTERRUPTED:
                yield Detach(drop(core, place, token))
                raise
            if reply[0] == b"granted" and core.clock() - asked > self._lease / 2 and not again:
                again = True  # it took long to be heard: half of the lease is over, as far as we know
                continue
            if reply[0] != b"busy":
                return self._answer(reply, token, asked, home)
            left = float("inf") if until is None else until - core.clock()
            if left <= 0:
                return self._said(Begun("busy"))
            if self._joined is None:
                # First listen, then ask again: it may have ended in between.
                self._joined = core.join_feed(place.channel, lambda: Waiters(core))
                yield Listen(place.tag, place.channel, min(left, CHECK))
                continue
            yield Await(self._joined[1], max(0.001, min(left, CHECK, int(reply[1]) / 1000 + 0.005)))

    def _answer(self, reply: list[Any], token: str, asked: float, home: Callable[[], bool]) -> Begun:
        core, place = self._core, self._place
        if reply[0] == b"mismatch":
            raise KeyMismatch(
                "use another key: this one was used for a call with other arguments",
                operation="once/begin", key=place.shown,
            )  # fmt: skip
        if reply[0] == b"found":
            return self._said(Begun("done", None, reply[1]))
        hold = Hold(
            name=place.shown, token=token, fence=int(reply[1]), key=place.key,
            group=(RENEW, place.tag, core.keys.base(place.tag) + "none"), ttl=self._lease, span=self._lease,
            asked=asked, started=core.clock(), max_hold=None, renews=True, home=home,
        )  # fmt: skip
        hold.what = "claim"
        hold.back = lambda: drop(core, place, token)
        core.begin(hold)
        return self._said(Begun("mine", hold))

    def _said(self, begun: Begun) -> Begun:
        if self._core.events:
            outcome = {"mine": "acquired", "busy": "rejected", "done": "duplicate"}[begun.state]
            self._core.events.emit(Claimed(self._place.space, outcome))
        return begun


def drop(core: Core, place: Place, token: str) -> Flow[bool]:
    reply = yield from ask(core, "once/drop", place.tag, (place.key,), (token, place.channel), place.shown)
    return bool(reply[0] == b"released")


def confirm(core: Core, place: Place, hold: Hold, result: bytes, within: float) -> Flow[None]:
    """It is done. Raises LeaseLost if it is somebody else's by now, Indeterminate if no answer came in time: then it
    may be worked on again when the lease is over. A cancelled one goes on in the background."""
    if hold.lost_reason or hold.over:
        raise lost(hold, "once/confirm")
    core.end(hold)  # from here on it is not renewed: a renewal that comes after its end must not call it lost
    args = (hold.token, result, max(1, int(within * 1000)), place.channel)

    def request() -> Flow[list[Any]]:
        until = max(hold.deadline, core.clock() + core.settings.call_timeout)
        return call(
            core.scripts.get("once/confirm"), place.tag, (place.key,), args, clock=core.clock, until=until,
            key=place.shown,
        )  # fmt: skip

    try:
        reply = yield from request()
    except (Unavailable, Indeterminate) as error:
        raise Indeterminate(
            "expect it to be worked on again when its lease is over, unless it got through: no answer came",
            operation="once/confirm", key=place.shown,
        ) from error  # fmt: skip
    except INTERRUPTED:
        yield Detach(request())
        raise
    if reply[0] == b"not_held":
        hold.lost_reason = "expired" if core.clock() >= hold.deadline else "taken away"
        core.end_lost(hold)
        raise lost(hold, "once/confirm")


def give_up(core: Core, place: Place, hold: Hold) -> Flow[None]:
    """Let others have it. What cannot be given back ends by itself."""
    if hold.over or hold.lost_reason:
        return
    core.end(hold)
    try:
        yield from drop(core, place, hold.token)
    except (Unavailable, Indeterminate) as error:
        core.warn(f"{place.shown}: not given back, so it is free when its lease is over: {error}")
    except INTERRUPTED:
        yield Detach(drop(core, place, hold.token))
        raise


def lost(hold: Hold, operation: str) -> LeaseLost:
    reason = hold.lost_reason or "it has ended here"
    return LeaseLost(
        f"stop working on this id: somebody else may have it ({reason})",
        reason=reason, operation=operation, key=hold.name,
    )  # fmt: skip
