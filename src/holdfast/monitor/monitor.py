"""A monitor: told what things are like, it tells who wants to know what has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError, QueueFull
from holdfast.monitor import flows
from holdfast.monitor.flows import DeadDelivery, Observed
from holdfast.monitor.matching import check_subscriber, from_record
from holdfast.monitor.parts import MonitorParts, Observation, observation, rows
from holdfast.monitor.record import Change, Handler, Key, Push, Snapshot, Store, Subscriber
from holdfast.monitor.spec import MonitorSpec, from_text
from holdfast.once.claim import Claim
from holdfast.once.spec import MARK_MAX, Space

H = TypeVar("H", bound=Handler)
Parser = Callable[[Any], Any]
PS = TypeVar("PS", bound=Parser)


class Status(NamedTuple):
    """How a monitor is doing."""

    changes: int
    """In the log."""
    dead_letters: int
    waiting: dict[str, int]
    """Changes that each subscriber has not been told yet."""
    failing: dict[str, int]
    """Failures in a row, of those subscribers that have some."""


class Monitor:
    """Compares what is observed with what is known, and tells subscribers of each change. Made by `Holdfast.monitor`.

    A state is compared, stored and its change put into the log in one atomic step; an observation that is older than
    what is known is refused. A change is told to each subscriber that wants it, in order, until it is accepted; told
    again, a message has the same id. A worker that dies at any point loses nothing.
    """

    def __init__(self, core: Core, driver: Callable[[], AsyncDriver], spec: MonitorSpec, parts: MonitorParts) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self._parts = parts
        self.name = spec.name

    def __repr__(self) -> str:
        return f"<Monitor {self.name}>"

    # -- observing ----------------------------------------------------------------------------------------------

    async def observe(self, source: str, key: Key, state: Any, observed_at: float | datetime | None = None) -> Observed:
        """This is what a thing is like. `observed_at`: when that was seen; without it, now by the server's clock.

        Of a dict only the monitor's fields count. An observation that is older than what is known changes nothing; of
        two with the same time the first one stands. Raises QueueFull if the log is full of changes that no worker has
        read: nothing was stored then. Safe to repeat after an error; without `observed_at` a repeat counts as new."""
        return (await self.observe_many([Observation(source, key, state, observed_at)]))[0]

    async def observe_many(self, observations: Iterable[Observation | Sequence[Any]]) -> Sequence[Observed]:
        """Many `(source, key, state, observed_at)`, in steps of a hundred, one round trip each. Answers in order.

        Raises QueueFull, with what came of each in `observed`, if some could not be stored."""
        seen = [self._spec.seen(*observation(one)) for one in observations]
        answers = await self._driver().run(flows.observe(self._core, self._spec, seen))
        full = sum(answer.outcome == "full" for answer in answers)
        if full:
            raise QueueFull(
                f"run workers for this monitor, or raise its backlog: the log is full, and {full} were not stored",
                observed=answers, operation="monitor/observe", key=self.name,
            )  # fmt: skip
        return answers

    async def get(self, source: str, key: Key) -> Any:
        """What is known of a thing, or None."""
        (found,) = await self._driver().run(flows.look(self._core, self._spec, [(source, key)]))
        return None if found is None else found[1]

    async def forget(self, source: str, key: Key) -> bool:
        """Forget a thing: its next state is the first. Its history stays. Answers whether it was known."""
        return await self._driver().run(flows.forget(self._core, self._spec, [(source, key)])) > 0

    # -- raw results --------------------------------------------------------------------------------------------

    def parser(self, source: str) -> Callable[[PS], PS]:
        """Decorator: turns a raw result of this source into observations: `(key, state)` or `(key, state, time)`."""

        def register(function: PS) -> PS:
            if source in self._parts.parsers:
                raise ConfigurationError(f"register one parser for a source: {source!r} has one")
            self._parts.parsers[source] = function
            return function

        return register

    async def process(
        self, source: str, job: Any, raw: Any, *, within: float = 86_400.0, lease: float = 30.0
    ) -> Sequence[Observed] | None:
        """Parse a raw result and observe what it says, once in the fleet for each `job`. None: somebody has, or does.

        When the parser raises, or this worker dies, the next one who comes with that job does it."""
        parser = self._parts.parsers.get(source)
        if parser is None:
            raise ConfigurationError(f"register a parser first: @monitor.parser({source!r})")
        check_seconds("within", within, 0.001, MARK_MAX)
        check_seconds("lease", lease, 0.05, 86_400.0)
        place = Space(self._core, f"job:{self.name}").place((source, job))
        claim = Claim(self._core, self._driver, place, lease=lease, within=within, wait=0.0, policy="raise")
        async with claim as mine:
            if not mine:
                return None
            found = await self._driver().finished(parser(raw))
            return await self.observe_many([(source, *one) for one in rows(found)])

    # -- subscribers --------------------------------------------------------------------------------------------

    def subscriber(self, name: str, **options: Any) -> Callable[[H], H]:
        """Decorator: a function that is told of changes, in whichever process runs `work` and has it.

        It is called with a `Delivery`, one at a time in the fleet. When it raises, it is called again. `options` are
        those of `Subscriber`. It is known to all workers from the first `work` on, until `unsubscribe`."""

        def register(handler: H) -> H:
            if name in self._parts.calls:
                raise ConfigurationError(f"register each subscriber once: {name!r} is there")
            self._parts.functions[name] = check_subscriber(Subscriber(name, "call", name, **options))
            self._parts.calls[name] = handler
            return handler

        return register

    def on_change(self, handler: H) -> H:
        """Decorator: `subscriber` under the function's own name, told of everything."""
        return self.subscriber(getattr(handler, "__name__", "on_change"))(handler)

    async def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber, or replace the one of that name. It is told of what changes from now on.

        The record is in the monitor's store. Workers know of it at once, or a minute later if this is interrupted."""
        checked = check_subscriber(subscriber)
        if checked.sink == "call":
            raise ConfigurationError(f"register functions with @monitor.subscriber({checked.name!r})")
        self._parts.check_target(checked)
        store = self._store("subscribe")
        roll = await self._driver().run(flows.roll(self._core, self._spec))
        if roll.functions.get(checked.name):
            raise ConfigurationError(f"pass another name: a function subscribes as {checked.name!r}")
        await self._driver().blocking(lambda: store.put_subscriber(self.name, checked))
        await self._driver().run(flows.enlist(self._core, self._spec, {}))

    async def unsubscribe(self, name: str) -> bool:
        """Tell it nothing more; what waits for it is dropped. Answers whether there was one."""
        store = self._parts.store
        known = store is not None and await self._driver().blocking(lambda: store.remove_subscriber(self.name, name))
        function, _ = await self._driver().run(flows.strike(self._core, self._spec, name))
        return known or function

    async def subscribers(self) -> Sequence[Subscriber]:
        """All of them: those in the store, and functions. Their secrets are not shown by `repr`."""
        roll = await self._driver().run(flows.roll(self._core, self._spec))
        found = {name: from_record(from_text(record)) for name, record in roll.functions.items() if record}
        store = self._parts.store
        if store is not None:
            for one in await self._driver().blocking(lambda: store.subscribers(self.name)):
                found.setdefault(one.name, one)
        return [found[name] for name in sorted(found)]

    async def status(self) -> Status:
        """How much waits, for whom, and who fails."""
        names = [one.name for one in await self.subscribers()]
        roll = await self._driver().run(flows.roll(self._core, self._spec, names))
        pairs = list(zip(names, roll.waiting, strict=True))
        return Status(
            roll.log, roll.dead, {name: one.changes for name, one in pairs},
            {name: one.failures for name, one in pairs if one.failures},
        )  # fmt: skip

    async def changes(self, count: int = 100) -> Sequence[Change]:
        """The last changes, newest first: those still in the log, told or not. The whole past is in `history`."""
        check_count("count", count, 1, 1000)
        return await self._driver().run(flows.recent(self._core, self._spec, count))

    # -- dead letters -------------------------------------------------------------------------------------------

    async def dead_letters(self, count: int = 100, *, after: str = "") -> Sequence[DeadDelivery]:
        """What subscribers did not accept however often it was tried, oldest first; the last ten thousand are kept."""
        check_count("count", count, 1, 1000)
        return await self._driver().run(flows.letters(self._core, self._spec, after, count))

    async def replay(self, letter: str) -> int:
        """Tell it once more, after what waits already. Answers how many changes; 0: there is no such letter.

        Raises ConfigurationError if its subscriber is there no more."""
        found = await self._driver().run(flows.letters(self._core, self._spec, "", 1, letter))
        if found and found[0].subscriber not in {one.name for one in await self.subscribers()}:
            raise ConfigurationError(f"subscribe {found[0].subscriber!r} again before you replay this, or purge it")
        return await self._driver().run(flows.replay(self._core, self._spec, letter, True))

    async def purge(self, letter: str) -> bool:
        """Throw it away."""
        return await self._driver().run(flows.replay(self._core, self._spec, letter, False)) > 0

    # -- history ------------------------------------------------------------------------------------------------

    async def history(
        self, source: str, key: Key, *, limit: int = 100, since: float | None = None, until: float | None = None
    ) -> Sequence[Snapshot]:
        """What a thing was, newest first: each state that it changed to. Needs a store and a worker."""
        store = self._store("history")
        return await self._driver().blocking(
            lambda: store.history(self.name, source, key, limit=limit, since=since, until=until)
        )

    async def things(
        self, source: str | None = None, *, count: int = 100, after: tuple[str, Key] | None = None
    ) -> Sequence[tuple[str, Key]]:
        """What has a history, as source and key; `after` is the last one of the page before. Needs a store."""
        keys = getattr(self._store("things"), "keys", None)
        if keys is None:
            raise ConfigurationError("pass a holdfast.memory.MonitorStore: this store cannot say what it has")
        return list(await self._driver().blocking(lambda: keys(self.name, source, count, after)))

    async def plot(self, source: str, key: Key, field: str, *, limit: int = 1000) -> str:
        """A numeric field over time, as an SVG picture."""
        from holdfast.monitor.plot import plot  # here, as most programs never draw

        return plot(await self.history(source, key, limit=limit), field, title=f"{key}: {field}")

    async def pushes(self, subscriber: str | None = None, limit: int = 100) -> Sequence[Push]:
        """Attempts to tell, newest first. Needs a store."""
        store = self._store("pushes")
        return await self._driver().blocking(lambda: store.pushes(self.name, subscriber, limit))

    async def prune(self, days: float = 30.0) -> int:
        """Remove history and push log older than this; workers do it by themselves. Answers how many rows."""
        store = self._store("prune")
        return await self._driver().blocking(lambda: store.prune(self.name, days * 86_400.0))

    # -- fetching -----------------------------------------------------------------------------------------------

    def fetch(self, url: str, **options: Any) -> None:
        """Look at a page every now and then, in whichever process runs `work`: once in the fleet for each interval.

        Options: `every` (seconds, 60), one of `css` and `json` (JSONPath), `regex`, `headers`, `timeout`, `key` (the
        URL), `source` ("http"), `alert_after` (failures, 3)."""
        from holdfast.monitor.fetch import make_fetch  # here, as most programs never fetch

        made = make_fetch(url, **options)
        self._parts.outgoing().check(made.url)
        if any((one.source, one.key) == (made.source, made.key) for one in self._parts.fetches):
            raise ConfigurationError(f"pass a key of its own for each page: {made.shown} is there")
        self._spec.place(made.source, made.key)
        self._parts.fetches.append(made)

    # -- inside -------------------------------------------------------------------------------------------------

    def _store(self, what: str) -> Store:
        if self._parts.store is None:
            raise ConfigurationError(
                f'pass a store for {what}: hf.monitor({self.name!r}, store=MonitorStore("sqlite:///monitor.db").open())'
            )
        return self._parts.store
