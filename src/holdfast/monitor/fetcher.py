"""Looks at pages on a schedule: politely, once for the whole fleet, and without haste where they fail."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from holdfast.engine.limits import check_seconds
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.events import Events, Fetched, FetchFailing, FetchRecovered
from holdfast.monitor.fetch import FULL_AFTER, Fetch, Observing, Watch
from holdfast.monitor.outgoing import Outgoing
from holdfast.monitor.page import PageFailed
from holdfast.monitor.reader import Reader

CLAIMED = 0.9
"""The part of an interval for which a page is ours. Less than the schedule's earliest, which is 0.95."""
SPREAD = 0.1
"""Schedules are stretched or shortened at random by up to half of this, so that processes do not go in step."""
FIRST = 1.0
"""The first look at each page comes within so many seconds."""
SLOWEST = 10
"""A page that fails is asked for less and less often, down to every so many intervals."""
AT_ONCE = 20
"""Requests under way at once in a process, each to another host."""


class Fleet(Protocol):
    """What the processes agree by: the client, or what stands for it."""

    async def once(self, space: str, id: Any, *, within: float) -> bool: ...

    def lock(self, name: str, *, wait: float | None) -> AbstractAsyncContextManager[Any]: ...


class Fetcher:
    """Looks at pages and tells a monitor what they say.

    In a fleet each page is looked at once in an interval: who claims it, looks. To one host there is one request at a
    time, and `delay` seconds pass before the next: in the whole fleet, for all monitors, by a lock for each host. A
    host that answers 429 or 503 with Retry-After is left alone for that long. A page that fails is asked for less and
    less often; nothing is observed, so what was known of it stays. After `alert_after` failures in a row, as this
    process sees them, FetchFailing is told once, and FetchRecovered when it is over. Pages that did not change since
    are not sent again by servers that know ETag or Last-Modified; those are kept in this process only, and after
    `full_after` seconds the page is asked for in full: that is to be less than the monitor keeps what nobody observes.
    robots.txt is not read: look only at what you may look at.

    Times run on a monotonic clock. While the server of the fleet is away nothing is fetched."""

    def __init__(
        self, hf: Fleet, monitor: Observing, outgoing: Outgoing, fetches: Sequence[Fetch], *, delay: float = 1.0,
        full_after: float = FULL_AFTER, events: Events | None = None, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self._hf = hf
        self._monitor = monitor
        self._outgoing = outgoing
        self._delay = check_seconds("delay", delay, 0.0, 3600.0)
        self._full_after = full_after
        self._events = Events() if events is None else events
        self._clock = clock
        self._sleep = sleep
        self._space = f"fetch:{monitor.name}"
        self._reader = Reader()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._stopped = False
        hosts: dict[str, list[Watch]] = {}
        for fetch in fetches:
            outgoing.check(fetch.url)
            first = clock() + random.random() * min(FIRST, fetch.every)  # noqa: S311
            hosts.setdefault(fetch.host, []).append(Watch(fetch, first))
        if len({(fetch.source, fetch.key) for fetch in fetches}) < len(fetches):
            raise ConfigurationError("pass a key of its own for each fetch: two have the same source and key")
        self._lines = [_Line(host, watches) for host, watches in hosts.items()]

    async def run(self) -> None:
        """Until stopped or cancelled. Cancelling ends requests under way; what they would have found is found later."""
        try:
            if self._stopped or not self._lines:
                return
            tasks = [asyncio.create_task(self._serve(line)) for line in self._lines]
            for line, task in zip(self._lines, tasks, strict=True):
                line.task = task
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    if not task.cancelled():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._reader.close()

    def stop(self) -> None:
        """Finish the requests under way, and no more. Any number of times."""
        self._stopped = True
        for line in self._lines:
            if line.task is not None and not line.busy:
                line.task.cancel()

    async def _serve(self, line: _Line) -> None:
        """The pages of one host, one after the other."""
        while not self._stopped:
            watch = min(line.watches, key=lambda one: one.due)
            if (wait := watch.due - self._clock()) > 0:
                await self._sleep(wait)
            fetch, started = watch.fetch, self._clock()
            try:
                if await self._hf.once(self._space, (fetch.source, fetch.key), within=fetch.every * CLAIMED):
                    await self._take_turn(line, watch)
                else:
                    watch.seen_by_others = True
            except ConfigurationError:
                raise
            except HoldfastError:  # of the fleet's server: who talks to it otherwise is told as well
                pass
            watch.due = max(watch.due, started + _spread(fetch.every))

    async def _take_turn(self, line: _Line, watch: Watch) -> None:
        async with self._hf.lock(f"holdfast.fetch:{line.host}", wait=None):
            async with self._at_once:
                line.busy = True
                try:
                    pause = await self._look(watch)
                finally:
                    line.busy = False
            # The lock is kept meanwhile: nobody in the fleet asks this host.
            if not self._stopped:
                await self._sleep(max(self._delay, pause))

    async def _look(self, watch: Watch) -> float:
        """Answers how long the host wants to be left alone."""
        fetch, started = watch.fetch, self._clock()
        try:
            outcome = await watch.look(self._monitor, self._outgoing, self._reader, self._clock, self._full_after)
        except PageFailed as error:
            self._failed(watch, error, self._clock() - started)
            pause: float = getattr(error, "after", None) or 0.0
            slower = fetch.every * min(2 ** (watch.failures - 1), SLOWEST)
            watch.due = started + max(_spread(slower), pause)
            return pause
        if self._events:
            self._events.emit(Fetched(self._monitor.name, fetch.shown, outcome, "", self._clock() - started))
            if watch.alerted:
                self._events.emit(FetchRecovered(self._monitor.name, fetch.shown, fetch.host, watch.failures))
        watch.failures, watch.alerted = 0, False
        return 0.0

    def _failed(self, watch: Watch, error: PageFailed, seconds: float) -> None:
        fetch, name = watch.fetch, self._monitor.name
        watch.failures = min(watch.failures + 1, 1_000_000)
        alert = watch.failures == fetch.alert_after
        watch.alerted = watch.alerted or alert
        if self._events:
            self._events.emit(Fetched(name, fetch.shown, "failed", str(error), seconds))
            if alert:
                self._events.emit(FetchFailing(name, fetch.shown, fetch.host, watch.failures, str(error)))


class _Line:
    """The pages of one host."""

    __slots__ = ("busy", "host", "task", "watches")

    def __init__(self, host: str, watches: list[Watch]) -> None:
        self.host = host
        self.watches = watches
        self.task: asyncio.Task[None] | None = None
        self.busy = False
        """A request is under way, and may finish."""


def _spread(seconds: float) -> float:
    return seconds * (1 + SPREAD * (random.random() - 0.5))  # noqa: S311
