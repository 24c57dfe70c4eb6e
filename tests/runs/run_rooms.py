"""Runs for tests: the same test code for both twins, on one client each."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import ActiveRun, Event, HoldfastError, Run, RunActive, RunStopped
from support.actors import AsyncActor, Fleet, ThreadActor
from support.backends import Backend
from support.conditions import until

SHORT = 0.15
"""A lease of somebody who is going to die."""


class Room:
    """The methods of a collection of runs, run by an actor."""

    def __init__(self, actor: AsyncActor | ThreadActor, name: str = "agent", **options: Any) -> None:
        self.actor = actor
        self.blocking = isinstance(actor, ThreadActor)
        self.runs = actor.hf.runs(name, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.runs, name)
        return lambda *args, **options: self.actor.do(lambda _: method(*args, **options))

    async def events(self, run_id: Any, after: str | None = None, **options: Any) -> list[Event]:
        """All of them, up to the end."""
        options.setdefault("timeout", 10)
        return await self.actor.do(lambda _: self.read(run_id, after, **options))

    def read(self, run_id: Any, after: str | None = None, *, most: int = 10_000, **options: Any) -> Any:
        """For an actor: at most so many events."""
        reading = self.runs.events(run_id, after, **options)
        return _read_plainly(reading, most) if self.blocking else _read(reading, most)

    async def on(self, run: Any, name: str, *args: Any) -> Any:
        """A method of a run that this one has claimed."""
        return await self.actor.do(lambda _: getattr(run, name)(*args))

    async def emit(self, run: Any, *data: Any) -> None:
        """Each of these is stored before the next."""
        for one in data:
            await self.on(run, "emit", one)
            await self.on(run, "flush")

    async def body(self, run_id: Any, work: Callable[[Any], Any] | None = None, **options: Any) -> Any:
        """Claim it, do this inside `with`, and leave."""
        return await self.actor.do(lambda _: self.start_body(run_id, work, **options))

    def start_body(self, run_id: Any, work: Callable[[Any], Any] | None = None, **options: Any) -> Any:
        """The same for `actor.start`. The work is a plain function, or a coroutine function for the asyncio twin."""
        if self.blocking:
            with self.runs.claim(run_id, **options) as run:
                return work(run) if work else None
        return self._body(run_id, work, **options)

    async def _body(self, run_id: Any, work: Callable[[Any], Any] | None, **options: Any) -> Any:
        async with await self.runs.claim(run_id, **options) as run:
            result = work(run) if work else None
            return await result if inspect.isawaitable(result) else result

    def until_stopped(self, run: Any) -> Any:
        """As the body of a run: works until it should stop or is lost."""
        if not self.blocking:
            return asyncio.Event().wait()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            run.check()
            time.sleep(0.005)
        raise AssertionError("nobody stopped it")

    async def dead(self, run_id: Any, *, emits: Any = (), saves: Any = None, **options: Any) -> Any:
        """Claim it and never come back: its lease is not renewed, and ends soon."""
        run = await self.claim(run_id, lease=0.8 if emits or saves is not None else SHORT, **options)
        if emits:
            for one in emits:
                await self.on(run, "emit", one)
            await self.on(run, "flush")
        if saves is not None:
            await self.on(run, "checkpoint", saves)
        run._given.hold.abandoned = True
        return run

    async def claim_when_free(self, run_id: Any, **options: Any) -> ActiveRun:
        """As soon as whoever has it is gone."""

        async def attempt() -> Any:
            try:
                return await self.claim(run_id, **options)
            except RunActive:
                return None

        return await until(attempt, what="a claim")

    async def becomes(self, run_id: Any, state: str, within: float = 10.0) -> Run:
        async def so() -> Any:
            run = await self.get(run_id)
            return run if run.state == state else None

        return await until(so, within=within, what=f"{run_id!r} being {state}")

    async def end(self, run: Any, error: BaseException | None = None) -> None:
        """Leave the body of a run that was claimed before, in one go."""

        def plainly(_: Any) -> None:
            run.__enter__()
            run.__exit__(type(error) if error else None, error, None)

        async def go() -> None:
            await run.__aenter__()
            await run.__aexit__(type(error) if error else None, error, None)

        await self.actor.do(plainly if self.blocking else lambda _: go())

    async def end_stopped(self, run: Any) -> None:
        """One that was told to stop says so on its way out."""
        with contextlib.suppress(RunStopped):
            await self.end(run)

    async def refuses(self, kind: type[HoldfastError], name: str, *args: Any, **options: Any) -> Any:
        with pytest.raises(kind) as caught:
            await getattr(self, name)(*args, **options)
        return caught.value


async def _read(reading: Any, most: int) -> list[Event]:
    events: list[Event] = []
    try:
        async for event in reading:
            events.append(event)
            if len(events) >= most:
                break
    finally:
        await reading.aclose()
    return events


def _read_plainly(reading: Any, most: int) -> list[Event]:
    events: list[Event] = []
    try:
        for event in reading:
            events.append(event)
            if len(events) >= most:
                break
    finally:
        reading.close()
    return events


class Rooms(Fleet):
    """Makes clients with runs."""

    def __init__(self, backend: Backend, api: str) -> None:
        super().__init__(backend.url, api)
        self.backend = backend

    async def room(self, name: str = "agent", *, settings: dict[str, Any] | None = None, **options: Any) -> Room:
        """On a client of its own: another process, as far as the server can tell."""
        return Room(await self.actor(**(settings or {})), name, **options)

    async def two(self, name: str = "agent", **options: Any) -> tuple[Room, Room]:
        return await self.room(name, **options), await self.room(name, **options)

    def scripts_run(self) -> int:
        """How many scripts the servers have run."""
        total = 0
        for client in self.backend.primaries():
            stats = client.info("commandstats")
            total += sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
            client.close()
        return total


async def closing(rooms: Rooms) -> AsyncIterator[Rooms]:
    """Closing must leave no thread and no task."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    yield rooms
    await rooms.close()
    left = [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]
    assert not left, f"threads left behind: {left}"
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"


def data_of(events: Any) -> list[Any]:
    """What was emitted."""
    return [event.data for event in events if event.kind == "data"]


def kinds_of(events: Any) -> list[str]:
    return [event.kind for event in events]
