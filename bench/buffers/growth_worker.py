"""Fills a buffer with many users and measures what one more costs (protocol: bench/fleet.py, report of its own).

python -m bench.buffers.growth_worker ADDR USERS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from redis.asyncio import Redis

from holdfast import Holdfast
from holdfast.buffers.batch import Batch
from holdfast.buffers.buffer import Buffer

from ..locks.worker import wait_for_go
from ..stats import median
from .append_worker import DATA, TEXT, TTL

EACH = 5  # messages of a user
THRESHOLD = 10
CALLERS = 200
SAMPLES, SAMPLE = 10, 500
FRESH_WORKERS = 5
PIPELINE = 200
BUFFER = "growth"


async def spread(work: Callable[[int], Awaitable[object]], numbers: Iterable[int]) -> float:
    """Do the work for each number, by CALLERS callers. Answers the seconds it took."""
    todo = iter(numbers)

    async def caller() -> None:
        for number in todo:
            await work(number)

    started = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return time.monotonic() - started


async def used_memory(server: Redis) -> int:
    """Once everything that was removed is really gone: servers free large things in the background."""
    while (info := await server.info("memory"))["lazyfree_pending_objects"]:
        await asyncio.sleep(0.05)
    return int(info["used_memory"]) - int(info["mem_clients_normal"])


class Costs:
    """Server time in a command, the server's processor time and wall time of one kind of operation, added up.

    Time in a command is what INFO commandstats says: it runs on while another process has the processor. Processor
    time does not, but has the network in it."""

    def __init__(self, server: Redis, command: str = "evalsha") -> None:
        self._server = server
        self._command = command
        self.calls = self.usec = 0
        self.ops, self.seconds, self.cpu = 0, 0.0, 0.0

    async def add(self, ops: int, running: Awaitable[float]) -> None:
        await self._server.config_resetstat()
        cpu = await self._cpu_seconds()
        self.seconds += await running
        self.cpu += await self._cpu_seconds() - cpu
        stats: dict[str, Any] = (await self._server.info("commandstats"))[f"cmdstat_{self._command}"]
        self.calls += stats["calls"]
        self.usec += stats["usec"]
        self.ops += ops

    async def _cpu_seconds(self) -> float:
        info = await self._server.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def figures(self, name: str) -> dict[str, float]:
        return {
            f"{name}_us": self.usec / self.calls,
            f"{name}_cpu": self.cpu / self.ops * 1e6,
            f"{name}_wall": self.seconds / self.ops * 1e6,
        }


async def work_until(addr: str, done: asyncio.Event, first: Callable[[Buffer], Awaitable[bool]] | None = None) -> float:
    """Run a new worker until a handler was called, or `first` says yes. Answers the seconds from `work` until then."""
    async with Holdfast(f"redis://{addr}") as hf:
        inbox = hf.buffer(BUFFER, ttl=TTL)

        @hf.absorber(inbox, threshold=THRESHOLD)
        async def seen(_: Batch) -> None:
            done.set()

        started = time.monotonic()
        working = asyncio.create_task(hf.work())
        if first is None:
            await asyncio.wait_for(done.wait(), 120)
        else:
            while not await first(inbox):
                await asyncio.sleep(0.05)
        took = time.monotonic() - started
        hf.stop_work()
        await working
        return took


async def first_due(addr: str, inbox: Buffer) -> float:
    """In ms: a fresh worker's time to the one user who is due. The middle of several, each a client of its own."""
    times = []
    for number in range(FRESH_WORKERS):
        await inbox.extend(f"due-{number}", [DATA] * THRESHOLD)
        times.append(await work_until(addr, asyncio.Event()) * 1e3)
    return median(times)


async def sample_costs(server: Redis, inbox: Buffer) -> dict[str, float]:
    costs = {name: Costs(server) for name in ("append", "take", "ack")}
    for number in range(SAMPLES):
        batches: list[Batch] = []

        async def append(user: int, number: int = number) -> None:
            for _ in range(EACH):
                await inbox.append(f"sample-{number}-{user}", DATA)

        async def take(user: int, number: int = number, batches: list[Batch] = batches) -> None:
            batch = await inbox.take(f"sample-{number}-{user}")
            assert batch is not None
            assert len(batch.messages) == EACH
            batches.append(batch)

        async def ack(at: int, batches: list[Batch] = batches) -> None:
            await batches[at].ack()

        await costs["append"].add(SAMPLE * EACH, spread(append, range(SAMPLE)))
        await costs["take"].add(SAMPLE, spread(take, range(SAMPLE)))
        await costs["ack"].add(SAMPLE, spread(ack, range(SAMPLE)))
    return {key: value for name, cost in costs.items() for key, value in cost.figures(name).items()}


async def bare(server: Redis, inbox: Buffer, users: int) -> dict[str, float]:
    """The same payloads in plain lists with the same keys and a TTL: bytes per message, and what one more RPUSH costs.

    The latter is the control: what grows here as well is the server and the processor's caches, not ours."""
    await server.flushall()  # freed in the background; `used_memory` waits for that
    before = await used_memory(server)
    for start in range(0, users, PIPELINE):
        async with server.pipeline(transaction=False) as pipe:
            for number in range(start, min(start + PIPELINE, users)):
                key = inbox._spec.place(f"user-{number}").key
                pipe.rpush(key, *[TEXT] * EACH)
                pipe.expire(key, TTL)
            await pipe.execute()
    held = await used_memory(server) - before
    costs = Costs(server, "rpush")
    for number in range(SAMPLES):

        async def push(user: int, number: int = number) -> None:
            key = inbox._spec.place(f"sample-{number}-{user}").key
            for _ in range(EACH):
                await server.rpush(key, TEXT)

        await costs.add(SAMPLE * EACH, spread(push, range(SAMPLE)))
    return {"bare_bytes": held / (users * EACH), **costs.figures("rpush")}


async def run(addr: str, users: int) -> None:
    url = f"redis://{addr}"
    async with Redis.from_url(url, max_connections=2 * CALLERS) as server, Holdfast(url) as hf:
        inbox = hf.buffer(BUFFER, ttl=TTL)

        async def configured(_: Buffer) -> bool:
            return all([await server.hget(shard.stat, "conf_done") for shard in inbox._spec.shards])

        await work_until(addr, asyncio.Event(), configured)  # as in a fleet that has been running: triggers are known
        wait_for_go()
        before = await used_memory(server)
        filling = await spread(lambda number: inbox.extend(f"user-{number}", [DATA] * EACH), range(users))
        held = await used_memory(server) - before
        figures = {
            "users": float(users),
            "filled_per_s": users / filling,
            "bytes": held / (users * EACH),
            **await sample_costs(server, inbox),
            "first_ms": await first_due(addr, inbox),
            **await bare(server, inbox, users),
        }
        print(json.dumps(figures), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
