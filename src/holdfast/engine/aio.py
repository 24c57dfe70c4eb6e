"""Runs flows on asyncio, over multiplexed connections."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.engine.flow import (
    INTERRUPTED,
    Address,
    Await,
    Detach,
    Effect,
    Flow,
    Listen,
    NotSent,
    Refresh,
    ReplyLost,
    Send,
    Sleep,
    Together,
    backoff,
)
from holdfast.engine.mux import MuxConnection
from holdfast.engine.signals import Mailbox, SignalHub
from holdfast.engine.topology import Topology, connect, connect_problem
from holdfast.errors import ConfigurationError

T = TypeVar("T")
IDLE_ALONE = 4


class AsyncDriver:
    """One per event loop. Holds one shared connection to each server, made when it is first needed."""

    def __init__(
        self, topology: Topology, mailbox: Mailbox, *, timeout: float, in_flight: int,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.topology = topology
        self._mailbox = mailbox
        self._timeout = timeout
        self._in_flight = in_flight
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        self._shared: dict[Address, MuxConnection] = {}
        self._connecting: dict[Address, asyncio.Task[MuxConnection]] = {}
        self._failures: dict[Address, int] = {}
        self._alone: list[MuxConnection] = []
        self._background: set[asyncio.Task[Any]] = set()
        self._listening: set[asyncio.Task[Any]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False
        self.hub = SignalHub(topology, mailbox, self.refresh, timeout, warn)

    def home(self) -> Callable[[], bool]:
        """Is whoever holds something still there? A lease must not be renewed for a loop that is closed."""
        return self._alive

    def _alive(self) -> bool:
        return not self._loop.is_closed()

    def owner(self) -> object:
        """Who owns a lease for re-entry: the task, never the process, or two tasks would both get in."""
        return asyncio.current_task()

    # -- running flows ------------------------------------------------------------------------------------------

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end.

        Cancellation is thrown into the flow, which may hand work over with `Detach` but cannot hold it up."""
        self._check_home()
        shared, topology = self._shared, self.topology
        try:
            effect = next(flow)
            while True:
                try:
                    if type(effect) is Send and effect.node is None and not effect.alone:
                        # The hot path: no coroutine between the flow and the future of its reply.
                        connection = shared.get(topology.address(effect.tag))  # type: ignore[arg-type]
                        if connection is None or connection.closed or connection.full:
                            connection = await self._connection(effect)
                        result = await connection.send(effect.payload, effect.replies)
                    elif type(effect) is Listen and self.hub.listening(effect.channel):
                        result = False
                    else:
                        result = await self._do(effect)
                except INTERRUPTED as error:  # every one of them is the flow's to see, so that it can clean up
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def host(self, main: Callable[[AsyncDriver], Awaitable[T]]) -> T:
        """Run something that needs an event loop of its own on threads; here there is one."""
        return await main(self)

    async def aside(self, work: Callable[[AsyncDriver], Awaitable[T]]) -> T:
        """Run something on an event loop that lives as long as the client: this one."""
        return await work(self)

    def later(self, function: Callable[[AsyncDriver], None]) -> None:
        """Call something on that loop, soon."""
        function(self)

    async def blocking(self, function: Callable[[], T]) -> T:
        """Call something that blocks, in a thread."""
        return await asyncio.to_thread(function)

    async def finished(self, value: Any) -> Any:
        """What comes of a call that may have been one of a coroutine function."""
        return await value if inspect.isawaitable(value) else value

    @property
    def closed(self) -> bool:
        return self._closed

    def call_later(self, seconds: float, function: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, function)

    def _check_home(self) -> None:
        if self._closed:
            raise ConfigurationError("open a Holdfast before using it: this one was closed")
        if os.getpid() != self._pid:
            raise ConfigurationError("open a new Holdfast after fork: this one belongs to the parent process")
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError("open a new Holdfast in this event loop: this one belongs to another loop")

    async def _do(self, effect: Effect) -> Any:
        match effect:
            case Send():
                return await self._send_aside(effect)
            case Sleep():
                return await asyncio.sleep(effect.seconds)
            case Await():
                return await self._await(effect)
            case Listen():
                return await self._listen(effect)
            case Refresh():
                return await self.refresh(effect.hint)
            case Together():
                return await asyncio.gather(*map(self.run, effect.flows), return_exceptions=True)
            case Detach():
                return self.background(self.run(effect.flow))
            case _:
                raise TypeError(f"unknown effect {effect!r}")

    def background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Work that outlives its caller; `close` waits for it. Its errors were nobody's to handle."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def in_background(self, flow: Flow[Any]) -> None:
        self.background(self.run(flow))

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()

    async def _await(self, effect: Await) -> str | None:
        message = self._mailbox.take(effect.token)
        if message is not None or effect.seconds <= 0:
            return message
        waiting: asyncio.Future[None] = self._loop.create_future()

        def done() -> None:
            if not waiting.done():
                waiting.set_result(None)

        def wake() -> None:
            if threading.get_ident() == self._thread:
                done()
            else:  # another loop of this process heard it
                self._loop.call_soon_threadsafe(done)

        timer = self._loop.call_later(effect.seconds, done)
        self._mailbox.park(effect.token, wake)
        try:
            await waiting
        finally:
            timer.cancel()
            message = self._mailbox.take(effect.token)
        return message

    async def _listen(self, effect: Listen) -> bool:
        """Without a subscription the waiter still asks at its bounded intervals, so a failure here is no error."""
        try:
            if effect.seconds is None:
                return await self.hub.listen(effect.tag, effect.channel)
            listening = self.background(self.hub.listen(effect.tag, effect.channel))
            self._listening.add(listening)  # nobody's work is lost with it: `close` does not wait for it
            listening.add_done_callback(self._listening.discard)
            async with asyncio.timeout(effect.seconds):
                return await asyncio.shield(listening)
        except (NotSent, TimeoutError, OSError):
            return False

    async def hear(self, tag: str, channel: str) -> None:
        """Make sure that signals of a channel reach this process, where that is possible."""
        if not self.hub.listening(channel):
            await self._listen(Listen(tag, channel))

    async def refresh(self, hint: str) -> None:
        if self._refreshing is None or self._refreshing.done():
            asking = asyncio.to_thread(self.topology.refresh, self.topology.generation)
            self._refreshing = self._loop.create_task(asking)  # one for all: threads are few
            self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await joined(self._refreshing)
        except NotSent:
            return  # nobody answered; the flow waits and asks again until its time is up
        wanted = set(self.topology.addresses())
        for address in [a for a in self._shared if a not in wanted]:
            self._shared.pop(address).abort(ReplyLost(f"this server is no longer the primary ({hint})"))

    # -- connections --------------------------------------------------------------------------------------------

    async def _connection(self, effect: Send) -> MuxConnection:
        if self._closed:
            raise ConfigurationError("open a new Holdfast: this one was closed meanwhile")
        address = self.topology.place(effect.node, effect.tag)
        if address is None:
            await self.refresh("unknown")
            address = self.topology.address(effect.tag)
            if address is None:
                raise NotSent(f"no server is known for this shard yet: {self.topology.problem}")
        connection = self._shared.get(address)
        if connection is None or connection.closed:
            task = self._connecting.get(address)
            if task is None:
                task = self._connecting[address] = self._loop.create_task(self._open_shared(address))
                task.add_done_callback(lambda done: self._connected(address, done))
            connection = await joined(task)
        if connection.full:
            await connection.room()
        return connection

    def _connected(self, address: Address, task: asyncio.Task[MuxConnection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # nobody may be waiting any more for a connection that failed

    async def _open_shared(self, address: Address) -> MuxConnection:
        failures = self._failures.get(address, 0)
        if failures:
            await asyncio.sleep(backoff(min(failures - 1, 10)))
        self._failures[address] = failures + 1
        connection = await self._open(address)
        if self.topology.target.kind == "sentinel":
            try:
                await asyncio.to_thread(self.topology.confirm, address)
            except BaseException:
                connection.abort(NotSent("not the primary"))
                raise
        self._failures.pop(address, None)
        if self._closed:
            connection.abort(NotSent("the client was closed"))
        self._shared[address] = connection
        return connection

    async def _open(self, address: Address, on_lost: Callable[[MuxConnection], None] | None = None) -> MuxConnection:
        made = self.topology.aio_connection(address)
        problem = None
        try:
            await connect(made, self.topology.connect_timeout)
        except Exception as error:
            problem = connect_problem(error, self.topology.target)
        if problem is not None:
            raise problem  # out here, so that it does not carry redis-py's error, which may quote the password
        connection = MuxConnection(timeout=self._timeout, in_flight=self._in_flight, on_lost=on_lost)
        connection.adopt(made)
        return connection

    async def _send_aside(self, effect: Send) -> Any:
        """To a named node, or on a connection of its own."""
        if not effect.alone:
            return await (await self._connection(effect)).send(effect.payload, effect.replies)
        address = self.topology.place(effect.node, effect.tag)
        if address is None:
            raise NotSent("no server is known for this shard yet")
        while self._alone and self._alone[-1].closed:
            self._alone.pop()
        connection = self._alone.pop() if self._alone else await self._open(address)
        try:
            reply = await connection.send(effect.payload, effect.replies)
        except BaseException:
            connection.abort(ReplyLost("given up"))
            raise
        if len(self._alone) < IDLE_ALONE and self.topology.target.kind == "single" and not self._closed:
            self._alone.append(connection)
        else:
            connection.abort(NotSent("done"))
        return reply

    async def close(self) -> None:
        """Let background work finish, then close every connection. Idempotent."""
        if self._closed:
            return
        for listening in self._listening:
            listening.cancel()
        if self._background:
            _, late = await asyncio.wait(set(self._background), timeout=self._timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._closed = True
        await self.hub.close()
        pending = [*self._connecting.values(), *([self._refreshing] if self._refreshing is not None else ())]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for connection in [*self._shared.values(), *self._alone]:
            await connection.close()
        self._shared.clear()
        self._alone.clear()


async def joined(task: asyncio.Task[T]) -> T:
    """The outcome of what is done for several. Whoever is cancelled leaves the others theirs; and when the client is
    closed, which ends it, nobody is cancelled who was not."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        own = asyncio.current_task()
        if task.cancelled() and (own is None or not own.cancelling()):
            raise NotSent("the client was closed") from None
        raise
