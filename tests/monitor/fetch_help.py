"""For tests of fetching: a time that the test moves, a fleet of one, and a monitor that remembers what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from http_endpoint import Behaviour, Endpoint, Handler, answers

from holdfast.events import Event, Events, Fetched
from holdfast.monitor.extract import MOST_BYTES, Extract
from holdfast.monitor.fetch import Fetch
from holdfast.monitor.fetcher import Fetcher
from holdfast.monitor.outgoing import Outgoing
from holdfast.monitor.reader import Reader
from support.conditions import until


class Moments:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._asleep: list[tuple[float, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        entry = (self.now + seconds, asyncio.get_running_loop().create_future())
        self._asleep.append(entry)
        try:
            await entry[1]
        finally:
            if entry in self._asleep:
                self._asleep.remove(entry)

    @property
    def asleep(self) -> list[float]:
        """How long each sleeper still wants to sleep."""
        return sorted(at - self.now for at, _ in self._asleep)

    async def rest(self, sleepers: int = 1) -> float:
        """Wait until so many sleep. Answers how long the first one of them wants to."""
        await until(lambda: len(self._asleep) == sleepers, what=f"{sleepers} sleepers")
        return self.asleep[0]

    async def skip(self, sleepers: int = 1) -> float:
        """Wait until so many sleep, then move on to when the first one wakes. Answers how long that was."""
        seconds = await self.rest(sleepers)
        self.move(seconds)
        return seconds

    def move(self, seconds: float) -> None:
        self.now += seconds
        for at, done in list(self._asleep):
            if at <= self.now + 1e-9:
                self._asleep.remove((at, done))
                if not done.done():
                    done.set_result(None)


class Alone:
    """A fleet of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claimed: dict[Any, float] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.claims: list[tuple[str, Any, float]] = []
        self.taken = False
        """Somebody else has claimed everything."""
        self.error: Exception | None = None

    async def once(self, space: str, id: Any, *, within: float) -> bool:
        self.claims.append((space, id, within))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if self.taken or self._claimed.get((space, id), 0.0) > self._clock():
            return False
        self._claimed[space, id] = self._clock() + within
        return True

    def lock(self, name: str, *, wait: float | None) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


@dataclass
class Found:
    outcome: str


class Board:
    """Stands for a monitor."""

    name = "pages"

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, Any]] = []
        self.errors: list[Exception] = []
        self._known: dict[Any, Any] = {}

    async def observe(self, source: str, key: Any, state: Any) -> Found:
        if self.errors:
            raise self.errors.pop(0)
        self.told.append((source, key, state))
        before = self._known.get(key, ...)
        self._known[key] = state
        return Found("first" if before is ... else "unchanged" if before == state else "changed")

    @property
    def states(self) -> list[Any]:
        return [state for _, _, state in self.told]


class Log:
    """An observer that remembers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self.looked_at: list[float] = []
        self._clock = clock

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Fetched):
            self.looked_at.append(self._clock())

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def outcomes(self) -> list[str]:
        return [event.outcome for event in self.events if hasattr(event, "outcome")]


class Inside(Reader):
    """Reads in this process: a process for each test would take longer than the test."""

    async def read(self, extract: Extract, body: bytes, content_type: str) -> Any:
        return extract(body, content_type)


class Bench:
    """A fetcher that runs, and all that it deals with."""

    def __init__(self, fetches: Sequence[Fetch], outgoing: Outgoing, fleet: Any = None, **options: Any) -> None:
        self.moments = Moments()
        self.board = Board()
        self.log = Log(self.moments)
        self.fleet = fleet or Alone(self.moments)
        inside = not options.pop("real_reader", False)
        times = {} if options.pop("real_time", False) else {"clock": self.moments, "sleep": self.moments.sleep}
        self.fetcher = Fetcher(
            self.fleet, self.board, outgoing, fetches, events=Events([self.log]), **{**times, **options}
        )
        if inside:
            self.fetcher._reader = Inside()

    async def looks(self, count: int) -> None:
        """Let time pass until so many looks were taken."""
        while len(self.log.outcomes) < count:
            before = len(self.log.outcomes)
            await self.moments.skip()
            await until(lambda before=before: self.moments._asleep or len(self.log.outcomes) > before)


@asynccontextmanager
async def running(*fetches: Fetch, fleet: Any = None, **options: Any) -> AsyncIterator[Bench]:
    async with Outgoing(allow=["127.0.0.1"], max_bytes=MOST_BYTES) as outgoing:
        bench = Bench(fetches, outgoing, fleet, **options)
        task = asyncio.create_task(bench.fetcher.run())
        try:
            yield bench
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert bench.fetcher._reader._process is None


def page(body: Any, **headers: str) -> Behaviour:
    """An answer as a site gives it."""
    kind = "text/plain" if isinstance(body, str) else "application/json"
    return answers(200, body, **{"Content_Type": kind, **headers})


def versioned(endpoint: Endpoint, versions: dict[str, str]) -> Behaviour:
    """Answers with the text of `versions["now"]` and an ETag of it; 304 to who has that."""

    def behave(handler: Handler) -> None:
        text = versions["now"]
        if handler.headers.get("If-None-Match") == f'"{text}"':
            handler.reply(304, b"", {"ETag": f'"{text}"'})
        else:
            handler.reply(200, text.encode(), {"ETag": f'"{text}"', "Content-Type": "text/plain"})

    return behave
