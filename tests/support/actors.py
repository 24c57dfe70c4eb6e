"""Actors: one owner each (a task or a thread) that runs what a test tells it, on either twin, with the same test code.

    lease = await actor.do(lambda hf: hf.lock("a").acquire(wait=1))

On asyncio the lambda answers a coroutine, which the actor's own task awaits; on threads it blocks the actor's own
thread. Re-entry is by task and by thread, so an actor is what a "caller" is to a lock.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any

import holdfast
import holdfast.sync
from holdfast.engine.scripts import Scripts

SCRIPTS = Scripts()
"""Read once for all clients: these tests make thousands of them."""


class AsyncActor:
    def __init__(self, client: Any) -> None:
        self.hf = client
        self._work: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while (item := await self._work.get()) is not None:
            function, future = item
            try:
                result = function(self.hf)
                if inspect.isawaitable(result):
                    result = await result
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
                if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():
                    raise
            else:
                if not future.done():
                    future.set_result(result)
                del result
            del function, future, item

    def start(self, function: Callable[[Any], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._work.put_nowait((function, future))
        return future

    async def do(self, function: Callable[[Any], Any], timeout: float = 20) -> Any:
        return await asyncio.wait_for(self.start(function), timeout)

    async def enter(self, lock: Any) -> Any:
        return await self.do(lambda _: lock.__aenter__())

    async def leave(self, lock: Any, error: BaseException | None = None) -> Any:
        return await self.do(lambda _: lock.__aexit__(type(error) if error else None, error, None))

    async def stop(self) -> None:
        self._work.put_nowait(None)
        done, _ = await asyncio.wait([self._task], timeout=10)
        assert done, "an actor did not end"


class ThreadActor:
    def __init__(self, client: Any) -> None:
        self.hf = client
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="actor")
        self._thread.start()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            function, future = item
            try:
                result = function(self.hf)
            except BaseException as error:
                self._settle(future, "set_exception", error)
            else:
                self._settle(future, "set_result", result)
                del result
            del function, future, item

    def _settle(self, future: asyncio.Future[Any], how: str, value: Any) -> None:
        self._loop.call_soon_threadsafe(lambda: future.done() or getattr(future, how)(value))

    def start(self, function: Callable[[Any], Any]) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._work.put((function, future))
        return future

    async def do(self, function: Callable[[Any], Any], timeout: float = 20) -> Any:
        return await asyncio.wait_for(self.start(function), timeout)

    async def enter(self, lock: Any) -> Any:
        return await self.do(lambda _: lock.__enter__())

    async def leave(self, lock: Any, error: BaseException | None = None) -> Any:
        return await self.do(lambda _: lock.__exit__(type(error) if error else None, error, None))

    async def stop(self) -> None:
        self._work.put(None)
        await asyncio.to_thread(self._thread.join, 10)
        assert not self._thread.is_alive(), "an actor did not end"


class Fleet:
    """Makes clients and actors on one server, in one twin, and closes all of them."""

    def __init__(self, url: str, api: str) -> None:
        self.url = url
        self.api = api
        self._actors: list[AsyncActor | ThreadActor] = []
        self._clients: list[Any] = []

    async def client(self, **settings: Any) -> Any:
        settings.setdefault("retry_for", 8.0)
        url = settings.pop("url", self.url)
        client: Any = (holdfast if self.api == "async" else holdfast.sync).Holdfast(url, **settings)
        client._core.scripts = SCRIPTS
        await (client.open() if self.api == "async" else asyncio.to_thread(client.open))
        self._clients.append(client)
        return client

    async def actor(self, client: Any = None, **settings: Any) -> AsyncActor | ThreadActor:
        """An owner. Without a client it gets one of its own: another process, as far as the server can tell."""
        client = client or await self.client(**settings)
        actor = AsyncActor(client) if self.api == "async" else ThreadActor(client)
        self._actors.append(actor)
        return actor

    async def actors(self, count: int, **settings: Any) -> list[AsyncActor | ThreadActor]:
        return [await self.actor(**settings) for _ in range(count)]

    async def close_client(self, client: Any) -> None:
        self._clients.remove(client)
        if self.api == "async":
            await client.close()
        else:
            await asyncio.to_thread(client.close)

    async def close(self) -> None:
        for actor in self._actors:
            await actor.stop()
        for client in list(self._clients):
            await self.close_client(client)
