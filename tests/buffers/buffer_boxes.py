"""Buffers for tests: the same test code for both twins, on one client each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from holdfast import NotAcquired
from support.actors import AsyncActor, Fleet, ThreadActor
from support.backends import Backend
from support.conditions import until


class Box:
    """The methods of a Buffer, run by an actor; `ack` and `nack` are those of a batch."""

    def __init__(self, actor: AsyncActor | ThreadActor, name: str = "inbox", **options: Any) -> None:
        self.actor = actor
        self.buffer = actor.hf.buffer(name, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.buffer, name)
        return lambda *args, **options: self.actor.do(lambda _: method(*args, **options))

    async def ack(self, batch: Any, *args: Any) -> Any:
        return await self.actor.do(lambda _: batch.ack(*args))

    async def nack(self, batch: Any, *args: Any, **options: Any) -> Any:
        return await self.actor.do(lambda _: batch.nack(*args, **options))

    async def waiting(self, user: Any) -> list[Any]:
        """Data of what waits."""
        return [message.data for message in await self.peek(user, 1000)]

    async def counts(self) -> dict[str, int]:
        return dict((await self.totals()).counts)

    async def take_when_free(self, user: Any, within: float = 10.0, **options: Any) -> Any:
        """Take as soon as whoever has it is gone."""

        async def try_it() -> Any:
            try:
                return await self.take(user, **options)
            except NotAcquired:
                return None

        return await until(try_it, within=within, what="a batch")

    def keys(self, user: Any) -> dict[str, str]:
        """Where the user's things are: u messages, c pairs, a attachments, g gone."""
        place = self.buffer._spec.place(user)
        return {kind: f"{place.base}{kind}:{place.user}" for kind in "ucag"} | {"due": place.shard.due}


class Boxes(Fleet):
    """Makes clients with a buffer."""

    def __init__(self, backend: Backend, api: str) -> None:
        super().__init__(backend.url, api)
        self.backend = backend

    async def box(self, name: str = "inbox", *, settings: dict[str, Any] | None = None, **options: Any) -> Box:
        """On a client of its own: another process, as far as the server can tell."""
        return Box(await self.actor(**(settings or {})), name, **options)

    async def two(self, name: str = "inbox", **options: Any) -> tuple[Box, Box]:
        return await self.box(name, **options), await self.box(name, **options)

    def lives(self) -> dict[str, int]:
        """Remaining ms of every key."""
        return self.backend.keys()

    def scripts_run(self) -> int:
        """How many scripts the servers have run."""
        total = 0
        for client in self.backend.primaries():
            stats = client.info("commandstats")
            total += sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
            client.close()
        return total


async def closing(boxes: Boxes) -> AsyncIterator[Boxes]:
    """Closing must leave no thread and no task."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    yield boxes
    await boxes.close()
    left = [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]
    assert not left, f"threads left behind: {left}"
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"


def data_of(messages: Any) -> list[Any]:
    return [message.data for message in messages]
