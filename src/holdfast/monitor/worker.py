"""Tells subscribers what has changed, and keeps history. Runs in the processes that run `work`.

The log is read by one process at a time for each kind of reader: one puts changes into the queues of the subscribers
that want them, the other stores them as history. Whoever has read says so in the same step, so a process that dies has
done all of it or nothing. Queues are served by all processes, a subscriber by one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.engine.digest import id_digest
from holdfast.events import Delivered, Dropped, NotDelivered
from holdfast.monitor import flows
from holdfast.monitor.flows import Page, Round, Telling
from holdfast.monitor.matching import quiet_for, retry_in, wants
from holdfast.monitor.outgoing import Outgoing
from holdfast.monitor.parts import MonitorParts
from holdfast.monitor.record import Change, Delivery, DeliveryFailed, Push, Sink, Store, Subscriber
from holdfast.monitor.roster import Roster, apart
from holdfast.monitor.sinks import make_call, make_sink
from holdfast.monitor.spec import MonitorSpec

PAGE, ENTRIES = 200, 20_000
READ_LEASE = 15.0
"""Changes that are read at once; a process that died while it read is followed by another after so long."""
CHECK = 2.0
"""Nobody relies on messages: each loop looks this often by itself."""
LEASE = 15.0
"""For which a subscriber is this process's, where its queue does not say how long telling it may take."""
LIVES = 100
"""Attempts, also those whose process died, after which a message is given up: it may be what ends them."""
PRUNE_EVERY, KEEP_DAYS = 3600.0, 30.0
LOG_DELAY, LOG_MOST = 0.5, 10_000


class Bell:
    """Wakes the loops of one worker. Any thread."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.events = [asyncio.Event() for _ in range(count)]

    def pushed(self, message: bytes) -> None:
        """1: there are changes to read. 2: somebody is to be told. Nothing: something may have been missed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.ring, *{b"1": (0, 1), b"2": (2,)}.get(message, ()))

    def ring(self, *which: int) -> None:
        for number in which or range(len(self.events)):
            self.events[number].set()


async def rung(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.001, seconds)):
            await event.wait()
    event.clear()


class MonitorWorker:
    """The work of one monitor in one process."""

    def __init__(self, core: Core, spec: MonitorSpec, parts: MonitorParts) -> None:
        self._core = core
        self.spec = self._spec = spec
        self._parts = parts
        self._roster: Roster
        self._sinks: dict[str, tuple[Subscriber, Sink]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._slow = 0
        self._pushes: list[Push] = []
        self._driver: AsyncDriver
        self._outgoing: Outgoing | None = None
        self._bell: Bell
        self._stopping = False

    def use(self, driver: AsyncDriver) -> None:
        """With whom it talks to the server; before `run`."""
        self._driver = driver
        self._bell = Bell(6)
        self._stopping = False
        self._sinks.clear()
        self._telling, self._slow, self._pushes = set(), 0, []
        self._roster = Roster(self._core, self._spec, self._parts)

    def stop(self) -> None:
        """Take nothing more, and finish what is under way."""
        self._stopping = True
        self._bell.ring()

    async def run(self) -> None:
        """Until stopped or cancelled. A message that is being sent when it is cancelled is sent again later."""
        core, spec, parts = self._core, self._spec, self._parts
        self._outgoing = None
        core.mailbox.feeds[spec.channel.encode()] = self._bell.pushed
        deliver, history, tell, settle, log, prune = self._bell.events
        loops: list[Awaitable[Any]] = [
            self._loop(deliver, lambda: self._read("deliver", self._fan_out)), self._loop(tell, self._serve),
        ]  # fmt: skip
        if parts.store is not None:
            store = parts.store
            loops.append(self._loop(history, lambda: self._read("history", self._keep)))
            loops.append(self._write_log(log, store))
            loops.append(self._prune(prune, store))
        if spec.window > 0:
            loops.append(self._loop(settle, self._settle))
        if parts.fetches:
            loops.append(self._fetch())
        try:
            async with asyncio.TaskGroup() as group:
                for loop in loops:
                    group.create_task(loop)  # type: ignore[arg-type]
            if self._telling:
                await asyncio.wait(self._telling, timeout=core.settings.drain)
        finally:
            await self._end()

    async def _end(self) -> None:
        core, channel = self._core, self._spec.channel
        for task in list(self._telling):
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        core.mailbox.feeds.pop(channel.encode(), None)
        self._driver.hub.unlisten(channel)
        store = self._parts.store
        if store is not None and self._pushes:
            pushes, self._pushes = self._pushes, []
            with contextlib.suppress(Exception):
                await apart(functools.partial(store.record, pushes))
        if self._outgoing is not None:
            await self._outgoing.close()

    async def _loop(self, event: asyncio.Event, step: Callable[[], Awaitable[float]]) -> None:
        """Again and again: one that fails is tried again later, and the others go on."""
        failures = 0
        while not self._stopping:
            try:
                await self._driver.hear(self._spec.tag, self._spec.channel)
                wait = await step()
                failures = 0
            except Exception as error:  # a store may raise anything
                failures += 1
                wait = min(30.0, 0.5 * 2.0 ** min(failures, 6)) * (0.5 + random.random())  # noqa: S311
                self._core.warn(f"monitor {self._spec.name}: {type(error).__name__}: {error}")
            if wait > 0:
                await rung(event, wait)

    # -- reading the log ----------------------------------------------------------------------------------------

    async def _read(self, reader: str, deal: Callable[[Page, str], Awaitable[None]]) -> float:
        core, spec = self._core, self._spec
        # Not more than a script can put into queues while others wait.
        count = max(5, min(PAGE, ENTRIES // max(1, len(self._roster.known))))
        token = core.client_id
        page = await self._driver.run(
            flows.peek(core, spec, reader, token, count, READ_LEASE, self._parts.store is not None)
        )
        if page is None:
            await asyncio.sleep(0.1 + random.random() / 10)  # noqa: S311 - another process reads; it may be done by then
            return CHECK
        if page.begin == page.end:
            return CHECK
        try:
            await deal(page, token)
        except asyncio.CancelledError:
            # Not for another process to wait out.
            back = flows.pump(core, spec, reader, token, page._replace(end=page.begin), ())
            self._driver.background(self._driver.run(back))
            raise
        return 0.0

    async def _fan_out(self, page: Page, token: str) -> None:
        subscribers = await self._roster.of(page.version, self._driver)
        wanted = []
        fields = {change.id: frozenset(change.fields) for change in page.changes}
        for number, subscriber in enumerate(subscribers):
            if number % 50 == 49:
                await asyncio.sleep(0)  # others want to go on, too
            changes = [change for change in page.changes if self._wants(subscriber, change, fields[change.id])]
            if changes:
                wanted.append((subscriber, quiet_for(subscriber, page.at), changes))
        core, name = self._core, self._spec.name
        done = await self._driver.run(flows.pump(core, self._spec, "deliver", token, page, wanted))
        if done and page.unreadable and core.events:
            core.events.emit(Dropped(name, "change", "unreadable", page.unreadable))
        self._bell.ring(2)

    def _wants(self, subscriber: Subscriber, change: Change, fields: frozenset[str]) -> bool:
        """What cannot be judged is told: rather once too often than not at all, and others must not wait for it."""
        try:
            return wants(subscriber, change, fields)
        except Exception as error:
            self._core.warn(f"monitor {self._spec.name}: mend the filters of {subscriber.name!r}: {error!r}")
            return True

    async def _keep(self, page: Page, token: str) -> None:
        store = self._parts.store
        if page.changes and store is not None:
            await self._store(store, page.changes)
        await self._driver.run(flows.pump(self._core, self._spec, "history", token, page, ()))

    async def _store(self, store: Store, changes: Sequence[Change]) -> None:
        """What a store refuses for good must not keep the others out."""
        name = self._spec.name
        try:
            await apart(lambda: store.keep(name, changes))
        except (ValueError, TypeError) as error:  # ConfigurationError is one
            if len(changes) > 1:
                for change in changes:
                    await self._store(store, [change])
                return
            self._core.warn(f"monitor {name}: the store refuses a change: {error}")
            if self._core.events:
                self._core.events.emit(Dropped(name, "history", "refused by the store"))

    async def _settle(self) -> float:
        count, wait = await self._driver.run(flows.settle(self._core, self._spec))
        # Not at once again, where it is due and the log has no room.
        return 0.0 if count else CHECK if wait is None else min(CHECK, max(wait, 0.2))

    # -- telling ------------------------------------------------------------------------------------------------

    async def _serve(self) -> float:
        """Take subscribers that are due, as many as there are hands free, and tell them beside this."""
        core, workers = self._core, self._parts.workers
        await self._roster.ready(self._driver)
        free = workers - len(self._telling)
        if free <= 0:
            return CHECK  # whoever is done rings
        # Those that failed last get half of the hands at most: many dead ones must not keep the others waiting.
        slow = min(free, max(1, workers // 2) - self._slow)
        asked = core.clock()
        calls = tuple(self._parts.calls)
        store = self._parts.store is not None
        found = await self._driver.run(flows.take(core, self._spec, calls, store, free, max(0, slow), LEASE))
        for telling in found.tellings:
            self._slow += telling.slow
            task = asyncio.get_running_loop().create_task(self._tell(telling, found, asked))
            self._telling.add(task)
            task.add_done_callback(functools.partial(self._told, telling.slow))
        # Whoever is done rings, and so does whoever has more; until then nothing else is due.
        return CHECK if found.next is None else min(CHECK, found.next + 0.001)

    def _told(self, slow: bool, task: asyncio.Task[None]) -> None:
        self._telling.discard(task)
        self._slow -= slow
        self._bell.ring(2, 4)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._core.warn(f"monitor {self._spec.name}: {type(error).__name__}: {error}")

    async def _tell(self, telling: Telling, found: Round, asked: float) -> None:
        core, spec = self._core, self._spec
        try:
            subscriber = await self._roster.get(telling.subscriber, found.version, self._driver)
        except Exception:
            await self._finish(telling, "later", CHECK)
            raise
        if subscriber is None:
            await self._driver.run(flows.strike(core, spec, telling.subscriber))
            return
        now = found.at + core.clock() - asked
        if not subscriber.enabled or not telling.changes:
            await self._finish(telling, "told", 0.0)
            return
        quiet = quiet_for(subscriber, now)
        if quiet > 0:
            await self._finish(telling, "later", quiet)
            return
        delivery = Delivery(
            id_digest((spec.name, subscriber.name, telling.first, telling.number)).hex(), spec.name, subscriber.name,
            tuple(telling.changes), telling.attempt, now,
        )  # fmt: skip
        started = core.clock()
        left = telling.lease - (started - asked) - 1.0
        if left <= 0:
            return  # taken so long ago that another process may tell it before this one has: it comes again
        try:
            if telling.attempt > LIVES:
                raise DeliveryFailed(f"look at what ends its workers: {LIVES} attempts came to nothing", retry=False)
            detail = await self._send(subscriber, delivery, min(subscriber.timeout, left))
        except asyncio.CancelledError:
            # It may have been sent: whoever tells it next sends the same.
            self._driver.background(self._finish(telling, "back", 0.0))
            raise
        except Exception as error:  # whatever a sink raises is a failure
            await self._failed(subscriber, telling, delivery, error, core.clock() - started)
            return
        seconds = core.clock() - started
        if await self._finish(telling, "told", subscriber.interval):
            self._log(delivery, "delivered", detail, seconds)
            if core.events:
                core.events.emit(
                    Delivered(spec.name, subscriber.name, delivery.id, len(delivery.changes), delivery.attempt, seconds)
                )

    async def _send(self, subscriber: Subscriber, delivery: Delivery, seconds: float) -> str:
        tracing = self._core.tracing
        with contextlib.ExitStack() as around:
            if tracing is not None:
                about = {
                    "collection": self._spec.name, "subscriber": subscriber.name, "delivery": delivery.id,
                    "attempt": delivery.attempt, "changes": len(delivery.changes),
                }  # fmt: skip
                around.enter_context(tracing.span("deliver", (change.trace for change in delivery.changes), about))
            async with asyncio.timeout(seconds):
                return await self._sink(subscriber).send(delivery)

    async def _failed(
        self, subscriber: Subscriber, telling: Telling, delivery: Delivery, error: Exception, seconds: float
    ) -> None:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        final, after = (not error.retry, error.after) if isinstance(error, DeliveryFailed) else (False, None)
        dead = final or telling.failures >= subscriber.retries
        # Also before the next message, if this one is given up: a receiver that is gone must not be asked in a loop.
        wait = max(retry_in(subscriber, telling.failures + 1, after), subscriber.interval if dead else 0.0)
        if not await self._finish(telling, "dead" if dead else "again", wait, text):
            return
        self._log(delivery, "dead" if dead else "retried", text, seconds)
        if self._core.events:
            self._core.events.emit(
                NotDelivered(
                    self._spec.name, subscriber.name, delivery.id, len(delivery.changes), delivery.attempt, text, dead
                )
            )

    async def _finish(self, telling: Telling, outcome: str, wait: float, error: str = "") -> bool:
        return await self._driver.run(flows.done(self._core, self._spec, telling, outcome, wait, error))

    def _sink(self, subscriber: Subscriber) -> Sink:
        known = self._sinks.get(subscriber.name)
        if known is None or known[0] != subscriber:
            known = (subscriber, self._make_sink(subscriber))
            self._sinks[subscriber.name] = known
        return known[1]

    def _make_sink(self, subscriber: Subscriber) -> Sink:
        if subscriber.sink == "call":
            return make_call(subscriber, self._parts.calls)  # which needs nothing that must be installed
        if self._outgoing is None:
            self._outgoing = self._parts.outgoing()
        return make_sink(subscriber, outgoing=self._outgoing, calls=self._parts.calls)

    # -- the rest -----------------------------------------------------------------------------------------------

    def _log(self, delivery: Delivery, outcome: str, detail: str, seconds: float) -> None:
        if self._parts.store is None:
            return
        if len(self._pushes) >= LOG_MOST:
            if self._core.events:
                self._core.events.emit(Dropped(self._spec.name, "push log", "capacity", len(self._pushes)))
            self._pushes.clear()
        self._pushes.append(
            Push(
                delivery.monitor, delivery.subscriber, delivery.id, delivery.attempt, len(delivery.changes), outcome,
                flows.plain(detail)[:2000], seconds, delivery.at,
            )
        )  # fmt: skip

    async def _write_log(self, event: asyncio.Event, store: Store) -> None:
        """A little later and together: the log is for people."""

        async def write() -> float:
            pushes, self._pushes = self._pushes, []
            if pushes:
                try:
                    await apart(functools.partial(store.record, pushes))
                except BaseException:
                    self._pushes = [*pushes, *self._pushes]
                    raise
            await asyncio.sleep(LOG_DELAY)
            return 0.0 if self._pushes else CHECK

        await self._loop(event, write)

    async def _prune(self, event: asyncio.Event, store: Store) -> None:
        due = self._core.clock() + PRUNE_EVERY * random.random()  # noqa: S311

        async def prune() -> float:
            nonlocal due
            if self._core.clock() >= due:
                due = self._core.clock() + PRUNE_EVERY
                await apart(lambda: store.prune(self._spec.name, KEEP_DAYS * 86_400.0))
            return due - self._core.clock()

        await self._loop(event, prune)

    async def _fetch(self) -> None:
        from holdfast.monitor.extract import MOST_BYTES  # here, as most programs never fetch
        from holdfast.monitor.fetching import fetcher

        outgoing = self._parts.outgoing(max_bytes=MOST_BYTES)
        source = fetcher(self._core, self._driver, self._spec, self._parts, outgoing)
        running = asyncio.get_running_loop().create_task(self._look_at_pages(source))
        try:
            while not self._stopping and not running.done():
                await asyncio.wait([running], timeout=0.2)
            source.stop()
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await outgoing.close()

    async def _look_at_pages(self, source: Any) -> None:
        while not self._stopping:
            try:
                await source.run()
                return
            except Exception as error:  # whatever it is, the others go on
                self._core.warn(f"monitor {self._spec.name}: looking at pages failed: {type(error).__name__}: {error}")
                await asyncio.sleep(CHECK)
