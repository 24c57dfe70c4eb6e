"""Workers in one process, each with a client of its own: another process, as far as the server can tell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import redis

import holdfast
import holdfast.sync
from holdfast.keys import SHARDS, shard_of
from support.backends import Backend
from support.conditions import until
from support.working import Working

NEVER = 600.0
"""As `sweep`: nobody looks without being told to, so what is handled was signalled."""


class Seen(NamedTuple):
    """A batch as a handler saw it."""

    worker: str
    user: Any
    id: str
    attempt: int
    fence: int
    data: list[Any]


def seen(batch: Any, worker: str = "") -> Seen:
    data = [message.data for message in batch.messages]
    return Seen(worker, batch.key, batch.id, batch.attempt, batch.fence, data)


def gentle(log: list[Seen], kind: str, worker: str = "") -> Callable[[Any], Any]:
    """A handler that notes the batch down and is done: a coroutine function or a plain one."""

    async def handle(batch: Any) -> None:
        log.append(seen(batch, worker))

    def handle_plainly(batch: Any) -> None:
        log.append(seen(batch, worker))

    return handle if kind == "coroutine" else handle_plainly


class Member(Working):
    """A client with an absorber of `inbox`, and the work it does."""

    def __init__(self, hf: Any, inbox: Any) -> None:
        super().__init__(hf)
        self.inbox = inbox

    async def do(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A method of either twin."""
        return await self.call(function, *args, **options)


class Crew:
    """Makes members on one server and ends all of them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.server: redis.Redis = backend.owner.client()
        self.members: list[Member] = []

    async def client(self, twin: str = "async", *, url: str = "", buffer: Any = None, **settings: Any) -> Member:
        """One that does not work, unless it is started."""
        made = (holdfast if twin == "async" else holdfast.sync).Holdfast(url or self.backend.url, **settings)
        member = Member(made, made.buffer("inbox", **(buffer or {})))
        await member.do(made.open)
        self.members.append(member)
        return member

    async def worker(
        self, handler: Any, twin: str = "async", *, url: str = "", buffer: Any = None, settings: Any = None,
        ready: bool = True, **options: Any,
    ) -> Member:  # fmt: skip
        """One that works. Unless said otherwise nobody looks without being told to."""
        options.setdefault("threshold", 1)
        member = await self.client(twin, url=url, buffer=buffer, **{"sweep": NEVER, "drain": 2.0, **(settings or {})})
        member.hf.absorber(member.inbox, **options)(handler)
        member.start()
        if ready:
            await self.ready(member)
        return member

    async def ready(self, member: Member) -> None:
        """It listens in every shard, has set its triggers and is known to be idle everywhere."""
        shards = member.inbox._spec.shards
        workers = member.hf._core.mailbox.workers
        await until(lambda: member.working.done() or workers, what="a start")
        if member.working.done():
            member.working.result()
        worker = member.worker
        channels = [shard.signals + member.hf._core.client_id for shard in shards]

        def listening() -> bool:
            pipe = self.server.pipeline(transaction=False)
            for shard, channel in zip(shards, channels, strict=True):
                pipe.execute_command("PUBSUB", "SHARDNUMSUB", channel)
                pipe.zscore(shard.idle, worker._token)
                pipe.hget(shard.stat, "conf_done")
            replies = pipe.execute()
            heard = all(reply[1] for reply in replies[::3])
            return heard and None not in replies[1::3] and set(replies[2::3]) == {worker._absorber.triggers.encode()}

        await until(listening, what="a worker that listens everywhere")
        # The look that setting the triggers asked for is done too.
        await until(lambda: not worker._running and min(worker._look_at) > worker._core.clock(), what="rest")

    async def retire(self, member: Member) -> None:
        """Before its server goes."""
        self.members.remove(member)
        await member.close()

    async def close(self) -> None:
        for member in self.members:
            await member.close()
        self.server.close()


async def crew_on(backend: Backend) -> AsyncIterator[Crew]:
    """Ending must leave no thread and no task."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    made = Crew(backend)
    yield made
    await made.close()

    # A thread of a handler ends a moment after the worker let it go.
    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]

    await until(lambda: not left(), within=5, what="the end of every thread")
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"


def users_in(shard: int, count: int) -> list[str]:
    """So many users of one shard."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if shard_of(f"u{number}".encode()) == shard:
            found.append(f"u{number}")
        number += 1
    return found


def users_apart(count: int) -> list[str]:
    """Users of as many shards."""
    return [users_in(shard % SHARDS, 1 + shard // SHARDS)[-1] for shard in range(count)]
