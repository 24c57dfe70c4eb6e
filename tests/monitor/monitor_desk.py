"""Monitors for tests: on either twin, with the steps of a worker by hand, or with a worker beside the test."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import redis

import holdfast
import holdfast.sync
from holdfast import Change, Delivery, Subscriber
from holdfast.engine.scripts import Scripts
from holdfast.monitor import flows, worker
from holdfast.monitor.flows import Page, Round, Telling
from holdfast.monitor.matching import as_record, quiet_for, wants
from holdfast.monitor.spec import to_text
from support.actors import AsyncActor, Fleet, ThreadActor
from support.backends import Backend
from support.conditions import until
from support.working import Working

NAME = "venues"
BASE = "hf:{monitor.venues}:"
CLOCK = "test:clock"
LEASE = 15.0


class Moved(Scripts):
    """The real scripts, with the server's TIME replaced by a key that the test sets, to the ms."""

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if name == "_time" and text is not None:
            line = "local time = call('TIME')"
            assert line in text
            ms = f"local ms = tonumber(call('GET', '{CLOCK}'))\n"
            text = text.replace(line, ms + "local time = {math.floor(ms / 1000), (ms % 1000) * 1000}")
        return text


class Clock:
    """The time of one server, for clients whose scripts are `Moved`."""

    def __init__(self, server: redis.Redis, start: int = 1_900_000_000_000) -> None:
        self._server = server
        self.scripts: Scripts = Moved()
        self.ms = start
        self.move(0)

    def move(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        self._server.set(CLOCK, self.ms, ex=3600)

    @property
    def now(self) -> float:
        return self.ms / 1000


class Desk:
    """A client and its monitor, run by an actor: methods of the monitor are awaited, whichever twin it is."""

    def __init__(self, actor: AsyncActor | ThreadActor, **options: Any) -> None:
        self.actor = actor
        self.hf = actor.hf
        self.monitor = self.hf.monitor(NAME, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.monitor, name)
        return lambda *args, **options: self.actor.do(lambda _: method(*args, **options))

    async def outcomes(self, *observations: Sequence[Any]) -> list[str]:
        return [seen.outcome for seen in await self.observe_many(observations)]

    # -- a worker's steps, one at a time

    def flow(self, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self.actor.do(lambda hf: hf._open.run(make(hf._core, self.monitor._spec, *args, **options)))

    @property
    def token(self) -> str:
        return str(self.hf._core.client_id)

    def peek(self, count: int = worker.PAGE, reader: str = "deliver", lease: float = LEASE) -> Any:
        return self.flow(flows.peek, reader, self.token, count, lease, True)

    def pump(self, page: Page, wanted: Sequence[tuple[Subscriber, float, Sequence[Change]]]) -> Any:
        return self.flow(flows.pump, "deliver", self.token, page, wanted)

    async def read(self, *subscribers: Subscriber, count: int = worker.PAGE) -> list[Change]:
        """Read on, and let these have what they want, as the worker does."""
        page = await self.peek(count)
        if page is None or page.begin == page.end:
            return []
        assert await self.pump(page, matched(page, *subscribers))
        return list(page.changes)

    async def take(
        self, most: int = 10, slow: int = 5, lease: float = LEASE, calls: Sequence[str] = ()
    ) -> Round:  # fmt: skip
        return await self.flow(flows.take, calls, True, most, slow, lease)  # type: ignore[no-any-return]

    async def taken(self, **options: Any) -> Telling:
        """The only one that is due."""
        (telling,) = (await self.take(**options)).tellings
        return telling

    def done(self, telling: Telling, outcome: str = "told", wait: float = 0.0, error: str = "") -> Any:
        return self.flow(flows.done, telling, outcome, wait, error)

    def settle(self) -> Any:
        return self.flow(flows.settle)

    async def enlist(self, *functions: Subscriber) -> None:
        """Say that these are functions, as a worker does that has them."""
        await self.flow(flows.enlist, {one.name: to_text(as_record(one)) for one in functions})

    async def tell(self, outcome: str = "told", **options: Any) -> list[Telling]:
        """Take all that is due, and say of each that it went like this."""
        found = (await self.take(**options)).tellings
        for telling in found:
            assert await self.done(telling, outcome, error="why")
        return found


def matched(page: Page, *subscribers: Subscriber) -> list[tuple[Subscriber, float, list[Change]]]:
    found = []
    for one in subscribers:
        changes = [change for change in page.changes if wants(one, change)]
        if changes:
            found.append((one, quiet_for(one, page.at), changes))
    return found


class Desks(Fleet):
    """Makes clients, each another process, as far as the server can tell."""

    def __init__(self, backend: Backend, api: str) -> None:
        super().__init__(backend.url, api)
        self.backend = backend
        self.clock: Clock | None = None
        self._server: redis.Redis | None = None

    @property
    def server(self) -> redis.Redis:
        if self._server is None:
            self._server = self.backend.owner.client()
        return self._server

    def drive(self) -> Clock:
        """Those made after it have a clock that the test moves. One server only."""
        self.clock = Clock(self.server)
        return self.clock

    async def desk(self, settings: dict[str, Any] | None = None, **options: Any) -> Desk:
        client = await self.client(**(settings or {}))
        if self.clock is not None:
            client._core.scripts = self.clock.scripts
        return Desk(await self.actor(client), **options)

    @property
    def cancel(self) -> type[BaseException]:
        """How a caller is interrupted."""
        return asyncio.CancelledError if self.api == "async" else KeyboardInterrupt

    async def close(self) -> None:
        await super().close()
        if self._server is not None:
            self._server.close()


async def closing(made: Any) -> AsyncIterator[Any]:
    """Closing must leave no thread and no task."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    yield made
    await made.close()

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]

    await until(lambda: not left(), within=5, what="the end of every thread")
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"


# -- with workers -----------------------------------------------------------------------------------------------------


class Post(Working):
    """A client with a monitor that works. What its functions were told is in `told`, by their names."""

    def __init__(self, hf: Any, **options: Any) -> None:
        super().__init__(hf)
        self.monitor = hf.monitor(NAME, **options)
        self.told: dict[str, list[Delivery]] = {}
        self.clock: Clock | None = None

    def hears(self, name: str = "ear", answer: Callable[[Delivery], Any] | None = None, **options: Any) -> list[Any]:
        """A function that remembers what it is told, and then does as `answer` says. Answers the list of it."""
        heard = self.told.setdefault(name, [])

        async def ear(delivery: Delivery) -> None:
            heard.append(delivery)
            result = answer(delivery) if answer is not None else None
            if inspect.isawaitable(result):
                await result

        self.monitor.subscriber(name, **{"first": True, **options})(ear)
        return heard

    async def do(self, name: str, *args: Any, **options: Any) -> Any:
        """A method of its monitor, of either twin."""
        return await self.call(getattr(self.monitor, name), *args, **options)

    async def see(self, *states: Any, key: Any = "a", source: str = "web") -> list[Any]:
        """Observe one state of a thing after the other, each a little later."""
        seen = []
        for state in states:
            if self.clock is not None:
                self.clock.move(0.001)
            seen.append(await self.do("observe", source, key, state))
        return seen

    def later(self, seconds: float) -> None:
        """The time passes, and all loops look."""
        assert self.clock is not None
        self.clock.move(seconds)
        self.ring()

    @property
    def worker(self) -> worker.MonitorWorker:
        return self.hf._monitors[NAME]  # type: ignore[no-any-return]

    def ring(self) -> None:
        """Have all loops look: the clock was moved."""
        self.worker._bell.pushed(b"")

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def listens(self) -> None:
        assert self.working is not None
        await until(
            lambda: self.working.done() or (self._hub() is not None and self._hub().listening(BASE + "ch")),  # type: ignore[union-attr]
            what="a worker that listens",
        )
        if self.working.done():
            self.working.result()

    def _hub(self) -> Any:
        driver = getattr(self.worker, "_driver", None)
        return None if driver is None else driver.hub


class Posts:
    """Makes clients that work on one server, and ends all of them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.members: list[Post] = []
        self.clock: Clock | None = None
        self._server: redis.Redis | None = None

    @property
    def server(self) -> redis.Redis:
        if self._server is None:
            self._server = self.backend.owner.client()
        return self._server

    def drive(self) -> Clock:
        self.clock = Clock(self.server)
        return self.clock

    async def post(self, twin: str = "async", settings: dict[str, Any] | None = None, **options: Any) -> Post:
        """One that does not work yet."""
        made = (holdfast if twin == "async" else holdfast.sync).Holdfast(
            self.backend.url, **{"drain": 2.0, **(settings or {})}
        )
        if self.clock is not None:
            made._core.scripts = self.clock.scripts
        post = Post(made, **options)
        post.clock = self.clock
        await post.call(made.open)
        self.members.append(post)
        return post

    async def start(self, *posts: Post) -> None:
        for post in posts:
            post.start()
        for post in posts:
            await post.listens()

    async def close(self) -> None:
        for post in self.members:
            await post.close()
        if self._server is not None:
            self._server.close()


def queue(server: redis.Redis, name: str) -> list[str]:
    """Ids of the changes that wait for a subscriber, as numbers or whole."""
    items = server.lrange(f"{BASE}q:{name}", 0, -1)
    return [(flows._parts(item)[0] if item[:1] == b"!" else item).decode().rjust(16, "0") for item in items]


def log_ids(server: redis.Redis) -> list[str]:
    return [number.decode()[:-2] for number, _ in server.xrange(f"{BASE}log")]


def states(deliveries: Sequence[Any]) -> list[Any]:
    """What was told, in the order told."""
    return [change.after for delivery in deliveries for change in delivery.changes]
