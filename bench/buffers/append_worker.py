"""The process that appends (protocol: bench/fleet.py, with a report of its own instead of rows).

python -m bench.buffers.append_worker LIB ADDR SECONDS CALLERS HOW

HOW is `fresh`: each caller goes on to a new user after 48 messages, so nothing is ever dropped; or `full`: each caller
has one user, whose buffer is full, so every append drops the oldest message.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ..locks.worker import wait_for_go
from ..peers.python.moving import message

CAPACITY, TTL = 100, 86_400
PER_USER = 48  # below the capacity, and whole blocks of the raw load
WARM_UP = 0.2
BUFFER = "append"

Append = Callable[[str], Awaitable[object]]
DATA = message(12_345)
TEXT = json.dumps(DATA, separators=(",", ":")).encode()


@contextlib.asynccontextmanager
async def holdfast(addr: str) -> AsyncIterator[Append]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as hf:
        inbox = hf.buffer(BUFFER, capacity=CAPACITY, ttl=TTL)

        async def append(user: str) -> object:
            return await inbox.append(user, DATA)

        yield append


@contextlib.asynccontextmanager
async def four_calls(addr: str) -> AsyncIterator[Append]:
    """As it is written in many a back end: no step knows of the others, and a crash in between leaves no TTL."""
    from redis.asyncio import Redis

    async with Redis.from_url(f"redis://{addr}") as client:

        async def append(user: str) -> object:
            key = f"messages:{user}"
            await client.rpush(key, json.dumps(DATA, separators=(",", ":")))
            await client.expire(key, TTL)
            length = await client.llen(key)
            if length > CAPACITY:
                await client.ltrim(key, -CAPACITY, -1)
            return length

        yield append


@contextlib.asynccontextmanager
async def evalsha(addr: str) -> AsyncIterator[Append]:
    """Holdfast's own script, with arguments that are ready: what redis-py's pool makes of one request."""
    from redis.asyncio import Redis

    from .append_load import Requests

    requests = Requests()
    known: dict[str, tuple[Any, ...]] = {}
    async with Redis.from_url(f"redis://{addr}") as client:
        sha = await client.script_load(requests.script.source)
        numbers = iter(range(1 << 60))

        async def append(user: str) -> object:
            fixed = known.get(user)
            if fixed is None:
                fixed = known[user] = requests.arguments(user)
            key, *rest = fixed
            return await client.evalsha(sha, 1, key, next(numbers).to_bytes(8, "big"), *rest)

        yield append


LIBS = {"holdfast": holdfast, "four-calls": four_calls, "evalsha": evalsha}


async def call(append: Append, user: str, seconds: float, *, full: bool, times: list[int] | None = None) -> int:
    clock, done = time.monotonic_ns, 0
    deadline = clock() + int(seconds * 1e9)
    while (start := clock()) < deadline:
        await append(user if full else f"{user}:{done // PER_USER}")
        done += 1
        if times is not None:
            times.append(clock() - start)
    return done


async def run(lib: str, addr: str, seconds: float, callers: int, how: str) -> None:
    full = how == "full"
    async with LIBS[lib](addr) as append:
        await asyncio.gather(*(call(append, f"warm:{os.getpid()}:{i}", WARM_UP, full=False) for i in range(callers)))
        if full:

            async def fill(user: str) -> None:
                for _ in range(CAPACITY):
                    await append(user)

            await asyncio.gather(*(fill(f"user:{i}") for i in range(callers)))
        wait_for_go()
        times: list[int] | None = [] if callers == 1 else None
        started = time.monotonic()
        calls = (call(append, f"user:{i}", seconds, full=full, times=times) for i in range(callers))
        done = sum(await asyncio.gather(*calls))
        took = time.monotonic() - started
        print(json.dumps({"done": done, "took": took, "times": times or []}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
