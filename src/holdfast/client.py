"""Holdfast: the one entry point."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from holdfast.buffers.absorber import Absorber, Handler, make_absorber
from holdfast.buffers.buffer import Buffer
from holdfast.buffers.spec import BufferSpec
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.checks import ask, check_scripts, check_server, command
from holdfast.engine.core import Core
from holdfast.engine.limits import check_count
from holdfast.errors import ConfigurationError
from holdfast.events import Observer
from holdfast.fleet.fleet import Fleet
from holdfast.fleet.reporter import Reporter
from holdfast.keys import Id
from holdfast.locks import admin, flows
from holdfast.locks.inspect import AuditEntry, LockInfo
from holdfast.locks.lease import Lease
from holdfast.locks.lock import AllLocks, Lock, ReadWriteLock, Semaphore
from holdfast.locks.spec import KNOWN_SPECS, MAX_PERMITS, RW_PERMITS, Spec, Ttl, make_spec, place
from holdfast.monitor.entry import MonitorCalls
from holdfast.monitor.parts import MonitorParts
from holdfast.monitor.worker import MonitorWorker
from holdfast.once.entry import OnceCalls
from holdfast.once.spec import Space
from holdfast.once.worker import Settler
from holdfast.runs.archiver import Archive, Archiver
from holdfast.runs.runner import Handler as RunHandler
from holdfast.runs.runner import Runner, make_runner
from holdfast.runs.runs import Runs
from holdfast.runs.spec import RunSpec
from holdfast.sessions.entry import CountTokens
from holdfast.sessions.sessions import Sessions
from holdfast.settings import Settings
from holdfast.work import Work

H = TypeVar("H", bound=Handler)
RH = TypeVar("RH", bound=RunHandler)
P = ParamSpec("P")
R = TypeVar("R")


class Holdfast(OnceCalls, MonitorCalls):
    """A connection to the server that the fleet shares, and everything that can be done there.

        async with Holdfast("redis://localhost") as hf:
            async with hf.lock("report:42") as lease:
                ...

    `url` is one of `embedded:`, `embedded:///dir`, `redis://`, `rediss://`, `valkey://`, `unix://`,
    `redis+sentinel://h1,h2,h3/service`, `redis+cluster://h1,h2`; without it `HOLDFAST_URL` is used, and without that an
    error is raised. Further keyword arguments are settings: `holdfast.settings.Settings` lists them.
    Closing releases every lease that is still held.
    """

    def __init__(self, url: str | None = None, *, observers: Iterable[Observer] = (), **settings: Any) -> None:
        self._core = Core(url, observers=observers, overrides=settings)
        self._open: AsyncDriver | None = None
        self._absorbers: dict[str, Absorber] = {}
        self._runners: dict[str, Runner] = {}
        self._archivers: dict[str, Archiver] = {}
        self._settlers: dict[str, Settler] = {}
        self._spaces: dict[str, Space] = {}
        self._monitors: dict[str, MonitorWorker] = {}
        self._parts: dict[str, MonitorParts] = {}
        self._reporter: Reporter | None = None
        self._work: Work | None = None
        self._stop_wanted = False

    def __repr__(self) -> str:
        return f"<Holdfast {self._core.target.shown} {'open' if self._open else 'closed'}>"

    # -- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect and check the server. `async with` does this."""
        if self._open is not None:
            return self
        await asyncio.to_thread(self._core.connect)
        self._open = self._core.async_driver()
        try:
            await self._open.run(check_server(self._core))
        except BaseException:
            await self.close()
            raise
        if self._core.settings.report:
            self._report()
        return self

    def _report(self) -> None:
        from holdfast import __version__  # here, because the package imports this file

        self._reporter = Reporter(self._core, __version__)
        self._core.on_fork = self._reporter.after_fork
        self._reporter.start()

    async def close(self) -> None:
        """Release every lease that is still held, and disconnect. What cannot be released ends by itself."""
        if self._work is not None:
            await asyncio.to_thread(self._work.end)
        driver, self._open = self._open, None
        if driver is None:
            return
        try:
            await driver.run(flows.release_tokens(self._core))
            if self._reporter is not None:
                await driver.run(self._reporter.last())
        finally:
            await driver.close()
            await asyncio.to_thread(self._core.disconnect)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def ping(self) -> float:
        """Ask the server for a sign of life. Answers the seconds it took."""
        started = self._core.clock()
        await self._driver.run(command(self._core, "PING"))
        return self._core.clock() - started

    async def command(self, *words: str | bytes | int, node: int | None = None) -> Any:
        """Ask the server something that changes nothing, such as `INFO`, for tools. Answers as the server does.

        On a cluster it is one of its servers, or the one with this place in `servers()`. Raises ServerError where the
        server answers with an error."""
        return await self._driver.run(ask(self._core, *words, node=node))

    async def servers(self) -> list[str]:
        """The addresses of the servers that have keys of ours: one, or each primary of a cluster."""
        return [f"{host}:{port}" if port else str(host) for host, port in self._core.topology.addresses()]

    async def check_scripts(self) -> dict[str, str]:
        """Load every script on every server: by name, what the server says of it; empty: nothing is wrong."""
        return await self._driver.run(check_scripts(self._core))

    @property
    def shown(self) -> str:
        """The URL of the server, without a password."""
        return self._core.target.shown

    @property
    def fleet(self) -> Fleet:
        """Which processes there are, what they do together, and what operators did."""
        return Fleet(self._core, lambda: self._driver)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._core.settings

    def observe(self, observer: Observer) -> None:
        """Call this with every event from now on."""
        self._core.observe(observer)

    @property
    def _driver(self) -> AsyncDriver:
        if self._open is None:
            raise ConfigurationError("open it first: `async with Holdfast(...) as hf:` or `await hf.open()`")
        return self._open

    # -- locks --------------------------------------------------------------------------------------------------

    def lock(
        self, name: Id, *, ttl: Ttl = None, wait: float | None = None, fair: bool = True, renew: bool = True,
        max_hold: float | None = None, replicas: int = 0, replica_timeout: float = 1.0,
    ) -> Lock:  # fmt: skip
        """A mutex.

        `ttl`: seconds, or "short", "medium", "long". `wait`: how long `async with` and `acquire` wait (None: no limit,
        0: not at all). `fair=False` lets newcomers pass the queue. `renew=False` lets it end after `ttl`. `max_hold`
        ends it after so many seconds however often it was renewed. `replicas`: give it back unless so many replicas
        confirm it within `replica_timeout`."""
        spec = self._spec("lock", name, 1, 1, ttl, fair, renew, max_hold, replicas, replica_timeout, reentrant=True)
        return Lock(self._core, self._driver, spec, name, wait)

    def rwlock(
        self,
        name: Id,
        *,
        ttl: Ttl = None,
        wait: float | None = None,
        renew: bool = True,
        max_hold: float | None = None,
    ) -> ReadWriteLock:
        """A read/write lock: `.read()` is held together with other readers, `.write()` alone."""
        sides = []
        for weight in (1, RW_PERMITS):
            spec = self._spec("rw", name, weight, RW_PERMITS, ttl, True, renew, max_hold, 0, 1.0, reentrant=True)
            sides.append(Lock(self._core, self._driver, spec, name, wait))
        return ReadWriteLock(*sides)

    def semaphore(
        self, name: Id, permits: int, *, take: int = 1, ttl: Ttl = None, wait: float | None = None, renew: bool = True,
        max_hold: float | None = None,
    ) -> Semaphore:  # fmt: skip
        """`permits` in all, of which each holder takes `take`. They expire with their holder.

        Everybody should name the same number of permits; where they differ, each request is judged by its own."""
        check_count("permits", permits, 1, MAX_PERMITS)
        check_count("take", take, 1, permits)
        spec = self._spec("sem", name, take, permits, ttl, True, renew, max_hold, 0, 1.0, reentrant=False)
        return Semaphore(self._core, self._driver, spec, name, wait)

    def lock_all(
        self, names: Sequence[Id], *, ttl: Ttl = None, wait: float | None = None, renew: bool = True,
        max_hold: float | None = None,
    ) -> AllLocks:  # fmt: skip
        """Several mutexes together or none, without deadlock whatever order others name them in. A name counts once."""
        specs = {spec.place.lock: (name, spec) for name, spec in self._specs(names, ttl, renew, max_hold)}
        return AllLocks(self._core, self._driver, list(specs.values()), wait)

    async def acquire_many(
        self, names: Sequence[Id], *, ttl: Ttl = None, renew: bool = True, max_hold: float | None = None
    ) -> list[Lease | None]:
        """Try each of these mutexes, all in one round trip. In order: its lease, or None where it is taken."""
        specs = self._specs(names, ttl, renew, max_hold)
        holds = await self._driver.run(flows.try_all(self._core, [spec for _, spec in specs], self._driver.home()))
        return [
            None if hold is None else Lease(self._core, self._driver, spec, hold, name)
            for (name, spec), hold in zip(specs, holds, strict=True)
        ]

    def exclusive(
        self, name: str | Callable[..., str], *, ttl: Ttl = None, wait: float | None = None,
        max_hold: float | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:  # fmt: skip
        """Decorator: one call at a time for each name in the fleet. `@hf.exclusive("user:{user_id}")`

        The template is filled from the call's arguments; or pass a function of the arguments that answers the name."""

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            signature = inspect.signature(function)

            @functools.wraps(function)
            async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                if callable(name):
                    full = name(*args, **kwargs)
                else:
                    bound = signature.bind(*args, **kwargs)
                    bound.apply_defaults()
                    full = name.format(**bound.arguments)
                async with self.lock(full, ttl=ttl, wait=wait, max_hold=max_hold):
                    return await function(*args, **kwargs)

            return locked

        return decorate

    # -- buffers ------------------------------------------------------------------------------------------------

    def buffer(
        self, name: str, *, capacity: int | None = None, ttl: float | None = None, max_bytes: int | None = None,
        max_message: int | None = None, conversations: int | None = None, conversation_ttl: float | None = None,
    ) -> Buffer:  # fmt: skip
        """Messages of each user, bounded. It may be made before the client is opened.

        `capacity` and `max_bytes`: what may wait of one user; the oldest are dropped for newer ones. `ttl`: how long a
        message may wait; it is handed to a handler before that. `max_message`: bytes of one message. `conversations`
        and `conversation_ttl`: the same for conversation pairs. What is not passed comes from the settings."""
        s = self._core.settings
        spec = BufferSpec(
            self._core, name,
            capacity=s.capacity if capacity is None else capacity,
            ttl=s.message_ttl if ttl is None else ttl,
            max_bytes=s.max_buffer_bytes if max_bytes is None else max_bytes,
            max_message=s.max_message_bytes if max_message is None else max_message,
            conversations=s.conversations if conversations is None else conversations,
            conversation_ttl=s.conversation_ttl if conversation_ttl is None else conversation_ttl,
        )  # fmt: skip
        return Buffer(self._core, lambda: self._driver, spec)

    def absorber(
        self, buffer: Buffer, *, threshold: int | None = None, max_age: float | None = None,
        quiet: float | None = None, batch: int | None = None, concurrency: int = 10, lease: float | None = None,
        timeout: float | None = None, max_attempts: int | None = None, backoff: float = 1.0,
        backoff_most: float = 300.0,
    ) -> Callable[[H], H]:  # fmt: skip
        """Decorator: call this with each batch of the buffer, in whichever process runs `work`.

        A user is due with `threshold` messages, when the oldest is `max_age` seconds old, when nothing came for
        `quiet` seconds, shortly before messages would be removed for their age, or after `Buffer.flush`. The batch (at
        most `batch` messages) is acknowledged when the handler returns. When it raises, or takes longer than `timeout`
        seconds, the same batch is handed out again after `backoff` seconds, doubled each time up to `backoff_most`;
        after `max_attempts` it goes to the dead letters. A coroutine function is cancelled when the lease is lost; a
        plain function runs in a thread, with a batch whose methods block, and sees `batch.lost`."""

        def register(handler: H) -> H:
            if buffer.name in self._absorbers:
                raise ConfigurationError(f"register one absorber for a buffer: {buffer.name!r} has one")
            self._absorbers[buffer.name] = make_absorber(
                self._core, buffer._spec, handler, threshold=threshold, max_age=max_age, quiet=quiet, batch=batch,
                concurrency=concurrency, lease=lease, timeout=timeout, max_attempts=max_attempts, backoff=backoff,
                backoff_most=backoff_most,
            )  # fmt: skip
            return handler

        return register

    async def work(self) -> None:
        """Run what was registered (absorbers, runners, archivers, handlers of gates and monitors) until `stop_work` is
        called or this is cancelled.

        `stop_work` lets handlers finish for `drain` seconds; what cannot finish is handed back. Cancelling hands back
        at once. A batch or a resumable run that is handed back is taken by another worker, and the attempt does not
        count; a run that is not resumable fails with that reason."""
        if self._work is not None:
            raise ConfigurationError("run work once in a client: it is running already")
        work = Work(
            self._core, list(self._absorbers.values()), list(self._runners.values()),
            [*self._archivers.values(), *self._settlers.values(), *self._monitors.values()],
        )  # fmt: skip
        driver, self._work = self._driver, work
        self._core.working = (
            *(f"buffer:{name}" for name in self._absorbers), *(f"runs:{name}" for name in self._runners),
            *(f"gate:{name}" for name in self._settlers), *(f"monitor:{name}" for name in self._monitors),
        )  # fmt: skip
        try:
            if not self._stop_wanted:
                await driver.host(work.run)
        finally:
            self._core.working = ()
            self._work, self._stop_wanted = None, False

    def stop_work(self) -> None:
        """Let `work` take nothing more and return when its handlers are done. May be called from any thread.

        Called before `work`, it makes the next `work` return at once."""
        self._stop_wanted = True
        if self._work is not None:
            self._work.stop()

    # -- runs ---------------------------------------------------------------------------------------------------

    def runs(
        self, name: str, *, kind: str = "agent", slots: int = 1, conflict: str = "reject", lease: float | None = None,
        max_attempts: int | None = None, retention: float | None = None, max_events: int | None = None,
        max_event_bytes: int | None = None, emit_delay: float | None = None, max_waiting: int | None = None,
        max_queued: int | None = None, stuck_after: float | None = None, archive: bool = False,
    ) -> Runs:  # fmt: skip
        """A collection of agent or workflow runs. It may be made before the client is opened.

        `kind`: what they are, such as "workflow". `slots`: runs of one key that may be active at once; `conflict`: what
        `start` does where none is free ("reject", "queue", "replace", "join"). `lease`: how long a run stays its
        owner's without a sign of life. `max_attempts`: owners that a resumable run may have. `retention`: how long one
        that has ended can be read. `max_events` and `max_event_bytes`: what is kept of a run's events; the oldest go.
        `emit_delay`: how long events are gathered before they are sent. `max_waiting`, `max_queued`: runs that may
        wait for one key, and in all. `stuck_after`: report runs without progress for so long. `archive`: keep ended
        runs listed until `archive` has stored them. What is not passed comes from the settings."""
        spec = RunSpec(
            self._core, name, kind=kind, slots=slots, conflict=conflict, lease=lease, max_attempts=max_attempts,
            retention=retention, max_events=max_events, max_event_bytes=max_event_bytes, emit_delay=emit_delay,
            max_waiting=max_waiting, max_queued=max_queued, stuck_after=stuck_after, archive=archive,
        )  # fmt: skip
        return Runs(self._core, lambda: self._driver, spec)

    def runner(
        self, runs: Runs, *, concurrency: int = 10, resumable: bool = False, timeout: float | None = None,
        stop_grace: float = 10.0, stop_stuck: bool = False,
    ) -> Callable[[RH], RH]:  # fmt: skip
        """Decorator: execute the runs of this collection with it, in whichever process runs `work`.

        At most `concurrency` at once in a process. What the handler returns is the run's result; when it raises, or
        takes longer than `timeout` seconds, the run fails with that reason. A request to stop cancels a coroutine
        function, which has `stop_grace` seconds to clean up; a plain function runs in a thread, with a run whose
        methods block, and sees `run.stopping`. `resumable`: when its process dies or shuts down, another one runs it
        again with its checkpoint, up to `max_attempts` times; otherwise it fails with that reason. `stop_stuck`: stop
        runs that made no progress for `stuck_after` seconds."""

        def register(handler: RH) -> RH:
            if runs.name in self._runners:
                raise ConfigurationError(f"register one runner for runs: {runs.name!r} has one")
            self._runners[runs.name] = make_runner(
                runs._spec, handler, concurrency=concurrency, resumable=resumable, timeout=timeout,
                stop_grace=stop_grace, stop_stuck=stop_stuck,
            )  # fmt: skip
            return handler

        return register

    def archive(self, runs: Runs, store: Archive) -> None:
        """Store the runs of this collection that have ended, with their events, in whichever process runs `work`.

        `store` is `holdfast.memory.RunArchive`, or anything with its `keep`. The collection must be made with
        `archive=True`, which lists its ended runs until they are stored."""
        if not runs._spec.archive:
            raise ConfigurationError(f"make the collection with archive=True: runs({runs.name!r}, archive=True)")
        self._archivers[runs.name] = Archiver(self._core, runs._spec, store)

    # -- short-term memory --------------------------------------------------------------------------------------

    def sessions(
        self, name: Id, *, max_entries: int | None = None, ttl: float | None = None, max_tokens: int | None = None,
        max_bytes: int | None = None, count_tokens: CountTokens | None = None,
    ) -> Sessions:  # fmt: skip
        """Short-term memory: the newest entries of each session under this name. May be made before `open`.

        `max_entries`, `ttl` (seconds a session lives unused) and `max_bytes` bound each session; their defaults are
        settings. `max_tokens` bounds it too, counted by `count_tokens`, a function of a message (a dict with role,
        content, tool_calls, …) that answers a whole number; without it a token is taken for four bytes as stored.
        Bounds are applied by whoever saves: let everybody name the same."""
        return Sessions(
            self._core, lambda: self._driver, name, max_entries=max_entries, ttl=ttl, max_tokens=max_tokens,
            max_bytes=max_bytes, count_tokens=count_tokens,
        )  # fmt: skip

    # -- operating ----------------------------------------------------------------------------------------------

    async def inspect(self, name: Id, kind: str = "lock") -> LockInfo:
        """Holders and waiters of a mutex (`lock`), read/write lock (`rw`) or semaphore (`sem`)."""
        return await self._driver.run(admin.inspect(self._core, place(self._core, _kind(kind), name)))

    async def list_locks(self, count: int = 100, *, offset: int = 0) -> list[LockInfo]:
        """Locks in use, at most `count`. Looked up in the shards' indexes; the key space is never scanned."""
        return await self._driver.run(admin.look_at_all(self._core, count, offset))

    async def count_locks(self) -> int:
        """How many locks are in use."""
        return await self._driver.run(admin.count_locks(self._core))

    async def force_release(
        self, name: Id, *, reason: str, by: str = "", kind: str = "lock", fence: int | None = None
    ) -> int:
        """End the lease of whoever holds this, or only the one with this fence. Audited. Answers how many ended."""
        return await self._driver.run(admin.force(self._core, place(self._core, _kind(kind), name), fence, reason, by))

    async def audit(self, name: Id, count: int = 100, *, kind: str = "lock") -> list[AuditEntry]:
        """Forced releases of this lock, newest first; kept 30 days, the last thousand of its shard."""
        return await self._driver.run(admin.audit(self._core, place(self._core, _kind(kind), name), count))

    async def guarded(
        self, resource: Id, fence: int | Lease, *commands: Sequence[Any], remember: float = admin.GUARD_LIFE
    ) -> list[Any]:
        """Run commands on this server in one step, unless a higher fence was seen for the resource: then Fenced.

            await hf.guarded("report:42", lease, ("SET", "report:42", text))

        Answers what the commands answered; None for each if the first reply was lost and the write had gone through.
        The highest fence is remembered for `remember` seconds after the last write. On a Cluster the keys must be in
        the guard's slot: build them with `hf.guard_key(resource, suffix)`."""
        number = fence.fence if isinstance(fence, Lease) else fence
        return await self._driver.run(admin.guarded(self._core, resource, number, commands, remember))

    def guard_key(self, resource: Id, suffix: str) -> str:
        """A key of yours in the slot where `guarded` keeps the fence of this resource."""
        return admin.guard_key(self._core, resource, f"data:{suffix}")

    # -- inside -------------------------------------------------------------------------------------------------

    def _spec(
        self, kind: str, name: Id, weight: int, limit: int, ttl: Ttl, fair: bool, renew: bool,
        max_hold: float | None, replicas: int, replica_timeout: float, *, reentrant: bool,
    ) -> Spec:  # fmt: skip
        # Remembered for a while, as a lock that is taken often should not be worked out and checked each time.
        # Types are part of the key: True is no number of replicas, although it equals 1.
        asked = (kind, name, weight, limit, ttl, fair, renew, max_hold, replicas, replica_timeout, reentrant)
        types = (type(name), type(ttl), type(max_hold), type(replicas), type(replica_timeout))
        known = self._core.specs
        try:
            return known[asked, types]  # type: ignore[no-any-return]
        except (KeyError, TypeError):
            spec = make_spec(
                self._core, kind, name, weight=weight, limit=limit, ttl=ttl, fair=fair, renew=renew,
                max_hold=max_hold, replicas=replicas, replica_timeout=replica_timeout, reentrant=reentrant,
            )  # fmt: skip
        if len(known) >= KNOWN_SPECS:
            known.clear()
        known[asked, types] = spec
        return spec

    def _specs(self, names: Sequence[Id], ttl: Ttl, renew: bool, max_hold: float | None) -> list[tuple[Id, Spec]]:
        if isinstance(names, (str, bytes)):
            raise ConfigurationError("pass a list of names, not one name")
        return [
            (name, self._spec("lock", name, 1, 1, ttl, True, renew, max_hold, 0, 1.0, reentrant=False))
            for name in names
        ]


def _kind(kind: str) -> str:
    if kind not in ("lock", "rw", "sem"):
        raise ConfigurationError(f"pass kind as lock, rw or sem, not {kind!r}")
    return kind
