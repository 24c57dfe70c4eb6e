"""The process that emits events (protocol: bench/fleet.py, with a report of its own instead of rows).

python -m bench.runs.emit_worker LIB ADDR SECONDS RUNS

The clock stops when the server has all events: Holdfast's are flushed at the end, redis-py's are awaited one by one.
Afterwards the server is asked how many each run, or stream, has had.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from ..locks.worker import wait_for_go

WARM_UP = 0.2
DATA = "could you move the meeting to Thursday? " * 2 + "seventeen letters"  # 100 bytes with its header
RAW = DATA.encode() + b"..."  # 100 bytes too


class Emitter(NamedTuple):
    """`emit` sends one event, `flush` makes sure that all are with the server, `stored` says how many it has had."""

    emit: Callable[[], Awaitable[object]]
    flush: Callable[[], Awaitable[object]]
    stored: Callable[[], Awaitable[int]]


@contextlib.asynccontextmanager
async def holdfast(addr: str, runs: int, **options: Any) -> AsyncIterator[list[Emitter]]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as hf, contextlib.AsyncExitStack() as stack:
        agent = hf.runs("emit", **options)

        async def emitter(name: str) -> Emitter:
            run = await stack.enter_async_context(await agent.claim(name))

            async def stored() -> int:
                found = await agent.get(name)
                return found.events + found.dropped

            return Emitter(lambda: run.emit(DATA), run.flush, stored)

        yield [await emitter(f"run-{number}") for number in range(runs)]


def without_delay(addr: str, runs: int) -> contextlib.AbstractAsyncContextManager[list[Emitter]]:
    return holdfast(addr, runs, emit_delay=0)


@contextlib.asynccontextmanager
async def xadd(addr: str, runs: int) -> AsyncIterator[list[Emitter]]:
    """A stream for each, nothing else: no bound, no expiry, no owner, no repeat after a lost reply."""
    from redis.asyncio import Redis

    async def nothing() -> None:
        return None

    async with Redis.from_url(f"redis://{addr}") as client:

        def emitter(name: str) -> Emitter:
            return Emitter(lambda: client.xadd(name, {"d": RAW}), nothing, lambda: client.xlen(name))

        yield [emitter(f"run-{number}") for number in range(runs)]


LIBS = {"holdfast": holdfast, "holdfast-now": without_delay, "xadd": xadd}


async def emit_for(emitter: Emitter, seconds: float) -> int:
    emit, clock, done = emitter.emit, time.monotonic, 0
    deadline = clock() + seconds
    while clock() < deadline:
        await emit()
        done += 1
    await emitter.flush()
    return done


async def run(lib: str, addr: str, seconds: float, runs: int) -> None:
    async with LIBS[lib](addr, runs) as emitters:
        warm = await asyncio.gather(*(emit_for(each, WARM_UP) for each in emitters))
        wait_for_go()
        started = time.monotonic()
        done = await asyncio.gather(*(emit_for(each, seconds) for each in emitters))
        took = time.monotonic() - started
        print(json.dumps({"done": sum(done), "least": min(done), "took": took}), flush=True)
        stored = sum([await each.stored() for each in emitters])
        print(json.dumps({"missing": sum(warm) + sum(done) - stored}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
