"""Random observations and random steps of two workers, on a real server whose clock is moved, against plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from monitor_desk import BASE, CLOCK, NAME, matched, queue

from holdfast import Change, Subscriber
from holdfast.monitor import flows
from holdfast.monitor.flows import DeadDelivery, Page, Telling
from holdfast.monitor.matching import wants

URL = "https://example.com"
LEASE = 10_000
BACKLOG = 12
"""Few: the log goes on while subscribers wait for what is in it."""
SUBSCRIBERS = {
    one.name: one
    for one in (
        Subscriber("all", "webhook", URL, first=True, max_changes=3, timeout=5.0),
        Subscriber("news", "call", "news", max_changes=2, timeout=5.0),
        Subscriber("rare", "webhook", URL, min_change={"n": 3}, interval=20.0, first=True, timeout=5.0),
        Subscriber("feed", "webhook", URL, sources=("feed",), first=True, timeout=5.0),
    )
}
WAITS = {"told": 0, "again": 5_000, "dead": 5_000, "later": 7_000, "back": 0}

things = st.sampled_from([("web", "a"), ("web", "b"), ("feed", "a"), ("feed", ("c", 1))])
states = st.sampled_from([{"n": 0}, {"n": 1}, {"n": 5}, {"n": 5, "m": 1}])
times = st.one_of(st.none(), st.integers(1000, 1012))
observations = st.tuples(things, states, times)
names = st.sampled_from(sorted(SUBSCRIBERS))


@dataclass
class Thing:
    state: Any
    seen: int
    """Microseconds."""


@dataclass
class Box:
    """What the reference knows of one subscriber."""

    queue: list[str] = field(default_factory=list)
    due: int | None = None
    token: str = ""
    ended: str = ""
    count: int = 0
    attempt: int = 0
    failed: int = 0
    bad: int = 0
    told: int = 0
    heard: list[str] = field(default_factory=list)


class MonitorMachine(RuleBasedStateMachine):
    """Four things, four subscribers, two workers."""

    server: redis.Redis
    hf: Any

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.now = 1_900_000_000_000
        self._set_clock()
        self.spec = self.hf.monitor(NAME, backlog=BACKLOG)._spec
        self.things: dict[Any, Thing] = {}
        self.log: list[Change] = []
        self.ids: list[str] = []
        self.cursor = "0"
        self.holder: str = ""
        self.held_until = 0
        self.pages: dict[str, Page] = {}
        self.boxes = {name: Box() for name in SUBSCRIBERS}
        self.tellings: list[Telling] = []
        self.letters: list[DeadDelivery] = []
        self.purged: list[tuple[str, str]] = []
        self.replayed = False
        self.last: tuple[bytes, Any, Any] | None = None

    def _run(self, make: Any, *args: Any) -> Any:
        return self.hf._open.run(make(self.hf._core, self.spec, *args))

    def _set_clock(self) -> None:
        self.server.set(CLOCK, self.now, ex=3600)

    # -- observing ----------------------------------------------------------------------------------------------

    def _judge(self, thing: Any, state: Any, when: int | None) -> tuple[str, Any]:
        known = self.things.get(thing)
        if known is None:
            self.things[thing] = Thing(state, self.now * 1000 if when is None else when * 1_000_000)
            return "first", None
        observed = max(self.now * 1000, known.seen + 1) if when is None else when * 1_000_000
        if observed < known.seen or (observed == known.seen and state != known.state):
            return "older", None
        known.seen = observed
        if state == known.state:
            return "unchanged", None
        before, known.state = known.state, state
        return "changed", before

    def _logged(self, thing: Any, outcome: str, before: Any, state: Any, change: str) -> None:
        assert not self.ids or change > self.ids[-1], "the number of a change did not grow"
        self.ids.append(change)
        self.log.append(Change(change, NAME, *thing, outcome, before, state, 0.0, 0.0))

    @rule(many=st.lists(observations, min_size=1, max_size=4))
    def observe(self, many: list[Any]) -> None:
        seen = [self.spec.seen(*thing, state, when) for thing, state, when in many]
        operation = self.hf._core.new_op()
        self.hf._core._ops.append(operation)
        answers = self._run(flows.observe, seen)
        for (thing, state, when), answer in zip(many, answers, strict=True):
            if answer.outcome == "full":
                assert len(self._unread()) >= BACKLOG, "there was room"
                continue
            outcome, before = self._judge(thing, state, when)
            assert (answer.outcome, answer.before) == (outcome, before)
            assert (answer.change is not None) == (outcome in ("first", "changed"))
            if answer.change:
                self._logged(thing, outcome, before, state, answer.change)
        # What found no room was not stored: a repeat is as good as new.
        one = len(many) == 1 and answers[0].outcome != "full"
        self.last = (operation, many[0], answers[0]) if one else None

    @precondition(lambda self: self.last is not None)
    @rule()
    def the_reply_was_lost(self) -> None:
        """The same request again, before anybody else observes."""
        assert self.last is not None
        operation, (thing, state, when), answer = self.last
        self.hf._core._ops.append(operation)
        (again,) = self._run(flows.observe, [self.spec.seen(*thing, state, when)])
        assert again == answer, "a repeat is answered otherwise"
        if answer.outcome == "unchanged":
            self._judge(thing, state, when)

    @rule(thing=things)
    def forget(self, thing: Any) -> None:
        assert self._run(flows.forget, [thing]) == (self.things.pop(thing, None) is not None)
        self.last = None

    # -- reading ------------------------------------------------------------------------------------------------

    @rule(who=st.sampled_from(["w0", "w1"]), count=st.sampled_from([1, 3, 200]))
    def peek(self, who: str, count: int) -> None:
        page = self._run(flows.peek, "deliver", who, count, LEASE / 1000, True)
        if self.holder not in ("", who) and self.held_until > self.now:
            assert page is None, "two read at the same time"
            return
        rest = self._unread()
        assert [change.id for change in page.changes] == rest[:count]
        assert page.begin.decode() == self.cursor
        self.pages[who] = page
        self.holder, self.held_until = (who, self.now + LEASE) if rest else ("", 0)

    def _unread(self) -> list[str]:
        return [one for one in self.ids if one > self.cursor.rjust(16, "0")]

    @precondition(lambda self: self.pages)
    @rule(who=st.sampled_from(["w0", "w1"]))
    def pump(self, who: str) -> None:
        """Also once more: its reply was lost. Also of a page that somebody else has dealt with meanwhile."""
        page = self.pages.get(who)
        if page is None or page.begin == page.end:
            return
        begin, end = page.begin.decode(), page.end.decode()
        wanted = matched(page, *SUBSCRIBERS.values())
        assert self._run(flows.pump, "deliver", who, page, wanted) == (self.cursor in (begin, end))
        if self.holder == who:
            self.holder = ""
        if self.cursor == begin:
            self.cursor = end
            for subscriber, _, changes in wanted:
                self._queued(subscriber, [change.id for change in changes])

    @rule(who=st.sampled_from(["w0", "w1"]))
    def read(self, who: str) -> None:
        """As a worker does, without anything between."""
        self.peek(who, 200)
        if self.holder == who:
            self.pump(who)

    def _queued(self, subscriber: Subscriber, ids: list[str]) -> None:
        box = self.boxes[subscriber.name]
        box.queue += ids
        if box.due is None:
            pause = int(subscriber.interval * 1000)
            box.due = max(self.now, box.told + pause)

    # -- telling ------------------------------------------------------------------------------------------------

    @rule(most=st.sampled_from([1, 2, 10]), slow=st.sampled_from([0, 1, 10]))
    def take(self, most: int, slow: int) -> None:
        ready = {name for name, box in self.boxes.items() if box.due is not None and box.due <= self.now}
        found = self._run(flows.take, ["news"], True, most, slow, 15.0)
        taken = [telling.subscriber for telling in found.tellings]
        assert set(taken) <= ready, "told before its time, or by two at once"
        assert len(taken) == len(set(taken)) <= most
        slowly = {name for name in ready if self.boxes[name].bad and SUBSCRIBERS[name].sink != "call"}
        assert len(slowly & set(taken)) <= slow
        if most == 10:
            assert len(taken) == len(ready - slowly) + min(slow, len(slowly)), "one that is due was passed over"
        for telling in found.tellings:
            self._taken(telling)

    def _taken(self, telling: Telling) -> None:
        subscriber, box = SUBSCRIBERS[telling.subscriber], self.boxes[telling.subscriber]
        if box.count == 0:
            box.count, box.attempt = min(len(box.queue), subscriber.max_changes), 0
        box.attempt += 1
        assert [change.id for change in telling.changes] == box.queue[: box.count], "not what is next, or gone"
        assert (telling.attempt, telling.failures) == (box.attempt, box.failed)
        assert (telling.first.rjust(16, "0"), telling.number) == (box.queue[0], box.count)
        assert telling.slow == (box.bad > 0 and subscriber.sink != "call")
        for change in telling.changes:
            (same,) = (one for one in self.log if one.id == change.id)
            assert (change.source, change.key, change.kind) == (same.source, same.key, same.kind)
            assert (change.before, change.after) == (same.before, same.after)
        box.token, box.due = telling.token, self.now + LEASE
        self.tellings.append(telling)

    @precondition(lambda self: self.tellings)
    @rule(back=st.integers(0, 3), outcome=st.sampled_from(["told", "told", "told", *WAITS]), twice=st.booleans())
    def done(self, back: int, outcome: str, twice: bool) -> None:
        """Of what was taken last, or before: its time may be over. `twice`: its reply was lost."""
        telling = self.tellings[-1 - back % len(self.tellings)]
        box, wait = self.boxes[telling.subscriber], WAITS[outcome]
        if outcome == "told":
            wait = int(SUBSCRIBERS[telling.subscriber].interval * 1000)
        for _ in range(1 + twice):
            valid = telling.token in (box.token, box.ended)
            assert self._run(flows.done, telling, outcome, wait / 1000, "why") == valid
            if box.token == telling.token:
                self._ended(telling.subscriber, box, outcome, wait)
                box.token, box.ended = "", telling.token

    def _ended(self, name: str, box: Box, outcome: str, wait: int) -> None:
        if outcome == "again":
            box.failed += 1
            box.bad += 1
        elif outcome in ("told", "dead"):
            ids, box.queue = box.queue[: box.count], box.queue[box.count :]
            if outcome == "told":
                box.heard += ids
                box.bad = 0
            else:
                box.bad += 1
                self.letters = self._run(flows.letters, "", 1000)
                assert self.letters[-1].subscriber == name
                assert [change.id for change in self.letters[-1].changes] == ids
            box.told = self.now
            box.count = box.attempt = box.failed = 0
        elif outcome == "later":
            if box.failed + box.attempt <= 1:
                box.count = box.attempt = box.failed = 0
            else:
                box.attempt -= 1
        box.due = self.now + wait if box.queue else None

    @precondition(lambda self: self.letters)
    @rule(number=st.integers(0, 3), again=st.booleans())
    def letter(self, number: int, again: bool) -> None:
        one = self.letters.pop(number % len(self.letters))
        ids = [change.id for change in one.changes]
        assert self._run(flows.replay, one.id, again) == len(ids)
        assert self._run(flows.replay, one.id, again) == 0
        if again:
            self.replayed = True
            box = self.boxes[one.subscriber]
            box.queue += ids
            box.due = self.now if box.due is None else box.due
        else:
            self.purged += [(one.subscriber, change) for change in ids]

    @rule(ms=st.sampled_from([1, 400, 5_000, 10_001, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self._set_clock()
        if self.holder and self.held_until <= self.now:  # that key ends by the true time
            self.server.delete(f"{BASE}p:deliver")
            self.holder = ""

    # -- what must always be so ---------------------------------------------------------------------------------

    @invariant()
    def the_queues_are_what_they_should_be(self) -> None:
        for name, box in self.boxes.items():
            assert queue(self.server, name) == box.queue

    def teardown(self) -> None:
        """In the end everybody has heard of everything it wants, once, and what is dead is kept."""
        keys = self.server.keys()
        assert not [key for key in keys if self.server.pttl(key) == -1], "a key without a life"
        self.now += 100_000
        self._set_clock()
        self.server.delete(f"{BASE}p:deliver")
        self.holder = ""
        self.peek("w0", 200)
        self.pump("w0")
        for _ in range(200):
            self.take(10, 10)
            open_ones = [one for one in self.tellings if self.boxes[one.subscriber].token == one.token]
            if not open_ones and not any(box.queue for box in self.boxes.values()):
                break
            for telling in open_ones:
                self.tellings.append(telling)
                self.done(0, "told", False)
            self.time_passes(60_000)
        truth = [thing.state for thing in self.things.values()]
        assert [self._run(flows.look, [thing])[0][1] for thing in self.things] == truth
        for name, subscriber in SUBSCRIBERS.items():
            wanted = [change.id for change in self.log if wants(subscriber, change)]
            dead = [change.id for one in self.letters if one.subscriber == name for change in one.changes]
            gone = [change for who, change in self.purged if who == name]
            heard = self.boxes[name].heard
            assert sorted([*heard, *dead, *gone]) == wanted, f"{name} was not told of each change once"
            assert self.replayed or heard == sorted(heard), f"{name} was told in another order"
