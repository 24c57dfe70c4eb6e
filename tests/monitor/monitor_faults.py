"""Operations of a monitor that meet faults, what must be so afterwards, and a receiver that remembers ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import redis
from monitor_desk import BASE, Clock, Desk, matched, queue

from holdfast import Subscriber
from holdfast.engine.flow import Flow, ReplyLost, Send
from holdfast.monitor import flows
from holdfast.monitor.flows import Telling
from support.faults import Plan, install

EAR = Subscriber("ear", "call", "ear", first=True)
EAST = Subscriber("east", "webhook", "https://example.com", first=True)
WINDOW = 300.0


class LatePlan(Plan):
    """Knows one fault more: `late`, a request that is executed after the one that repeats it."""

    told: BaseException | None = None

    def around(self, flow: Flow[Any]) -> Flow[Any]:
        held: list[Send] = []
        inner = super().around(self._holding(flow, held))
        send: Any = None
        while True:
            try:
                effect = inner.send(send)
            except StopIteration as stop:
                return stop.value
            send = yield effect
            if held and isinstance(effect, Send):
                yield held.pop()

    def _holding(self, flow: Flow[Any], held: list[Send]) -> Flow[Any]:
        """Below the other faults: what is late was sent, as far as its sender knows."""
        send: Any = None
        throw: BaseException | None = None
        while True:
            try:
                effect = flow.throw(throw) if throw is not None else flow.send(send)
            except StopIteration as stop:
                return stop.value
            send, throw = None, None
            if isinstance(effect, Send) and self.faults.get(self.step) == "late":
                self.hits.append((self.step, "late", "Send"))
                self.step += 1
                held.append(effect)
                throw = ReplyLost("late")
                continue
            try:
                send = yield effect
            except BaseException as error:
                throw = error


class Receiver:
    """Remembers the id of each message: what comes again counts once, and must be the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], list[str]] = {}
        self.heard: dict[str, list[str]] = {"ear": [], "east": []}

    def accept(self, telling: Telling) -> None:
        ids = [change.id for change in telling.changes]
        known = self._known.setdefault((telling.subscriber, telling.first, telling.number), ids)
        assert known == ids, "the same message has other changes"
        if known is ids:
            self.heard[telling.subscriber] += ids


class World:
    """A subject whose operation meets the faults, and a bystander who looks and goes on."""

    def __init__(self, subject: Desk, by: Desk, server: redis.Redis, clock: Clock, plan: LatePlan) -> None:
        self.subject, self.by, self.server, self.clock, self.plan = subject, by, server, clock, plan
        self.receiver = Receiver()
        self.again: Callable[[], Awaitable[Any]] | None = None
        """What the bystander does if the subject was told that it may not have happened."""
        self.struck: set[str] = set()
        self.purged: list[str] = []
        self.error: BaseException | None = None
        """What the subject was told."""

    def arm(self) -> None:
        install(self.subject.hf, self.plan)

    # -- doing

    async def see(self, *states: Any, key: Any = "a") -> None:
        for state in states:
            self.clock.move(0.001)
            await self.by.observe("web", key, state)

    async def queued(self, *states: Any) -> None:
        await self.see(*states)
        await self.by.read(EAR, EAST)

    async def taken(self, desk: Desk) -> Telling:
        """Of the function; the other one waits."""
        found = await desk.flow(flows.take, ("ear",), False, 10, 0, 15.0)
        (telling,) = found.tellings
        return telling  # type: ignore[no-any-return]

    async def letter(self) -> str:
        telling = await self.taken(self.by)
        assert await self.by.done(telling, "dead", error="no")
        (found,) = await self.by.dead_letters()
        return str(found.id)

    # -- looking

    def log(self) -> list[str]:
        return [number.decode()[:-2].rjust(16, "0") for number, _ in self.server.xrange(f"{BASE}log")]

    def queue(self, name: str) -> list[str]:
        return queue(self.server, name)

    def no_doubles(self) -> None:
        for name in ("ear", "east"):
            waiting = self.queue(name)
            assert len(set(waiting)) == len(waiting), f"a change is twice in the queue of {name}"

    def all_end(self) -> None:
        keys = self.server.keys()
        with self.server.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.pttl(key)
            eternal = [key for key, life in zip(keys, pipe.execute(), strict=True) if life == -1]
        assert not eternal, f"keys without a life: {eternal}"

    # -- the rest of the story, by the bystander

    async def finish(self) -> None:
        """Whatever was under way is over, and everything is read and told."""
        for _ in range(20):
            self.clock.move(60)
            self.server.delete(f"{BASE}p:deliver")  # as its time is over
            read = await self.by.read(*(one for one in (EAR, EAST) if one.name not in self.struck))
            self.no_doubles()
            found = (await self.by.take(calls=("ear",))).tellings
            for telling in found:
                self.receiver.accept(telling)
                assert await self.by.done(telling)
            if not read and not found:
                return
        raise AssertionError("it never ends")

    async def check(self, truth: list[str] | None = None) -> None:
        truth = self.log() if truth is None else truth
        letters = {change.id for one in await self.by.dead_letters() for change in one.changes}
        for name in {"ear", "east"} - self.struck:
            heard = self.receiver.heard[name]
            assert len(set(heard)) == len(heard), f"{name} was told of a change twice"
            kept = [one for one in truth if name != "ear" or (one not in letters and one not in self.purged)]
            assert sorted(heard) == kept, f"{name} was not told of each change once"
            assert name == "ear" or heard == kept, f"{name} was told in another order"
            assert not self.queue(name)


# -- operations -------------------------------------------------------------------------------------------------------


async def observe_first(w: World) -> None:
    def go(desk: Desk) -> Any:
        return desk.observe("web", "a", 1, observed_at=1000)

    w.again = lambda: go(w.by)
    w.arm()
    seen = await go(w.subject)
    assert (seen.outcome, seen.change) == ("first", w.log()[-1])


async def observe_changed(w: World) -> None:
    await w.see(0)
    w.clock.move(1)
    w.again = lambda: w.by.observe("web", "a", 1)
    w.arm()
    seen = await w.subject.observe("web", "a", 1)
    assert (seen.outcome, seen.change, seen.before) == ("changed", w.log()[-1], 0)


async def observe_unchanged(w: World) -> None:
    await w.see(0)
    w.arm()
    assert (await w.subject.observe("web", "a", 0)).outcome == "unchanged"
    assert len(w.log()) == 1


async def observe_many(w: World) -> None:
    many = [("web", "a", 1, 1000), ("web", "b", 1, 1000), ("web", "a", 2, 1001), ("web", "b", 0, 999), ("web", "c", 1)]
    w.again = lambda: w.by.observe_many(many)
    w.arm()
    seen = await w.subject.observe_many(many)
    assert [one.outcome for one in seen] == ["first", "first", "changed", "older", "first"]
    assert [one.change for one in seen if one.change] == w.log()


async def observe_held_back(w: World) -> None:
    await w.see(0, 1, 0)
    w.clock.move(1)
    w.again = lambda: w.by.observe("web", "a", 1)
    w.arm()
    seen = await w.subject.observe("web", "a", 1)
    assert (seen.outcome, seen.change) == ("repeated", None)


async def settle(w: World) -> None:
    await w.see(0, 1, 0, 1)
    w.clock.move(WINDOW)
    w.again = w.by.settle
    w.arm()
    await w.subject.settle()
    assert len(w.log()) == 4


async def forget(w: World) -> None:
    await w.see(1)
    w.again = lambda: w.by.forget("web", "a")
    w.arm()
    await w.subject.forget("web", "a")
    assert await w.by.get("web", "a") is None


async def peek(w: World) -> None:
    await w.see(0, 1)
    w.arm()
    page = await w.subject.peek()
    assert [change.id for change in page.changes] == w.log()
    assert await w.by.peek() is None, "two read at the same time"


async def pump(w: World) -> None:
    await w.see(0, 1)
    page = await w.subject.peek()
    w.arm()
    assert await w.subject.pump(page, matched(page, EAR, EAST))
    assert w.queue("ear") == w.queue("east") == w.log()


async def take(w: World) -> None:
    await w.queued(0, 1)
    w.arm()
    found = await w.subject.take(calls=("ear",))
    if len(w.plan.hits) == 0:
        assert len(found.tellings) == 2
    for telling in found.tellings:
        w.receiver.accept(telling)
    w.plan.faults = {}
    for telling in found.tellings:
        assert await w.subject.done(telling)


def ending(outcome: str, failures: int) -> Callable[[World], Awaitable[None]]:
    async def end(w: World) -> None:
        await w.queued(0, 1)
        telling = await w.taken(w.subject)
        await w.queued(2)
        if outcome == "told":
            w.receiver.accept(telling)
        w.arm()
        assert await w.subject.done(telling, outcome, error="no")
        assert len(w.queue("ear")) == (1 if outcome in ("told", "dead") else 3)
        w.plan.faults = {}
        roll = await w.by.flow(flows.roll, ["ear"])
        assert roll.waiting[0].failures == failures, "a failure was counted twice"
        assert len(await w.by.dead_letters()) == (outcome == "dead")

    return end


async def too_late(w: World) -> None:
    """Its time is over, and another one tells it by now."""
    await w.queued(0, 1)
    late = await w.taken(w.subject)
    w.clock.move(60)
    telling = await w.taken(w.by)
    w.arm()
    assert not await w.subject.done(late, "dead", error="no")
    w.plan.faults = {}
    w.receiver.accept(telling)
    assert await w.by.done(telling)


async def enlist(w: World) -> None:
    other = Subscriber("other", "call", "other", first=True)
    w.arm()
    await w.subject.enlist(other)
    roll = await w.by.flow(flows.roll)
    assert set(roll.functions) == {"ear", "other"}


async def strike(w: World) -> None:
    await w.queued(0, 1)
    w.again = lambda: w.by.unsubscribe("ear")
    w.struck.add("ear")
    w.arm()
    await w.subject.unsubscribe("ear")
    assert not [key for key in w.server.keys(f"{BASE}*") if key.endswith(b":ear") and b"call" not in key]


async def replay(w: World) -> None:
    await w.queued(0, 1)
    letter = await w.letter()
    await w.queued(2)
    w.arm()
    assert await w.subject.replay(letter) > 0
    assert len(w.queue("ear")) == 3
    assert not await w.by.dead_letters()


async def purge(w: World) -> None:
    await w.queued(0, 1)
    letter = await w.letter()
    w.purged = w.log()
    w.again = lambda: w.by.purge(letter)
    w.arm()
    assert await w.subject.purge(letter)
    assert not await w.by.dead_letters()


async def look(w: World) -> None:
    await w.queued(0, 1)
    w.arm()
    assert await w.subject.get("web", "a") == 1
    assert (await w.subject.status()).waiting == {"ear": 2}


OPERATIONS: dict[str, Callable[[World], Awaitable[None]]] = {
    "observe_first": observe_first, "observe_changed": observe_changed, "observe_unchanged": observe_unchanged,
    "observe_many": observe_many, "observe_held_back": observe_held_back, "settle": settle, "forget": forget,
    "peek": peek, "pump": pump, "take": take, "told": ending("told", 0), "again": ending("again", 1),
    "dead": ending("dead", 1), "later": ending("later", 0), "back": ending("back", 0), "too_late": too_late,
    "enlist": enlist, "strike": strike, "replay": replay, "purge": purge, "look": look,
}  # fmt: skip
WITH_WINDOW = ("settle", "observe_held_back")
