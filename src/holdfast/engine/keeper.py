"""The keeper: one thread that renews every lease of a client, many per round trip, on connections of its own.

It is a thread so that a blocked event loop loses no lease, and has its own connections so that a busy one delays none.
Holds are kept in buckets of time: adding and removing one is a dictionary operation, whatever their number, and a
lease that is released before its first renewal costs nothing else. The keeper is also who says that a lease is lost:
when the server says so, when its deadline passes without an answer, when it was held for `max_hold`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.clock import Clock
from holdfast.engine.flow import Flow, call
from holdfast.engine.scripts import Scripts
from holdfast.errors import HoldfastError
from holdfast.events import ClockJumped, Events, Renewed, RenewFailed

T = TypeVar("T")

BUCKET = 0.05
TICK = 0.25
IDLE_TICKS = 8
CHUNK = 256
JUMP = 1.0
ORPHAN = 5.0
RETRY = 0.5
SENTINEL_CHECK = 1.0
FIRST = 0.5


def _tell(watchers: Iterable[Callable[[], None]]) -> None:
    """A callback that raises must not keep the others from being called, nor end the thread that renews."""
    for watcher in watchers:
        try:
            watcher()
        except Exception:
            logging.getLogger("holdfast").exception("a callback about a lease failed")


class Hold:
    """What the process knows of one right it holds: until when, and how to keep it. No I/O."""

    __slots__ = (
        "_lock", "_watchers", "abandoned", "adopted", "back", "bucket", "deadline", "ends", "entry", "fence",
        "given_up", "group", "home", "key", "lost_reason", "name", "not_before", "often", "over", "renewing", "renews",
        "span",
        "started", "stop_reason", "stopping", "token", "ttl", "what",
    )  # fmt: skip

    def __init__(
        self, *, name: str, token: str, fence: int, key: str, group: tuple[str, str, str], ttl: float, span: float,
        asked: float, started: float, max_hold: float | None, renews: bool, home: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.name = name
        self.token = token
        self.fence = fence
        self.key = key
        self.group = group
        """Script that renews, shard tag, shard key: holds with the same group share a round trip."""
        self.ttl = ttl
        self.span = span
        """How long the current grant lasts: a hand-over is short until it is confirmed."""
        self.started = started
        self.ends = started + max_hold if max_hold is not None else None
        self.deadline = asked + span
        """Counted from before the request was sent, so it is never later than the server's."""
        if self.ends is not None:
            self.deadline = min(self.deadline, self.ends)
        self.renews = renews
        self.home = home
        """False when the loop or thread that held this is gone."""
        self.entry: Any = None
        """Under which lock and owner it is found for re-entry."""
        self.back: Callable[[], Flow[Any]] | None = None
        """How it is given back when its client closes; None: as a lock is released."""
        self.what = "lease"
        self.often = float("inf")
        """Renewed after so many seconds at the latest, where a renewal is also how the holder is told something."""
        self.stopping = False
        """Somebody wants whoever holds this to stop."""
        self.stop_reason = ""
        self.bucket = 0
        self.renewing = False
        self.not_before = 0.0
        """After a renewal that failed: no new one before this."""
        self.adopted = False
        self.abandoned = False
        """Nobody can release it any more. A lease adopts it at once; one that is never adopted is abandoned too."""
        self.given_up = False
        self.over = False
        self.lost_reason = ""
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []

    def lose(self, reason: str) -> bool:
        """Mark as lost and tell whoever watches. The first reason stays. Any thread."""
        with self._lock:
            if self.over or self.lost_reason:
                return False
            self.lost_reason = reason
            watchers, self._watchers = self._watchers, []
        _tell(watchers)
        return True

    def ask_to_stop(self, reason: str = "") -> None:
        """The server says that whoever holds this should stop. It stays held. Any thread, any number of times."""
        with self._lock:
            if self.over or self.lost_reason or self.stopping:
                return
            self.stopping, self.stop_reason = True, reason
            watchers = list(self._watchers)
        _tell(watchers)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when lost, and when asked to stop (now, if it is). Answers a function that stops watching."""
        with self._lock:
            now = bool(self.lost_reason or self.stopping)
            if not self.lost_reason:
                self._watchers.append(callback)
        if now:
            _tell([callback])
        return lambda: self._unwatch(callback)

    def _unwatch(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._watchers:
                self._watchers.remove(callback)

    def next_look(self) -> float:
        """When the keeper must see to it: at the next renewal, or at the end."""
        if self.renewing or self.given_up or not (self.renews or self.span < self.ttl):
            return self.deadline
        return min(self.deadline, max(self.deadline - self.span + min(self.span / 3, self.often), self.not_before))


class Keeper:
    """Start it with the first hold; it ends with `close`."""

    def __init__(
        self, *, clock: Clock, scripts: Scripts, events: Events, driver: Callable[[], AsyncDriver],
        on_lost: Callable[[Hold], None], watch_primary: bool,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._scripts = scripts
        self._events = events
        self.new_driver = driver
        self._on_lost = on_lost
        self._watch_primary = watch_primary
        self._lock = threading.Lock()
        self._buckets: dict[int, dict[Hold, None]] = {}
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closing = False
        self._parked = False
        self._next = 0.0
        self._offset: float | None = None
        self._chores: list[asyncio.Future[None]] = []

    # -- any thread ---------------------------------------------------------------------------------------------

    def add(self, hold: Hold) -> None:
        when = hold.next_look()
        with self._lock:
            if self._thread is None:
                self._start()
            self._put(hold, when)
            wake = self._parked or when < self._next
        if wake:
            self._wake_up()

    def remove(self, hold: Hold) -> None:
        hold.over = True
        with self._lock:
            self._take(hold)

    def _put(self, hold: Hold, when: float) -> None:
        number = int(when / BUCKET)
        hold.bucket = number
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
        bucket[hold] = None

    def _take(self, hold: Hold) -> None:
        bucket = self._buckets.get(hold.bucket)
        if bucket is not None:
            bucket.pop(hold, None)
            if not bucket:
                del self._buckets[hold.bucket]

    def holds(self) -> list[Hold]:
        with self._lock:
            return [hold for bucket in self._buckets.values() for hold in bucket]

    def start(self) -> None:
        if self._thread is not None:
            return  # before the lock: a finaliser may come here in a thread that has it
        with self._lock:
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
        self._thread.start()

    def _wake_up(self) -> None:
        self._ready.wait()
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:
            return  # the loop is closed: nothing is held any more

    def submit(self, work: Callable[[AsyncDriver], Awaitable[T]]) -> Future[T]:
        """Run something on the keeper's loop, with its connections."""
        self.start()
        self._ready.wait()

        async def go() -> T:
            return await work(self._driver)

        return asyncio.run_coroutine_threadsafe(go(), self._loop)

    @property
    def alive(self) -> bool:
        return not self._closing and self._thread is not None and self._thread.is_alive()

    def call(self, function: Callable[[AsyncDriver], None]) -> None:
        """Call something on the keeper's loop, soon."""
        self.start()
        self._ready.wait()
        try:
            self._loop.call_soon_threadsafe(function, self._driver)
        except RuntimeError:
            return  # the loop is closed

    def every(self, seconds: float, work: Callable[[AsyncDriver], Awaitable[None]]) -> Callable[[], None]:
        """Do something on the keeper's loop soon, and then every so many seconds, until it is closed.

        Answers a function that ends it; what is under way goes on."""
        over = threading.Event()

        async def go(driver: AsyncDriver) -> None:
            pause = min(seconds, FIRST)
            while True:
                await asyncio.sleep(pause)
                if over.is_set():
                    return
                try:
                    await work(driver)
                except Exception:  # whatever it is: the next one is made as ever
                    logging.getLogger("holdfast").exception("work in the background failed; it goes on")
                pause = seconds * (0.9 + random.random() * 0.2)  # noqa: S311

        def begin(driver: AsyncDriver) -> None:
            self._chores.append(asyncio.ensure_future(go(driver)))

        self.call(begin)
        return over.set

    def close(self, timeout: float) -> None:
        thread = self._thread
        self._closing = True
        if thread is None or not thread.is_alive():
            return
        self._wake_up()
        thread.join(timeout)

    def after_fork(self) -> list[Hold]:
        """In the child: forget the parent's thread and give up its holds."""
        holds = [hold for bucket in self._buckets.values() for hold in bucket]
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._buckets = {}
        self._thread = None
        self._parked = False
        self._chores = []
        return holds

    # -- the keeper's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._driver = self.new_driver()
        self._ready.set()
        watcher = self._loop.create_task(self._follow_primary()) if self._watch_primary else None
        idle = 0
        while not self._closing:
            self._wake.clear()
            due = self._due()
            self._look(due)
            idle = 0 if self._buckets or due else idle + 1
            await self._rest(park=idle > IDLE_TICKS)
        for chore in (*self._chores, *([watcher] if watcher is not None else [])):
            chore.cancel()
        await self._driver.close()

    async def _rest(self, *, park: bool) -> None:
        """Sleep until the next bucket, a wake-up, or one tick: ticking spares the callers most wake-ups."""
        now = self._clock()
        with self._lock:
            nearest = min(self._buckets) * BUCKET if self._buckets else None
            rest = TICK if nearest is None else min(TICK, max(0.0, nearest - now))
            self._parked = park and not self._buckets
            self._next = now + rest
        if self._parked:
            await self._wake.wait()
            self._parked = False
            return
        timer = self._loop.call_later(rest, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    def _due(self) -> list[Hold]:
        limit = int(self._clock() / BUCKET)
        due: list[Hold] = []
        with self._lock:
            for number in [n for n in self._buckets if n <= limit]:
                due.extend(self._buckets.pop(number))
        return due

    def _look(self, due: Iterable[Hold]) -> None:
        now = self._clock()
        renewals: dict[tuple[str, str, str], list[Hold]] = {}
        for hold in due:
            if hold.over:
                continue
            if now >= hold.deadline:
                self._lose(hold, self._end_reason(hold))
                continue
            when = hold.next_look()
            if when == hold.deadline:  # nothing to renew, or no time to: only its end to wait for
                self._again(hold, now)
            elif hold.ends is not None and hold.deadline >= hold.ends:
                self._again(hold, now, hold.deadline)
            elif hold.abandoned or not hold.home() or (not hold.adopted and now - hold.started > ORPHAN):
                hold.given_up = True
                self._again(hold, now)
            elif when <= now:
                hold.renewing = True
                renewals.setdefault(hold.group, []).append(hold)
                self._again(hold, now)
            else:
                self._again(hold, now)
        for group, holds in renewals.items():
            for start in range(0, len(holds), CHUNK):
                self._driver.background(self._renew(group, holds[start : start + CHUNK]))

    def _again(self, hold: Hold, now: float, when: float | None = None) -> None:
        """Back into a bucket; if that is the current one, a timer of its own."""
        when = hold.next_look() if when is None else when
        if int(when / BUCKET) <= int(now / BUCKET):
            self._loop.call_later(max(0.0, when - now), self._look, [hold])
            return
        with self._lock:
            if not hold.over:
                self._put(hold, when)
        if when < self._next:
            self._wake.set()

    @staticmethod
    def _end_reason(hold: Hold) -> str:
        if hold.given_up:
            return "abandoned"
        if hold.ends is not None and hold.deadline >= hold.ends:
            return "max_hold"
        return "expired" if not hold.renews else "not renewed in time"

    def _lose(self, hold: Hold, reason: str) -> None:
        with self._lock:
            self._take(hold)
        if hold.lose(reason):
            self._on_lost(hold)

    async def _renew(self, group: tuple[str, str, str], holds: list[Hold]) -> None:
        script, tag, shard = group
        asked = self._clock()
        keys: list[str] = [shard]
        args: list[str | int] = []
        spans = []
        for hold in holds:
            span = hold.ttl if hold.ends is None else min(hold.ttl, hold.ends - asked)
            spans.append(span)
            keys.append(hold.key)
            args += (hold.token, max(1, int(span * 1000)))
        until = min(hold.deadline for hold in holds)
        try:
            reply = await self._driver.run(
                call(
                    self._scripts.get(script),
                    tag,
                    keys,
                    args,
                    clock=self._clock,
                    until=until,
                    key=holds[0].name,
                )
            )
        except HoldfastError as error:
            for hold in holds:
                if self._events:
                    self._events.emit(RenewFailed(hold.name, hold.fence, str(error)))
                hold.not_before = self._clock() + min(RETRY, hold.span / 10)
                self._rebucket(hold, hold.deadline, hold.span)
            return
        self._check_clock(int(reply[1]) / 1000, asked)
        for hold, span, kept in zip(holds, spans, reply[2:], strict=True):
            if hold.over:
                continue
            if kept:
                if kept > 1:
                    hold.ask_to_stop()
                self._rebucket(hold, asked + span, span)
                if self._events:
                    self._events.emit(Renewed(hold.name, hold.fence, span))
            else:
                self._lose(hold, "taken away")

    def _rebucket(self, hold: Hold, deadline: float, span: float) -> None:
        now = self._clock()
        with self._lock:
            self._take(hold)
        hold.renewing = False
        if deadline > hold.deadline:
            hold.deadline, hold.span = deadline, span
        if not hold.over and not hold.lost_reason:
            self._again(hold, now)

    def _check_clock(self, server: float, local: float) -> None:
        """Leases end by the server's clock. When it jumps against ours, holders may overlap: say so."""
        offset = server - local
        if self._offset is not None and abs(offset - self._offset) > JUMP + self._clock() - local:
            if self._events:
                self._events.emit(ClockJumped(offset - self._offset))
            self._offset = offset
        elif self._offset is None:
            self._offset = offset

    async def _follow_primary(self) -> None:
        """A primary that Sentinel has replaced may go on answering: ask the Sentinels every second."""
        while True:
            await asyncio.sleep(SENTINEL_CHECK)
            await self._driver.refresh("sentinel")
