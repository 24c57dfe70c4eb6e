"""Workers with a runner, each with a client of its own: another process, as far as the server can tell."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import redis

import holdfast
import holdfast.sync
from holdfast import Run
from support.backends import Backend
from support.conditions import until
from support.working import Working

NEVER = 600.0
"""As `sweep`: nobody looks without a reason."""


class Hand(Working):
    """A client with a runner, and the work it does."""

    def __init__(self, hf: Any, agent: Any) -> None:
        super().__init__(hf)
        self.agent = agent

    async def do(self, name: str, *args: Any, **options: Any) -> Any:
        """A method of its collection, of either twin."""
        return await self.call(getattr(self.agent, name), *args, **options)

    async def becomes(self, run_id: str, *states: str, within: float = 10.0) -> Run:
        async def so() -> Any:
            run = await self.do("get", run_id)
            return run if run.state in states else None

        return await until(so, within=within, what=f"{run_id!r} being {' or '.join(states)}")

    async def ended(self, run_id: str, within: float = 10.0) -> Run:
        return await self.becomes(run_id, "completed", "failed", "stopped", within=within)

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def deafen(self) -> None:
        """From now on no message to stop reaches it."""
        self.hf._core.mailbox.on_stop = lambda token, reason: None


class Hands:
    """Makes workers on one server and ends all of them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        single = backend.kind in ("valkey", "redis")
        self.server: redis.Redis | None = backend.owner.client() if single else None
        self.members: list[Hand] = []

    async def client(self, twin: str = "async", *, url: str = "", runs: Any = None, **settings: Any) -> Hand:
        """One that does not work."""
        made = (holdfast if twin == "async" else holdfast.sync).Holdfast(url or self.backend.url, **settings)
        hand = Hand(made, made.runs("agent", **{"lease": 1.0, "conflict": "queue", **(runs or {})}))
        await hand.call(made.open)
        self.members.append(hand)
        return hand

    async def worker(
        self, handler: Any, twin: str = "async", *, url: str = "", runs: Any = None, settings: Any = None,
        **options: Any,
    ) -> Hand:  # fmt: skip
        """One that works."""
        hand = await self.client(twin, url=url, runs=runs, **{"sweep": NEVER, "drain": 2.0, **(settings or {})})
        hand.hf.runner(hand.agent, **{"stop_grace": 2.0, **options})(handler)
        hand.start()
        await ready(hand, self.server)
        return hand

    async def close(self) -> None:
        for hand in self.members:
            await hand.close()
        if self.server is not None:
            self.server.close()


async def ready(hand: Hand, server: redis.Redis | None) -> None:
    """It listens, and is known to be idle, or as busy as it can be."""
    workers = hand.hf._core.mailbox.workers
    await until(lambda: hand.working.done() or workers, what="a start")
    if hand.working.done():
        hand.working.result()
    worker, spec = hand.worker, hand.agent._spec

    def listening() -> bool:
        if server is None:
            return 0 < worker._look_at < math.inf
        heard = server.execute_command("PUBSUB", "SHARDNUMSUB", spec.signals + hand.hf._core.client_id)[1]
        return heard and (worker._running or server.zscore(spec.idle, worker._token) is not None)

    await until(listening, what="a worker that listens")


async def hands_on(backend: Backend) -> AsyncIterator[Hands]:
    """Ending must leave no thread and no task."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    made = Hands(backend)
    yield made
    await made.close()

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]

    await until(lambda: not left(), within=5, what="the end of every thread")
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"


class Held:
    """A handler that keeps its run until it is let go or cancelled."""

    def __init__(self, name: str = "", result: Any = None, log: list[Any] | None = None) -> None:
        self.name = name
        self.result = result
        self.log: list[Any] = [] if log is None else log
        self.runs: list[Any] = []
        self.cancelled: list[Any] = []
        self.go = asyncio.Event()

    async def __call__(self, run: Any) -> Any:
        self.log.append((self.name, run.id, run.attempt) if self.name else run.id)
        self.runs.append(run)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(run.id)
            raise
        return self.result


def until_told(run: Any, seconds: float = 5.0) -> bool:
    """For a plain handler: wait until it should stop, or its run is lost. False: nobody told it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if run.stopping or run.lost:
            return True
        time.sleep(0.005)
    return False


async def never(condition: Any, seconds: float, why: str) -> None:
    """It stays false for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition(), why
        await asyncio.sleep(0.01)
