"""Reading a run's events: many readers of one process share what comes from the server.

Each write of an owner is pushed to every process that reads the run, with the id of the event before it. A feed keeps
the newest of them; a reader that is up to date takes them from there. One that is behind, and everybody after a gap,
asks the server, once for all that ask for the same. So a push that is lost delays a reader and never makes it miss
anything, and a slow reader holds up nobody.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from holdfast.engine.core import Core
from holdfast.engine.flow import Await, Flow, Listen
from holdfast.keys import Id
from holdfast.runs.flows import ask, gone
from holdfast.runs.record import START, Event, Position, end_event, parse_entries, position, shown, unpack_events
from holdfast.runs.spec import RunSpec

WINDOW = 1000
BYTES = 1_048_576
PAGE = 64
"""Events that a feed keeps, and their bytes; entries of the stream (each a write of the owner) in one answer."""
CHECK = 2.0
"""A reader that heard nothing for so long asks: the message, or the run's owner, may be lost."""
NEWS = "news"


class Feed:
    """The newest events of one run, in this process. Any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._window: deque[Event] = deque()
        self._bytes = 0
        self._first = START
        """The id before the first event in the window."""
        self._last: Position | None = None
        """The id of the newest event that is known; None: something may have been missed."""
        self._newest = START
        """The highest id that a push spoke of."""
        self.readers: dict[str, None] = {}
        self.subscribed = False
        self.asked_at = float("-inf")
        self.asking: set[Position] = set()
        self.pages: dict[Position, list[Event]] = {}

    def pushed(self, message: bytes) -> None:
        """`before id blob`; nothing: something may have been missed."""
        before, _, rest = message.partition(b" ")
        at, _, blob = rest.partition(b" ")
        with self._lock:
            # After a failover the newest ones may be forgotten, and no push speaks of them again.
            here = position(at.decode()) if at else START
            self._newest = max(self._newest, here) if at else START
            if at and self._last is not None and here <= self._last:
                return  # heard before: over another connection of this process
            self.pages.clear()
            if self._last is None or not blob or position(before.decode()) != self._last:
                self._forget()
            else:
                self._extend(unpack_events(here, blob), len(blob))
        self.wake()

    def miss(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._last = None
        self._window.clear()
        self._bytes = 0

    def _extend(self, events: list[Event], size: int) -> None:
        self._window.extend(events)
        self._bytes += size
        if events:
            self._last = position(events[-1].id)
        while self._window and (len(self._window) > WINDOW or self._bytes > BYTES):
            self._bytes -= self._bytes // len(self._window)  # about: they are alike
            self._first = position(self._window.popleft().id)

    def begin(self, after: Position, events: list[Event], last: Position, size: int) -> None:
        """The server told all that comes after `after`: from here on pushes are followed, unless one was faster."""
        with self._lock:
            if self._newest > last or (self._last is not None and self._last >= last):
                return
            self._forget()
            self._first, self._last = after, last
            self._extend(events, size)

    def after(self, seen: Position) -> list[Event] | None:
        """What comes after `seen`; None if that must be asked for."""
        with self._lock:
            if self._last is None or seen < self._first:
                return None
            if seen >= self._last:
                return []
            events: list[Event] = []
            for event in reversed(self._window):
                if position(event.id) <= seen:
                    break
                events.append(event)
        events.reverse()
        return events

    def wake(self) -> None:
        for token in list(self.readers):
            self._core.mailbox.wake(token, NEWS)


class Reader:
    """One reader of one run, at a position. `more` is a flow; `leave` must be called at the end."""

    def __init__(
        self, core: Core, spec: RunSpec, run: Id, after: str | None, timeout: float | None, keep_alive: float | None
    ) -> None:
        self._core = core
        self._spec = spec
        self._place = spec.place(run)
        self._seen = START if after is None else position(after)
        self._timeout = timeout
        self._keep_alive = keep_alive
        self._token = ""
        self._feed: Feed | None = None
        self._heard = core.clock()
        self._alive = core.clock()
        self.over = False

    def within(self, seconds: float | None) -> None:
        """The next `more` waits at most so long."""
        self._heard, self._timeout = self._core.clock(), None if seconds is None else max(0.0, seconds)

    def leave(self, driver: Any) -> None:
        """The last reader of a run ends the subscription. Any number of times."""
        feed, self._feed = self._feed, None
        if feed is None:
            return
        self._core.leave_feed(self._place.channel, feed, self._token, driver)

    def _join(self) -> Feed:
        core = self._core
        feed, self._token = core.join_feed(self._place.channel, lambda: Feed(core))
        self._feed = feed
        return feed

    def more(self) -> Flow[list[Event]]:
        """The next events, as many as there are; the last list ends with the run's end.

        Raises TimeoutError after `timeout` seconds without any, RunGone if there is no such run."""
        core = self._core
        feed, listen = self._feed, False
        if feed is None:
            feed, listen = self._join(), True
        while True:
            if listen and (yield Listen(self._spec.tag, self._place.channel)) and not feed.subscribed:
                feed.subscribed = True
                feed.miss()
            events = feed.after(self._seen)
            if events is None or (not events and core.clock() - feed.asked_at >= CHECK):
                events = yield from self._ask(feed)
            if events:
                return self._seen_now(events)
            if self.over:
                return []
            now = core.clock()
            if self._timeout is not None and now - self._heard >= self._timeout:
                raise TimeoutError(f"no event of run {self._place.run!r} for {self._timeout:g} s")
            if self._keep_alive is not None and now - self._alive >= self._keep_alive:
                self._alive = now
                return [Event(shown(self._seen), None, 0.0, "alive")]
            ends = [self._heard + self._timeout] if self._timeout is not None else []
            ends += [self._alive + self._keep_alive] if self._keep_alive is not None else []
            message = yield Await(self._token, max(0.001, min([CHECK, *(end - now for end in ends)])))
            listen = message is None

    def _seen_now(self, events: list[Event]) -> list[Event]:
        self._heard = self._alive = self._core.clock()
        self._seen = position(events[-1].id)
        self.over = events[-1].kind == "end"
        return events

    def _ask(self, feed: Feed) -> Flow[list[Event]]:
        """Ask the server, unless another reader does just that; then wait for its answer."""
        seen = self._seen
        if seen in feed.asking:
            yield Await(self._token, CHECK)
            return feed.pages.get(seen, [])
        feed.asking.add(seen)
        try:
            events, ended = yield from self._fetch(feed)
            feed.pages = {seen: events}
        finally:
            feed.asking.discard(seen)
            feed.wake()
        self.over = ended and not events
        return events

    def _fetch(self, feed: Feed) -> Flow[tuple[list[Event], bool]]:
        """What comes after `seen`, and whether the run has ended."""
        seen, core, place = self._seen, self._core, self._place
        args = (place.run, shown(seen), PAGE)
        reply = yield from ask(core, self._spec, "runs/events", (place.key, place.events), args, key=place.run)
        if reply[0] == b"missing":
            raise gone(self._spec, place, "runs/events")
        feed.asked_at = core.clock()
        events = parse_entries(reply[5], seen)
        last, dropped_to = position(reply[2].decode()), position(reply[3].decode())
        ended = len(reply) > 6
        if len(reply[5]) < PAGE:
            if ended and seen < last:
                events.append(end_event(last, reply[1], reply[6], reply[7] if len(reply) > 7 else None))
            # Not from further back than what was dropped: whoever comes from there must be told of it.
            feed.begin(max(seen, dropped_to), events, last, sum(len(fields[1]) for _, fields in reply[5]))
        if seen < dropped_to:
            events = [Event(shown(dropped_to), {"count": int(reply[4])}, dropped_to[0] / 1000, "dropped"), *events]
        return events, ended
