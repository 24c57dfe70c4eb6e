"""Runs flows on threads: each thread that is in a call has a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import select
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import hiredis
import redis

from holdfast.engine.aio import AsyncDriver
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
)
from holdfast.engine.keeper import Keeper
from holdfast.engine.mux import NOTHING
from holdfast.engine.signals import Mailbox
from holdfast.engine.topology import Topology, connect_problem
from holdfast.errors import ConfigurationError

T = TypeVar("T")
READ = 65536
BATCH = 256
WATCH = 1.0


class Wire:
    """A connection made by redis-py, read here: it hands error replies over as they came."""

    def __init__(self, made: Any) -> None:
        made.connect()
        self._made = made
        self._socket: Any = made._get_socket()
        self._reader = hiredis.Reader(notEnoughData=NOTHING)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def quiet(self) -> bool:
        """Is nothing waiting to be read? TLS has traffic of its own, so there it cannot be told."""
        return isinstance(self._socket, ssl.SSLSocket) or not self._poll.poll(0)

    def exchange(self, payload: bytes, replies: int) -> list[Any]:
        """Send, then read. On any failure the connection is closed: a late reply must not reach the next caller."""
        try:
            self._socket.sendall(payload)
            answers: list[Any] = []
            reader, recv = self._reader, self._socket.recv
            while len(answers) < replies:
                data = recv(READ)
                if not data:
                    raise OSError("closed by the server")
                reader.feed(data)
                while (reply := reader.gets()) is not NOTHING:
                    answers.append(reply)
            if len(answers) > replies:
                raise OSError("a reply that nobody asked for")
            return answers
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, hiredis.ProtocolError)):
                raise ReplyLost(f"no reply: {error}") from error
            raise

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._made.disconnect()
        self._socket = None


class ThreadDriver:
    """Thread-safe. Survives fork: the child starts with no connection and none of the parent's leases."""

    def __init__(
        self,
        topology: Topology,
        mailbox: Mailbox,
        keeper: Keeper,
        *,
        timeout: float,
        after_fork: Callable[[], None],
    ) -> None:
        self.topology = topology
        self._mailbox = mailbox
        self._keeper = keeper
        self._timeout = timeout
        self._after_fork = after_fork
        self._pid = os.getpid()
        self._free: dict[Address, list[Wire]] = {}
        self._closed = False

    def home(self) -> Callable[[], bool]:
        """Is whoever holds something still there? A lease must not be renewed for a thread that has ended."""
        return threading.current_thread().is_alive

    def owner(self) -> object:
        """Who owns a lease for re-entry. A forked child has the same thread object and none of its leases."""
        if os.getpid() != self._pid:
            self._forked()
        return threading.current_thread()

    # -- running flows ------------------------------------------------------------------------------------------

    def run(self, flow: Flow[T]) -> T:
        if self._closed:
            raise ConfigurationError("open a Holdfast before using it: this one was closed")
        if os.getpid() != self._pid:
            self._forked()
        try:
            effect = next(flow)
            while True:
                try:
                    result = self._send(effect) if type(effect) is Send else self._do(effect)
                except INTERRUPTED as error:  # every one of them is the flow's to see, so that it can clean up
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def host(self, main: Callable[[AsyncDriver], Awaitable[T]]) -> T:
        """Run something that needs an event loop: in this thread, with connections of its own, until it returns."""

        async def run() -> T:
            driver = self._keeper.new_driver()
            try:
                return await main(driver)
            finally:
                await driver.close()

        return asyncio.run(run())

    def aside(self, work: Callable[[AsyncDriver], Awaitable[T]]) -> T:
        """Run something on an event loop that lives as long as the client: the keeper's."""
        if os.getpid() != self._pid:
            self._forked()
        if self._closed:
            raise ConfigurationError("open a Holdfast before using it: this one was closed")
        doing = self._keeper.submit(work)
        while True:
            try:
                return doing.result(WATCH)
            except TimeoutError:
                if doing.done():
                    raise  # its own
                if not self._keeper.alive:
                    raise ConfigurationError("open a new Holdfast: this one was closed meanwhile") from None

    def later(self, function: Callable[[AsyncDriver], None]) -> None:
        """Call something on that loop, soon."""
        if os.getpid() != self._pid:
            self._forked()
        if not self._closed:
            self._keeper.call(function)

    def blocking(self, function: Callable[[], T]) -> T:
        """Call something that blocks: here that is as good as anything."""
        return function()

    def finished(self, value: Any) -> Any:
        """What comes of a call; one of a coroutine function cannot be finished in a thread."""
        if inspect.iscoroutine(value):
            value.close()
            raise ConfigurationError("pass a plain function here: this one is a coroutine function")
        return value

    def _forked(self) -> None:
        """The sockets are the parent's: close our copies without a word on the wire."""
        self._pid = os.getpid()
        self._free = {}
        self._after_fork()

    def _do(self, effect: Effect) -> Any:
        match effect:
            case Sleep():
                return time.sleep(effect.seconds)
            case Await():
                return self._await(effect)
            case Listen():
                return self._listen(effect)
            case Refresh():
                return self._refresh()
            case Together():
                return self._together(effect)
            case Detach():
                return self._keeper_finishes(effect.flow) if effect.patient else self._finish(effect.flow)
            case _:
                raise TypeError(f"unknown effect {effect!r}")

    def _finish(self, flow: Flow[Any]) -> None:
        """There is nobody to hand it to, so it is finished here; its errors were nobody's to handle."""
        with contextlib.suppress(Exception):
            self.run(flow)

    def _keeper_finishes(self, flow: Flow[Any]) -> None:
        """On the keeper's loop, for as long as the client lives."""
        with contextlib.suppress(ConfigurationError):  # closed meanwhile
            self._keeper.call(lambda driver: driver.in_background(flow))

    def _await(self, effect: Await) -> str | None:
        message = self._mailbox.take(effect.token)
        if message is not None or effect.seconds <= 0:
            return message
        arrived = threading.Event()
        self._mailbox.park(effect.token, arrived.set)
        try:
            arrived.wait(effect.seconds)
        finally:
            message = self._mailbox.take(effect.token)
        return message

    def _listen(self, effect: Listen) -> bool:
        """Signals come in over the keeper's loop. Without them the waiter still asks at its bounded intervals."""
        patience = self._timeout if effect.seconds is None else min(self._timeout, effect.seconds)
        try:
            return self._keeper.submit(lambda d: d.hub.listen(effect.tag, effect.channel)).result(patience)
        except (NotSent, TimeoutError, OSError, RuntimeError):
            return False

    def _refresh(self) -> None:
        with contextlib.suppress(NotSent):
            self.topology.refresh(self.topology.generation)

    def _together(self, effect: Together) -> list[Any]:
        """First sends of all flows leave together; whoever needs more steps goes on alone."""
        results: list[Any] = [None] * len(effect.flows)
        started: dict[int, Flow[Any]] = {}
        batches: dict[Address, list[tuple[int, Send]]] = {}
        try:
            for index, flow in enumerate(effect.flows):
                try:
                    first = next(flow)
                except StopIteration as stop:
                    results[index] = stop.value
                    continue
                except Exception as error:
                    results[index] = error
                    continue
                started[index] = flow
                address = self.topology.address(first.tag) if isinstance(first, Send) else None
                if isinstance(first, Send) and first.replies == 1 and address is not None:
                    batches.setdefault(address, []).append((index, first))
                else:
                    results[index] = self._result(_chain(started.pop(index), first))
            for address, batch in batches.items():
                for at in range(0, len(batch), BATCH):
                    self._send_batch(address, batch[at : at + BATCH], started, results)
        except (KeyboardInterrupt, SystemExit) as error:
            for flow in started.values():  # each of them may have taken something
                self._finish(_chain(flow, None, error))
            raise
        return results

    def _send_batch(
        self, address: Address, batch: list[tuple[int, Send]], started: dict[int, Flow[Any]], results: list[Any]
    ) -> None:
        payload = b"".join(send.payload for _, send in batch)
        try:
            answers: list[Any] = self._exchange(address, payload, len(batch))
        except (NotSent, ReplyLost) as error:
            answers = [error] * len(batch)
        for (index, _), answer in zip(batch, answers, strict=True):
            lost = answer if isinstance(answer, (NotSent, ReplyLost)) else None
            results[index] = self._result(_chain(started[index], None, lost, answer))
            del started[index]

    def _result(self, flow: Flow[Any]) -> Any:
        try:
            return self.run(flow)
        except Exception as error:
            return error

    # -- connections --------------------------------------------------------------------------------------------

    def _send(self, effect: Send) -> Any:
        address = self.topology.place(effect.node, effect.tag)
        if address is None:
            self._refresh()
            address = self.topology.address(effect.tag)
            if address is None:
                raise NotSent(f"no server is known for this shard yet: {self.topology.problem}")
        return self._exchange(address, effect.payload, effect.replies)[-1]

    def _exchange(self, address: Address, payload: bytes, replies: int) -> list[Any]:
        self._check_open()
        free = self._free.get(address)
        if free is None:
            free = self._free.setdefault(address, [])
        wire = self._idle(free) or self._connect(address)
        answers = wire.exchange(payload, replies)
        if self._closed:
            wire.close()
        else:
            free.append(wire)
        return answers

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("open a new Holdfast: this one was closed meanwhile")

    @staticmethod
    def _idle(free: list[Wire]) -> Wire | None:
        """A connection that is at rest. One on which something came meanwhile is out of step, or closed."""
        while True:
            try:
                wire = free.pop()
            except IndexError:
                return None
            if wire.quiet():
                return wire
            wire.close()

    def _connect(self, address: Address) -> Wire:
        problem = None
        try:
            wire = Wire(self.topology.connection(address))
        except (redis.RedisError, OSError) as error:
            problem = connect_problem(error, self.topology.target)
        else:
            try:
                self.topology.confirm(address)
            except BaseException:
                wire.close()
                raise
            return wire
        raise problem  # out here, so that it does not carry redis-py's error, which may quote the password

    def close(self) -> None:
        self._closed = True
        if os.getpid() != self._pid:
            return
        for wires in self._free.values():
            while wires:
                wires.pop().close()


def _chain(flow: Flow[T], effect: Effect | None, error: BaseException | None = None, answer: Any = None) -> Flow[T]:
    """Go on with a flow that was started elsewhere, as a flow: from an effect it yielded, an error or an answer."""
    while True:
        if effect is not None:
            try:
                answer, error = (yield effect), None
            except INTERRUPTED as problem:
                error = problem
        try:
            effect = flow.throw(error) if error is not None else flow.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
